"""From the bytes of an HTTP request to checked fields: content type, size, time, JSON."""

from __future__ import annotations

import anyio
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from .errors import BadRequest, NotFound, TooLarge
from .fields import Fields, parse, shown

BODY_SECONDS = 30.0  # a body that takes longer than this to arrive is given up
_LINGER = (
    16  # a body of up to this many times the limit is read to its end, so that the client sees the answer
)


async def read_fields(request: HttpRequest, max_body: int) -> Fields:
    """The JSON object in the request's body. Raises BadRequest (400, 408 or 415) or TooLarge."""
    refuse_query(request)
    kind, _, rest = request.headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if kind != "application/json" and not kind.endswith("+json"):
        # Also a defence: a web page may post other types to localhost without asking, but never this one.
        raise BadRequest(
            f"The content type must be application/json, not {shown(kind)}; send the header "
            "'content-type: application/json'.",
            status=415,
            code="unsupported_media_type",
        )
    if (charset := _charset(rest)) not in ("utf-8", "utf8", "us-ascii"):
        raise BadRequest(
            f"The body is read as UTF-8, not as {shown(charset)}; send it so, with no charset in content-type.",
            status=415,
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadRequest("Send the body without content-encoding.", status=415, code="unsupported_media_type")
    try:
        with anyio.fail_after(BODY_SECONDS):
            return Fields(parse(await _body(request, max_body)))
    except ClientDisconnect:  # nobody reads this, but it is no failure of ours
        raise BadRequest("The client closed the connection before its body was complete.") from None
    except TimeoutError:
        raise BadRequest(f"The body did not arrive within {BODY_SECONDS:.0f} seconds.", status=408) from None


def _charset(parameters: str) -> str:
    """The charset among a content type's parameters, UTF-8 without one."""
    named = (part.partition("=") for part in parameters.split(";"))
    return next((value.strip().strip('"') for name, _, value in named if name.strip() == "charset"), "utf-8")


async def _body(request: HttpRequest, limit: int) -> bytes:
    """The body if it is within the limit. What is beyond is counted and thrown away, never kept."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > _LINGER * limit:
            break
    if size > limit:
        raise TooLarge(
            f"The body has more than the {limit} bytes that this server reads; send less, or start the server "
            "with a larger --max-body."
        )
    return b"".join(parts)


def refuse_query(request: HttpRequest) -> None:
    """No path reads a query string, so one that is sent asks for something that would not come."""
    if request.url.query:
        raise BadRequest("This path reads no query string; what you ask for belongs in the JSON of a body.")


def check_model(fields: Fields, served: str, required: bool = True) -> None:
    """The request must name the model that is served."""
    value = fields.required("model", f'{{"model": "{served}"}}') if required else fields.get("model")
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"model must be a string, not {shown(value)}.", param="model")
    if value is not None and value != served:
        raise NotFound(
            f"There is no model {shown(value)} here; this server has {served}.",
            param="model",
            code="model_not_found",
        )
