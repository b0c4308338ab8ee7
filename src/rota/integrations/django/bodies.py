"""Bodies as Django expects them to be called: with connections that work, and leaving none open longer than it should be.

To Django a body is what a request is. One in a thread finds no connection that has broken or grown too old since the last
body in that thread, and leaves none that must not be kept (CONN_MAX_AGE). A coroutine has a thread of its own for what Django
runs synchronously, as it has in a request; it takes its connections with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from rota.jobs.running import running as running_job
from rota.pollers.running import running as running_poll

__all__ = ["with_connections"]


def with_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with Django's connections seen to around it wherever a worker calls it."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            if not _in_a_body():
                return await function(*args, **kwargs)
            async with ThreadSensitiveContext():
                try:
                    return await function(*args, **kwargs)
                finally:
                    await sync_to_async(connections.close_all)()

        return coroutine

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        if not _in_a_body():
            return function(*args, **kwargs)  # the connections are the caller's
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return body


def _in_a_body() -> bool:
    return running_job.get(None) is not None or running_poll.get(None) is not None
