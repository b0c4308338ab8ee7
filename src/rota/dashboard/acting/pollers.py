"""What can be done with pollers."""

from __future__ import annotations

from rota.dashboard.acting.action import NAME, Action
from rota.dashboard.fields import Field

__all__ = ["POLLER_ACTIONS"]

POLLER_ACTIONS = (
    Action(
        "pollers.pause",
        "Have nobody take rows for a poller.",
        NAME,
        lambda app, values, by: app.pollers.pause(values["name"], by=by),
        lambda poller, values: f"Poller {poller.name} is paused.",
    ),
    Action(
        "pollers.resume",
        "End the pause of a poller.",
        NAME,
        lambda app, values, by: app.pollers.resume(values["name"], by=by),
        lambda poller, values: f"Poller {poller.name} goes on.",
    ),
    Action(
        "pollers.release",
        "Let parked rows be polled again with all their attempts: those of these keys, or all; with held also rows polled now.",
        {
            **NAME,
            "keys": Field("list", "keys of rows; by default all that are parked", fixed=True),
            "held": Field("flag", "also rows that someone polls at this moment: that poll is void", fixed=True),
        },
        lambda app, values, by: app.pollers.release(
            values["name"], values.get("keys"), held=values.get("held", False), by=by
        ),
        lambda count, values: f"{count} row(s) of poller {values['name']} are released.",
    ),
    Action(
        "pollers.forget",
        "Forget a poller that is no longer in any code, and what is remembered of its rows; its table is not touched.",
        NAME,
        lambda app, values, by: app.pollers.forget(values["name"], by=by),
        lambda forgotten, values: f"Poller {forgotten.name} is forgotten.",
        typed=lambda values: values.get("name"),
    ),
)
