"""Which release of Rota this is; members tell it to each other."""

from __future__ import annotations

__all__ = ["RELEASE"]

RELEASE = "0.1.0"
