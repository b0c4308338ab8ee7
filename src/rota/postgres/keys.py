"""Names that must mean the same on every machine and in every release: advisory lock keys and channels.

Both come from a digest of `rota/1/<schema>/<kind>/<name>`, computed here and pinned by golden tests: PostgreSQL's own
hash functions are 32 bits wide and may change between versions.
"""

from __future__ import annotations

import hashlib

__all__ = ["channel", "lock_key"]


def _digest(schema: str, kind: str, name: str) -> bytes:
    return hashlib.sha256(f"rota/1/{schema}/{kind}/{name}".encode()).digest()


def lock_key(schema: str, kind: str, name: str) -> int:
    """A signed 64-bit advisory lock key."""
    return int.from_bytes(_digest(schema, kind, name)[:8], "big", signed=True)


def channel(schema: str, name: str) -> str:
    """A NOTIFY channel: within 63 bytes whatever the schema is called."""
    return f"rota_{_digest(schema, 'channel', name)[:8].hex()}"
