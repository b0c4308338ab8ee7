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
        "Let parked rows be polled again with all their attempts: those of these keys, or all.",
        {**NAME, "keys": Field("list", "keys of rows; by default all that are parked")},
        lambda app, values, by: app.pollers.release(values["name"], values.get("keys"), by=by),
        lambda count, values: f"{count} row(s) of poller {values['name']} are released.",
    ),
)
