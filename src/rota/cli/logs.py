"""How a command that works for long logs, as options that any of them can have."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from rota.integrations.logging import set_up_logging

__all__ = ["log_options"]


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--log-format` and `--log-level`: logging is set up before the command begins."""

    @click.option(
        "--log-format", type=click.Choice(["text", "json"]), help="How to log. [env: ROTA_LOG_FORMAT; default: text]"
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
        help="From which level on. [env: ROTA_LOG_LEVEL; default: info]",
    )
    @click.option("--log-label", hidden=True, help="What tells the lines of this process from those of its neighbours.")
    @functools.wraps(command)
    def logging(*args: Any, log_format: str | None, log_level: str | None, log_label: str | None, **named: Any) -> Any:
        # what this process starts logs in the same way
        os.environ |= {"ROTA_LOG_FORMAT": log_format} if log_format else {}
        os.environ |= {"ROTA_LOG_LEVEL": log_level} if log_level else {}
        several = named.get("processes", 1) > 1 or named.get("workers", 1) > 1 or named.get("recycle_after")
        set_up_logging(log_level, log_format, log_label or ("fleet " if several else ""))
        return command(*args, **named)

    return logging
