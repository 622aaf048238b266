"""What a client may ask of OpenAI's two generating endpoints, checked before the engine hears of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .errors import BadRequest
from .fields import Fields, parse, shown, token_ids
from .known import refuse_the_rest
from .options import INT64, MOST_CHOICES, ModelCard, Options, read_options

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Chat:
    """What the chat template gets: `documents` and further names (`chat_template_kwargs`) beside the messages."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    documents: list[dict[str, Any]] | None
    names: dict[str, Any] | None
    parse_special: bool  # control tokens that are spelled in it count too


@dataclass(frozen=True)
class PlainText:
    """How a text is encoded; as in `TextTokenizer.encode`."""

    add_special: bool
    parse_special: bool


@dataclass(frozen=True)
class ChatRequest:
    chat: Chat
    options: Options


@dataclass(frozen=True)
class CompletionRequest:
    """`prompts` hold text or token ids; each gets `options.n` answers. `how` to encode text."""

    prompts: list[str | list[int]]
    how: PlainText
    options: Options


def chat_request(fields: Fields, card: ModelCard) -> ChatRequest:
    chat = read_chat(fields)
    limit = fields.integer("max_tokens", None, 1, INT64)
    limit = fields.integer("max_completion_tokens", limit, 1, INT64)
    logprobs = None
    wanted = fields.integer("top_logprobs", None, 0, 20)
    if fields.flag("logprobs", False):
        logprobs = wanted or 0
    elif wanted:
        raise BadRequest("top_logprobs needs logprobs: true beside it.", param="top_logprobs")
    options = read_options(fields, card, limit, logprobs)
    refuse_the_rest(fields)
    return ChatRequest(chat, options)


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
    how = read_plain(fields)
    refuse_the_rest(fields)
    return CompletionRequest(prompts, how, options)


def read_plain(fields: Fields) -> PlainText:
    """A prompt is written by who formats it, so its control tokens count unless `parse_special` is false."""
    return PlainText(fields.flag("add_special_tokens", True), fields.flag("parse_special", True))


def read_chat(fields: Fields) -> Chat:
    """A message is often written by somebody else: control tokens in it are text unless `parse_special` is true."""
    documents, names = fields.get("documents"), fields.get("chat_template_kwargs")
    if documents is not None and not (
        isinstance(documents, list) and all(isinstance(d, dict) for d in documents)
    ):
        raise BadRequest(f"documents must be a list of objects, not {shown(documents)}.", param="documents")
    if names is not None and not isinstance(names, dict):
        raise BadRequest(
            f"chat_template_kwargs must be an object, not {shown(names)}.", param="chat_template_kwargs"
        )
    opening, parse_special = fields.flag("add_generation_prompt", True), fields.flag("parse_special", False)
    return Chat(read_messages(fields), opening, documents, names, parse_special)


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """The messages as the chat template gets them: whole but for what is null, each content joined to one string.

    A list of parts is joined by newlines, and the arguments of tool calls become objects, as in vLLM: templates expect
    both so.
    """
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
    if message.get("audio") is not None:
        raise BadRequest(f"{at}.audio: this model reads text only; leave it out.", param=f"{at}.audio")
    found = {name: value for name, value in message.items() if value is not None}
    found |= {"role": "system" if role == "developer" else role, "content": content}
    if "tool_calls" in found:
        found["tool_calls"] = _calls(found["tool_calls"], f"{at}.tool_calls")
    return found


def _calls(calls: Any, at: str) -> list[dict[str, Any]]:
    """Tool calls of an earlier answer, their `arguments` from JSON to an object."""
    if not isinstance(calls, list):
        raise BadRequest(f"{at} must be a list, not {shown(calls)}.", param=at)
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(
                f'{at}[{i}] must be as in {{"type": "function", "function": {{"name": "f", "arguments": "{{}}"}}}}.',
                param=f"{at}[{i}]",
            )
        arguments = function.get("arguments") or {}
        try:
            arguments = parse(arguments.encode()) if isinstance(arguments, str) else arguments
        except BadRequest as error:
            raise BadRequest(
                f"{at}[{i}].function.arguments: {error.message}", param=f"{at}[{i}].function.arguments"
            ) from None
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


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
