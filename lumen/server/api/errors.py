"""Everything that can go wrong between a client and the server, as one exception and one JSON shape.

The shape is OpenAI's, so that every client library raises its own class for it:

    {"error": {"message": "a sentence with the limit and the cure", "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer with an HTTP status of 400 or more. `param` names the field of the request that is wrong."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.message, self.param, self.headers = message, param, headers or {}
        self.code = code or self.code
        self.status = status or self.status

    def body(self) -> dict[str, Any]:
        """The JSON object that a client gets, as an answer or as an event of a stream."""
        found = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": found}


class BadRequest(ApiError):
    """The request is wrong in itself: sending it again will not help."""

    status, type = 400, "invalid_request_error"


class TooLong(BadRequest):
    """The prompt and the answer asked for do not fit into the model's context."""

    code = "context_length_exceeded"


class WrongKey(ApiError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class NotFound(ApiError):
    status, type = 404, "not_found_error"


class TooLarge(BadRequest):
    """The body has more bytes than the server reads."""

    status, code = 413, "request_too_large"


class Busy(ApiError):
    """The queue is full: the same request may succeed a little later, so the answer says when to try again."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, message: str, retry_after: int = 1):
        super().__init__(message, headers={"retry-after": str(retry_after)})


class Unavailable(ApiError):
    """The server is on its way down, or its engine is."""

    status, type, code = 503, "service_unavailable_error", "service_unavailable"


class EngineFailed(ApiError):
    """The engine raised in the middle of a request. The cause is in the log, not in the answer."""

    status, type, code = 500, "server_error", "engine_failed"
