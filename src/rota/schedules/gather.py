"""Many schedules at once: all their mistakes are told together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rota.errors import ConfigurationError, InvalidArguments, RotaError
from rota.schedules.definition import ScheduleDefinition

__all__ = ["gather"]

_MOST_TOLD = 50


def gather(
    items: Iterable[ScheduleDefinition | Mapping[str, Any]], define: Callable[..., ScheduleDefinition]
) -> list[ScheduleDefinition]:
    """The schedules of these items: definitions, or what `define` makes them of.

    Raises the error of the only one that is wrong, or a ConfigurationError that tells of all.
    """
    definitions: list[ScheduleDefinition] = []
    mistakes: list[RotaError] = []
    for place, item in enumerate(items):
        try:
            definitions.append(item if isinstance(item, ScheduleDefinition) else _defined(place, item, define))
        except (ConfigurationError, InvalidArguments) as error:
            mistakes.append(error)
    for name, times in Counter(each.name for each in definitions).items():
        if times > 1:
            mistakes.append(
                ConfigurationError(f"{times} schedules are called {name!r}: give each a name of its own (name=...).")
            )
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        told = [f"- {error}" for error in mistakes[:_MOST_TOLD]]
        if len(mistakes) > _MOST_TOLD:
            told.append(f"- and {len(mistakes) - _MOST_TOLD} more")
        raise ConfigurationError("\n".join([f"{len(mistakes)} schedules are wrong, and none was put:", *told]))
    return definitions


def _defined(place: int, item: Any, define: Callable[..., ScheduleDefinition]) -> ScheduleDefinition:
    if not isinstance(item, Mapping) or not {"name", "task"} <= item.keys():
        raise ConfigurationError(
            f"Item {place} is no schedule: it is what app.schedules.define(...) returns, or a mapping with a name, a task and "
            f"what else put takes. It is {item!r:.200}."
        )
    return define(**item)
