"""The HTTP server: OpenAI's endpoints over one engine, as a Starlette application.

    POST /v1/chat/completions   POST /v1/completions      the model's answers, whole or streamed
    GET  /v1/models             GET  /v1/models/{id}      what is served
    POST /tokenize              POST /detokenize          text to ids and back
    GET  /health                GET  /metrics             for load balancers and Prometheus

Whatever is sent, the answer is the thing asked for or OpenAI's error object with a sentence in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..extras import extra

with extra("serve"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response
    from starlette.routing import Route

from ..io.tokenizer import TextTokenizer
from .api.access import RequireKey
from .api.errors import ApiError, BadRequest, NotFound
from .api.service import Service, Settings
from .api.sse import JsonResponse

__all__ = ["Settings", "create_app"]


def create_app(
    engine: Any, tokenizer: TextTokenizer, name: str, settings: Settings | None = None
) -> Starlette:
    """The application; `app.state.service` is its `Service`. The engine's thread lives as long as its lifespan."""
    settings = settings or Settings()
    service = Service(engine, tokenizer, name, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.worker.drain(0.0 if service.worker.draining else settings.grace)

    middleware = [Middleware(RequireKey, key=settings.api_key)] if settings.api_key else []
    if settings.origins:
        cors = Middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            Route("/v1/models", service.models),
            Route("/v1/models/{id:path}", service.model),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/completions", service.complete, methods=["POST"]),
            Route("/tokenize", service.tokenize, methods=["POST"]),
            Route("/detokenize", service.detokenize, methods=["POST"]),
            Route("/health", service.health),
            Route("/metrics", service.exposition),
        ],
        middleware=middleware,
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.body(), error.status, error.headers)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """Starlette's own errors: no such path, and a path that knows another method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        found: ApiError = NotFound(
            "There is nothing at this path. Requests go to /v1/chat/completions or /v1/completions; "
            "/v1/models, /tokenize, /detokenize, /health and /metrics are here too."
        )
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        found = BadRequest(
            f"This path takes {allowed}, not {http.method[:20]}.", status=405, code="method_not_allowed"
        )
    else:
        found = BadRequest(error.detail, status=error.status_code)
    return JsonResponse(found.body(), found.status, error.headers)


async def _unexpected(http: HttpRequest, error: Exception) -> Response:
    """A bug of ours. Starlette raises it again after this answer, so the log has the trace and the client has not."""
    return JsonResponse(ApiError("The server failed on this request; its log says why.").body(), 500)
