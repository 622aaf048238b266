"""What a client may ask of OpenAI's two generating endpoints, checked before the engine hears of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .errors import BadRequest
from .fields import Fields, shown, token_ids
from .options import INT64, MOST_CHOICES, ModelCard, Options, read_options

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatRequest:
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    options: Options


@dataclass(frozen=True)
class CompletionRequest:
    """`prompts` hold text or token ids; each gets `options.n` answers."""

    prompts: list[str | list[int]]
    options: Options


def chat_request(fields: Fields, card: ModelCard) -> ChatRequest:
    messages = read_messages(fields)
    limit = fields.integer("max_tokens", None, 1, INT64)
    limit = fields.integer("max_completion_tokens", limit, 1, INT64)
    logprobs = None
    wanted = fields.integer("top_logprobs", None, 0, 20)
    if fields.flag("logprobs", False):
        logprobs = wanted or 0
    elif wanted:
        raise BadRequest("top_logprobs needs logprobs: true beside it.", param="top_logprobs")
    opening = fields.flag("add_generation_prompt", True)
    return ChatRequest(messages, opening, read_options(fields, card, limit, logprobs))


def completion_request(fields: Fields, card: ModelCard) -> CompletionRequest:
    prompts = _prompts(fields.required("prompt", '{"prompt": "Once upon a time"}'), card)
    limit = fields.integer("max_tokens", None, 1, INT64)
    logprobs = fields.integer("logprobs", None, 0, 5)
    options = replace(read_options(fields, card, limit, logprobs), echo=fields.flag("echo", False))
    best_of = fields.integer("best_of", options.n, 1, MOST_CHOICES)
    if best_of != options.n:
        raise BadRequest("best_of is not offered; ask for n choices and take the best.", param="best_of")
    if options.echo and logprobs is not None:
        raise BadRequest(
            "echo with logprobs asks for log-probabilities of the prompt, which this server does not compute; "
            "leave one of the two out.",
            param="echo",
        )
    if len(prompts) * options.n > card.most_sequences:
        raise BadRequest(
            f"{len(prompts)} prompts with n = {options.n} are {len(prompts) * options.n} sequences and this server "
            f"holds {card.most_sequences} at a time; send fewer prompts in one request.",
            param="prompt",
        )
    return CompletionRequest(prompts, options)


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """The messages with contents joined to one string each. A list of parts is joined by newlines, as vLLM does."""
    example = '{"messages": [{"role": "user", "content": "Hello"}]}'
    found = fields.required("messages", example)
    if not isinstance(found, list) or not found:
        raise BadRequest(f"messages must be a list as in {example}, not {shown(found)}.", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(found)]


def _message(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadRequest(f"{at} must be an object with role and content, not {shown(message)}.", param=at)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise BadRequest(
            f"{at}.role must be one of {', '.join(_ROLES)}, not {shown(role)}.", param=f"{at}.role"
        )
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{at}.content[{i}]") for i, part in enumerate(content))
    if content is None and role == "assistant":
        content = ""  # an answer that was only a tool call
    if not isinstance(content, str):
        raise BadRequest(f"{at}.content must be a string, not {shown(content)}.", param=f"{at}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _part(part: Any, at: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = shown(part.get("type")) if isinstance(part, dict) else shown(part)
        raise BadRequest(
            f'{at} must be {{"type": "text", "text": "..."}}, this model reads text only; got {kind}.',
            param=at,
        )
    return part["text"]


def _prompts(value: Any, card: ModelCard) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) for item in value):
            return [token_ids(item, f"prompt[{i}]", card.vocab_size) for i, item in enumerate(value)]
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return [token_ids(value, "prompt", card.vocab_size)]
    raise BadRequest(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids, "
        f"not {shown(value) if not isinstance(value, list) or not value else 'a list of something else'}.",
        param="prompt",
    )
