"""Single keys from the terminal, without Enter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

__all__ = ["listen_to_keys"]


@contextlib.contextmanager
def listen_to_keys(on_key: Callable[[str], None]) -> Iterator[bool]:
    """Call `on_key` on the running loop with each key while the block runs; the terminal is as before afterwards.

    Yields whether there is a keyboard: not when input is not a terminal, or when we are in its background.
    """
    if not sys.stdin.isatty() or _in_background(sys.stdin.fileno()):
        yield False
        return
    keyboard = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(keyboard, 64).decode(errors="ignore")
        if not pressed:  # the terminal is gone
            loop.remove_reader(keyboard)
        for key in pressed:
            on_key(key)

    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)  # Ctrl-C stays a signal
        loop.add_reader(keyboard, read)
        yield True
    finally:
        loop.remove_reader(keyboard)
        # the terminal may be gone, and then nothing is to be restored
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _in_background(terminal: int) -> bool:
    """Whether touching the terminal would suspend us."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # it is not the terminal that controls us, so it cannot
        return False
