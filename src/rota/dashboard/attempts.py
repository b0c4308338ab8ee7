"""How often someone may try credentials: a few times at once, then one each ten seconds, and never by claiming to be another.

Tries are counted by the address that a request came from, which nobody can make up. What a proxy says of it counts only where the
server was told to believe that proxy (uvicorn's `--forwarded-allow-ips`), and then has put it in the place of its own. Behind one
that it does not believe, all who ask have one address: so who was let in from there before is let in again, however often others try.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from typing import Any

from rota.clock import boottime

__all__ = ["Attempts"]

# Wrong tries that cost nothing: people mistype.
_FREE = 5
# After them, one is looked at in so many seconds: some thousand a day, which finds no password that is not on a list.
_SECONDS_EACH = 10.0
# Addresses, and who was let in from where: the oldest is forgotten first, so that who fills this up has to own as many.
_REMEMBERED = 10_000


class Attempts:
    """Tries by address, in constant memory. Belongs to one process."""

    def __init__(self) -> None:
        # when all tries of an address will be forgotten
        self._until: OrderedDict[str, float] = OrderedDict()
        self._let_in: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait(self, address: str) -> int:
        """How many seconds until a try from there is looked at; 0 if it is now."""
        left = self._until.get(_network(address), 0.0) - boottime() - (_FREE - 1) * _SECONDS_EACH
        return max(0, math.ceil(left))

    def failed(self, address: str) -> None:
        network = _network(address)
        self._until[network] = max(boottime(), self._until.pop(network, 0.0)) + _SECONDS_EACH
        _forget(self._until)

    def succeeded(self, address: str, name: str) -> None:
        self._let_in[_network(address), name] = None
        self._let_in.move_to_end((_network(address), name))
        _forget(self._let_in)

    def was_let_in(self, address: str, name: str) -> bool:
        return (_network(address), name) in self._let_in


def _forget(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)


def _network(address: str) -> str:
    """Whoever has one address of version 6 has 2 to the power of 64 of them: all of these count as one."""
    try:
        read = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(read, ipaddress.IPv6Address):
        return str(read.ipv4_mapped or ipaddress.ip_network((read, 64), strict=False))
    return str(read)
