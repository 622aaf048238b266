"""Who may call: a bearer key, compared in constant time, for everything but the two endpoints that machines watch."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import WrongKey
from .sse import to_json

OPEN = ("/health", "/metrics")


class RequireKey:
    """ASGI middleware. A plain `==` would take longer the more of a guessed key is right."""

    def __init__(self, app: ASGIApp, key: str):
        self._app, self._wanted = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            scheme, _, key = given.partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._wanted):
                await self._refuse(send, bool(given))
                return
        await self._app(scope, receive, send)

    async def _refuse(self, send: Send, given: bool) -> None:
        sentence = "The API key is wrong" if given else "An API key is needed"
        body = to_json(
            WrongKey(f"{sentence}; send the header 'authorization: Bearer KEY' with the right one.").body()
        )
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})
