"""What can be done with processes."""

from __future__ import annotations

from rota.dashboard.acting.action import Action
from rota.dashboard.fields import Field

__all__ = ["MEMBER_ACTIONS"]

_MEMBER = {"member": Field("text", "the process, by its name or id", required=True, fixed=True)}

MEMBER_ACTIONS = (
    Action(
        "members.quiet",
        "Have a process take on nothing new until it is resumed; what runs goes on, and what it leads is led by others.",
        _MEMBER,
        lambda app, values, by: app.members.quiet(values["member"], by=by),
        lambda member, values: f"{member.name} takes on nothing new.",
    ),
    Action(
        "members.resume",
        "Have a process that is quiet work again.",
        _MEMBER,
        lambda app, values, by: app.members.resume(values["member"], by=by),
        lambda member, values: f"{member.name} works again.",
    ),
    Action(
        "members.drain",
        "Have a process end as after SIGTERM; a web process serves on, and is quiet.",
        _MEMBER,
        lambda app, values, by: app.members.drain(values["member"], by=by),
        lambda member, values: (
            f"{member.name} serves on, and takes on nothing new."
            if member.work.get("drains") == "quiet"
            else f"{member.name} ends when what it runs has finished."
        ),
    ),
)
