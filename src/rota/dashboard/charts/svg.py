"""Elements of SVG, escaped; and the frame around a picture, with its table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

__all__ = ["element", "figure", "number", "picture", "runs"]


_NOTHING = Markup("")


def element(name: str, *children: Markup | str, **attributes: Any) -> Markup:
    """`class_` and `aria_label` stand for what Python or an underscore cannot say; None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)  # escapes what is plain text
    return Markup(f"<{name}{written}>{inner}</{name}>")  # noqa: S704 - names are ours, and the rest is escaped


def number(value: Any) -> str:
    """As short as a hundredth of a pixel allows."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def picture(
    width: float, height: float, label: str, *children: Markup, class_: str = "chart", stretches: bool = False
) -> Markup:
    """The drawing itself; what it shows is said by its label, and in full by the table."""
    # what is inside an image cannot be reached by who does not see it
    role = "group" if any("<a " in child for child in children) else "img"
    above = 0 if class_ != "chart" else 8  # half of what is written beside the highest line
    box = f"0 {-above} {number(width)} {number(height + above)}"
    aspect = "none" if stretches else None
    return element(
        "svg", *children, viewBox=box, preserveAspectRatio=aspect, class_=class_, role=role, aria_label=label
    )


def figure(
    title: str, drawing: Markup, columns: Sequence[str], rows: Sequence[Sequence[Any]], before: Markup = _NOTHING
) -> Markup:
    """A picture with its name and the table behind it; `before` stands between name and picture, such as what the colours mean."""
    head = element("tr", *(element("th", escape(column), scope="col") for column in columns))
    body = [element("tr", *(element("td", escape("" if cell is None else cell)) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    hidden = element(
        "details",
        element("summary", escape(f"Table: {title}")),
        element("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {title}"),
        class_="data",
    )
    caption = element("figcaption", escape(title))
    # it scrolls where it has no room, and whoever has only keys must be able to do that
    box = element("div", drawing, class_="picture", tabindex="0", role="region", aria_label=title)
    return element("figure", caption, before, box, hidden)


def runs(values: Sequence[float | None]) -> list[list[int]]:
    """The indexes of values that are there, in runs without a gap."""
    found = [(value is not None, place) for place, value in enumerate(values)]
    return [
        [place for _, place in group] for there, group in itertools.groupby(found, key=lambda each: each[0]) if there
    ]
