"""The files that pages load: read once, served under a name that changes with them, so that a browser may keep them for good."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

__all__ = ["Assets"]

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Assets:
    """All of `static/`. Modules import each other by relative names, so it is the folder that carries the digest."""

    def __init__(self, folder: Path = Path(__file__).parent / "static") -> None:
        self._files = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix in _TYPES}
        together = hashlib.sha256()
        for name, content in self._files.items():
            together.update(f"{name}\0{len(content)}\0".encode() + content)
        self.digest = together.hexdigest()[:12]

    def path(self, name: str) -> str:
        """Where a file is found, below the dashboard."""
        assert name in self._files, f"there is no file {name!r}"
        return f"static/{self.digest}/{name}"

    async def serve(self, request: Request) -> Response:
        name = request.path_params["name"]
        # an old page may ask for the files of a release that is gone: the new ones are better than none, and not to be kept
        current = request.path_params["digest"] == self.digest
        if name not in self._files:
            return PlainTextResponse("There is no such file.", 404)
        kept = "private, max-age=31536000, immutable" if current else "no-store"
        return Response(self._files[name], media_type=_TYPES[Path(name).suffix], headers={"cache-control": kept})
