"""Whoever visits a dashboard in a test: a browser as far as cookies, forms and headers go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

PREFIX = "/tools/rota"


class Visitor:
    """A client of a dashboard that is mounted somewhere below its host."""

    def __init__(
        self,
        dashboard: Any,
        *,
        address: str = "127.0.0.1",
        host: str = "localhost:8000",
        auth: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        site = Starlette(routes=[Mount(PREFIX, dashboard)])
        transport = httpx.ASGITransport(site, client=(address, 50_000), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(
            transport=transport, base_url=f"http://{host}", auth=auth, headers=dict(headers or {})
        )
        self._given_back = ""  # the page that a form came back with, as it could not be done

    async def get(self, path: str = "", **options: Any) -> httpx.Response:
        return await self.client.get(f"{PREFIX}/{path}", **options)

    async def token(self, path: str) -> str:
        """The token of the forms of a page."""
        page = await self.get(path)
        found = re.search(r'name="_token" value="([0-9a-f]+)"', page.text)
        assert found is not None, f"{path} has no form"
        return found[1]

    async def act(
        self,
        path: str,
        action: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: str,
    ) -> httpx.Response:
        """Send a form of this page, as a browser on it would."""
        form = {"_token": await self.token(path) if token is None else token, "action": action, **fields}
        sent = {"sec-fetch-site": "same-origin"} if headers is None else dict(headers)
        answer = await self.client.post(f"{PREFIX}/{path}", data=form, headers=sent)
        self._given_back = answer.text if answer.status_code != 303 else ""
        return answer

    async def said(self, path: str) -> str:
        """What the page says of what was done last, or why it was not."""
        page = self._given_back or (await self.get(path)).text
        self._given_back = ""
        found = re.search(r'<p class="say (?:ok|trouble)" role="(?:status|alert)">([^<]*)</p>', page)
        return found[1] if found else ""
