"""What each endpoint does, from checked fields to the answer.

Whatever is sent, the answer is the thing asked for or OpenAI's error object with a sentence in it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ...io.chat import BadTemplate
from ...io.tokenizer import TextTokenizer
from ...serve.kv_cache import Kept
from ...version import __version__
from ..metrics import Metrics
from ..worker import EngineWorker
from .errors import ApiError, BadRequest
from .expand import engine_requests, word_rules
from .fields import Fields, token_ids
from .intake import check_model, read_fields, refuse_query
from .known import refuse_the_rest
from .options import ModelCard, Options
from .protocol import Chat, PlainText, chat_request, completion_request, read_chat, read_plain
from .respond import Reply, Usage
from .shapes import ChatShape, CompletionShape, Shape
from .sse import EventStream, JsonResponse, until_gone

COMPLETION_TOKENS = 16  # OpenAI's default length of a plain completion
_LONG_TEXT = 20_000  # characters above which tokenizing would be felt by the other clients of the loop


@dataclass(frozen=True)
class Settings:
    """What the operator chooses. Bytes and seconds."""

    max_body: int = 4 * 2**20
    max_queue: int = 256
    grace: float = 30.0  # for running requests after a signal to stop
    patience: float = 60.0  # with a client that reads nothing
    api_key: str | None = None
    origins: tuple[str, ...] = ()  # web pages that may call; none by default
    kept: Kept | None = None  # how the cache is kept, for /metrics


class Service:
    """What every endpoint needs: the model's card, its tokenizer, the engine's thread, the counters."""

    def __init__(self, engine: Any, tokenizer: TextTokenizer, name: str, settings: Settings):
        self.tokenizer, self.settings = tokenizer, settings
        config, room = engine.model.config, engine.scheduler.room
        self.card = ModelCard(
            id=name,
            vocab_size=config.vocab_size,
            max_len=config.max_positions if room is None else min(config.max_positions, room),
            eos_ids=frozenset(config.eos_ids),
            most_sequences=engine.scheduler.limits.max_seqs + settings.max_queue,
        )
        self.metrics = Metrics(name, lambda: self.worker.state, settings.kept)
        self.worker = EngineWorker(engine, self.card.most_sequences, self.metrics)
        self.created = int(time.time())
        self.version = f"lumen-{__version__}"

    # What is served

    async def models(self, http: HttpRequest) -> Response:
        refuse_query(http)
        return JsonResponse({"object": "list", "data": [self._model()]})

    async def model(self, http: HttpRequest) -> Response:
        refuse_query(http)
        check_model(Fields({"model": http.path_params["id"]}), self.card.id)
        return JsonResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.card.id,
            "object": "model",
            "created": self.created,
            "owned_by": "lumen",
            "root": self.card.id,
            "parent": None,
            "max_model_len": self.card.max_len,
        }

    async def health(self, http: HttpRequest) -> Response:
        self.worker.check()
        return JsonResponse({"status": "ok"})

    async def exposition(self, http: HttpRequest) -> Response:
        return Response(self.metrics.text(), media_type=Metrics.content_type)

    # Answers

    async def chat(self, http: HttpRequest) -> Response:
        fields = await self._fields(http)
        asked = chat_request(fields, self.card)
        ids = await self._chat_ids(asked.chat)
        return await self._answer(http, ChatShape(self.tokenizer, asked.options), [ids], asked.options, None)

    async def complete(self, http: HttpRequest) -> Response:
        fields = await self._fields(http)
        asked = completion_request(fields, self.card)
        ids = [await self._text_ids(p, asked.how) if isinstance(p, str) else p for p in asked.prompts]
        shape = CompletionShape(self.tokenizer, asked.options, asked.prompts)
        return await self._answer(http, shape, ids, asked.options, COMPLETION_TOKENS)

    async def _fields(self, http: HttpRequest, model_required: bool = True) -> Fields:
        self.worker.check()
        fields = await read_fields(http, self.settings.max_body)
        check_model(fields, self.card.id, model_required)
        return fields

    async def _answer(
        self,
        http: HttpRequest,
        shape: Shape,
        prompts: list[list[int]],
        options: Options,
        default_tokens: int | None,
    ) -> Response:
        name = f"{shape.prefix}-{uuid.uuid4().hex}"
        rules = word_rules(options, self.tokenizer, self.card)
        requests = engine_requests(name, prompts, options, self.card, default_tokens, rules)
        answers = self.worker.submit(name, requests)
        usage = Usage([len(ids) for ids in prompts], options.n)
        reply = Reply(shape, options, answers, usage, self.card.id, self.version)
        headers = {"x-request-id": name}
        if options.stream:
            try:
                await answers.accepted()
            except BaseException:
                answers.close()
                raise
            return EventStream(reply.events(), answers.close, self.settings.patience, headers)
        async with answers:
            whole = await until_gone(http.receive, reply.whole())
        return Response(status_code=204) if whole is None else JsonResponse(whole, headers=headers)

    # Text and ids

    async def tokenize(self, http: HttpRequest) -> Response:
        """The ids of `prompt`, or of `messages` in the model's chat template; with `return_token_strs` their text."""
        fields = await self._fields(http, model_required=False)
        named = fields.flag("return_token_strs", False)
        if fields.get("messages") is not None:
            if fields.get("prompt") is not None:
                raise BadRequest("Send prompt or messages, not both.", param="prompt")
            chat = read_chat(fields)
            refuse_the_rest(fields)
            ids = await self._chat_ids(chat)
        else:
            prompt = fields.required("prompt", '{"prompt": "Once upon a time"}')
            if not isinstance(prompt, str):
                raise BadRequest("prompt must be a string.", param="prompt")
            how = read_plain(fields)
            refuse_the_rest(fields)
            ids = await self._text_ids(prompt, how)
        strings = [self.tokenizer.token_bytes(i).decode(errors="replace") for i in ids] if named else None
        found = {"count": len(ids), "max_model_len": self.card.max_len, "tokens": ids, "token_strs": strings}
        return JsonResponse(found)

    async def detokenize(self, http: HttpRequest) -> Response:
        fields = await self._fields(http, model_required=False)
        ids = token_ids(fields.required("tokens", '{"tokens": [1, 2]}'), "tokens", self.card.vocab_size)
        refuse_the_rest(fields)
        return JsonResponse({"prompt": self.tokenizer.decode(ids, skip_special=False)})

    async def _text_ids(self, text: str, how: PlainText) -> list[int]:
        encode = partial(
            self.tokenizer.encode, text, add_special=how.add_special, parse_special=how.parse_special
        )
        return await self._ids("prompt", encode, apart=len(text) > _LONG_TEXT)

    async def _chat_ids(self, chat: Chat) -> list[int]:
        """The messages in the model's chat template: always in another thread, for a template is a program."""
        encode = partial(
            self.tokenizer.apply_chat, chat.messages, chat.add_generation_prompt,
            documents=chat.documents, extra=chat.names, parse_special=chat.parse_special,
        )  # fmt: skip
        return await self._ids("messages", encode, apart=True)

    async def _ids(self, param: str, encode: Callable[[], list[int]], apart: bool) -> list[int]:
        """What `encode()` gives, `apart` from the event loop's thread or in it."""
        try:
            return await anyio.to_thread.run_sync(encode) if apart else encode()
        except BadTemplate as error:  # the operator's file, not the client's doing
            raise ApiError(str(error), code="chat_template_failed") from None
        except ValueError as error:
            raise BadRequest(str(error), param=param) from None
