"""What a form has asked for, when the page is to be given back with it: what was typed, what is wrong with it, or what it would do.

The form is drawn from the fields of the action and stands outside of the regions that change, so whatever page it came from,
nothing that was typed is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rota.dashboard.acting.action import Action, Preview, Values
from rota.dashboard.fields import Field, field_at_fault
from rota.errors import ConfigurationError

__all__ = ["TYPED", "Asked", "AskedField", "check_typed"]

#: the field in which one types what is to be destroyed
TYPED = "_typed"


class NotTyped(ConfigurationError):
    """What is to be destroyed was not typed, or something else was."""


@dataclass(frozen=True)
class AskedField:
    """`shown` is how it is given back: as what it is about, or to be typed once more."""

    name: str
    field: Field
    text: str
    shown: str
    is_wrong: bool = False


@dataclass(frozen=True)
class Asked:
    action: Action
    form: Mapping[str, str]
    trouble: Exception | None = None
    preview: Preview | None = None

    @property
    def word(self) -> str | None:
        """What is to be typed before it is done."""
        return self.action.typed({name: text for name, text in self.form.items() if text})

    @property
    def wrong(self) -> str | None:
        """The field that is at fault, if it is one of those that are given back."""
        if self.trouble is None:
            return None
        if isinstance(self.trouble, NotTyped):
            return TYPED
        found = field_at_fault(self.action.fields, self.trouble)
        return found if found in {each.name for each in self._all} else None

    @property
    def fields(self) -> list[AskedField]:
        """Those that the form had, and those that it lacks."""
        wrong = self.wrong
        return [
            AskedField(each.name, each.field, each.text, self._shown(each, wrong), each.name == wrong)
            for each in self._all
        ]

    @property
    def is_editable(self) -> bool:
        """Whether something can be said otherwise: where not, there is nothing to send again."""
        return self.word is not None or any(each.shown != "hidden" for each in self.fields)

    @property
    def _all(self) -> list[AskedField]:
        return [
            AskedField(name, field, self.form.get(name, ""), "")
            for name, field in self.action.fields.items()
            if name in self.form or field.required
        ]

    def _shown(self, each: AskedField, wrong: str | None) -> str:
        # nothing mends what it is about but to say it otherwise
        if each.field.fixed and each.name in self.form and each.name != wrong:
            return "hidden"
        if each.field.choices:
            return "choice"
        return {"object": "area", "list": "area", "flag": "flag"}.get(each.field.kind, "line")


def check_typed(action: Action, values: Values, form: Mapping[str, str]) -> None:
    """Refuse what cannot be taken back unless it was typed what it is done to. Raises ConfigurationError."""
    word = action.typed(values)
    if word is not None and form.get(TYPED, "").strip() != word:
        raise NotTyped(f"Nothing was done, as it cannot be taken back. To do it, type {word!r}.")
