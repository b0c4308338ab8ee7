"""As much of PostgreSQL's protocol as it takes to know when a certain statement was executed, and when it was answered.

A statement's text travels once, when it is prepared; executing it names it. So both are followed, from the first byte of a
connection on. Encrypted connections cannot be followed; the proxy's addresses ask for plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["Conversation"]

_STARTUP = 0x00030000  # protocol 3.0; a later minor version differs in the low bits
_PARSE, _BIND, _QUERY, _SYNC, _CALL, _READY = b"PBQSFZ"


class Conversation:
    """Both directions of one connection. `watch` is asked about each execution: its statement's text, its parameters."""

    def __init__(self, watch: Callable[[bytes, bytes], bool]) -> None:
        self._watch = watch
        self._client = bytearray()
        self._server = bytearray()
        self._is_open = False
        self._statements: dict[bytes, bytes] = {}
        self._asked = 0  # how often the client has asked the server to say that it is ready
        self._answered = 0
        self._watched = False
        self._answer_due: int | None = None

    @property
    def watched(self) -> bool:
        """Whether the client has sent an execution that `watch` wanted."""
        return self._watched

    @property
    def answered(self) -> bool:
        """Whether the server has answered that one completely."""
        return self._answer_due is not None and self._answered >= self._answer_due

    def sent(self, data: bytes) -> None:
        """Take what the client sent."""
        self._client += data
        while not self._is_open and len(self._client) >= 8:
            length, code = (int.from_bytes(self._client[at : at + 4], "big") for at in (0, 4))
            if len(self._client) < length:
                return
            del self._client[:length]
            if code >> 16 == _STARTUP >> 16:
                self._is_open = True
                self._asked = 1
        if self._is_open:
            for kind, body in _messages(self._client):
                self._take(kind, body)

    def received(self, data: bytes) -> None:
        """Take what the server sent."""
        self._server += data
        self._answered += sum(kind == _READY for kind, _ in _messages(self._server))

    def _take(self, kind: int, body: bytes) -> None:
        if kind == _PARSE:
            name, text = body.split(b"\0", 2)[:2]
            self._statements[name] = text
        elif kind == _BIND:
            statement = body.split(b"\0", 2)[1]
            self._note(self._statements.get(statement, b""), body)
        elif kind == _QUERY:
            self._note(body, b"")
        if kind in (_SYNC, _QUERY, _CALL):
            self._asked += 1
            if self._watched and self._answer_due is None:
                self._answer_due = self._asked

    def _note(self, text: bytes, parameters: bytes) -> None:
        if not self._watched and self._watch(text, parameters):
            self._watched = True


def _messages(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the whole messages out of a buffer: a letter, the length, the body."""
    start = 0
    while len(buffer) - start >= 5:
        end = start + 1 + int.from_bytes(buffer[start + 1 : start + 5], "big")
        if len(buffer) < end:
            break
        yield buffer[start], bytes(buffer[start + 5 : end])
        start = end
    del buffer[:start]
