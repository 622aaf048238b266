"""The fields that nothing here acts on, and the one rule for them: a request is answered as it was meant, or refused.

    honoured    read by `protocol`, `options` or `service`, and followed
    HARMLESS    about billing, storage, routing, pace: accepted with any value, the answer is the same without them
    REFUSED     followed, they would change the answer: 400, unless the value asks for what is done anyway
    unknown     400, with the nearest name that is known

Null is the same as absent, for every name. A typing error (`max_token`) would otherwise change the answer and nobody
would see it; OpenAI refuses unknown names too, while vLLM takes them with a line in its log. Between them the tables
hold every field of OpenAI's chat and completions requests and of vLLM's (docs, 2026-11), and a test compares.

Fields of a message are data: all of them reach the chat template. Headers change nothing but `authorization`,
`content-type` and `content-encoding`; a query string is refused, since it would be a second place for fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest
from .fields import Fields, shown

HARMLESS = frozenset(
    (
        "model",  # checked before: the one that is served
        *("user", "safety_identifier", "metadata", "store", "service_tier"),  # billing, abuse, storage
        *(
            "prompt_cache_key",
            "prompt_cache_retention",
            "prompt_cache_options",
        ),  # prefixes are cached unasked
        *("request_id", "session_id", "stream_interval", "prediction"),  # names, pace
        *(
            "parallel_tool_calls",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
        ),  # go with what is refused
        *("truncation_side", "media_io_kwargs", "mm_processor_kwargs", "return_mm_kwargs"),  # so do these
    )
)


@dataclass(frozen=True)
class Refused:
    """Why a field is refused, as a sentence. `unless` are the values that ask for what is done anyway."""

    why: str
    unless: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        return any(value == same and type(value) is type(same) for same in self.unless)


_TOOLS = "This server calls no tools and no functions"
_GRAMMAR = "This server does not constrain its output to a grammar or schema yet"
_WHOLE = "Prompts are never cut here"
_TEXT = "This model reads and writes text only"
_SHAPE = "The answer has the shape of OpenAI's and no more"
_THINK = "This server does not tell a model's reasoning from its answer"
_ABSENT = "This server does not have what the field asks for"

REFUSED: Mapping[str, Refused] = {
    "tools": Refused(_TOOLS, ([],)),
    "tool_choice": Refused(_TOOLS, ("none", "auto")),
    "functions": Refused(_TOOLS, ([],)),
    "function_call": Refused(_TOOLS, ("none", "auto")),
    "web_search_options": Refused(_TOOLS),
    "modalities": Refused(_TEXT, (["text"],)),
    "audio": Refused(_TEXT),
    "moderation": Refused("This server judges neither prompts nor answers"),
    "verbosity": Refused("This server has no dial for length but max_tokens", ("medium",)),
    "reasoning_effort": Refused(_THINK, ("none",)),
    "include_reasoning": Refused(_THINK, (True,)),
    "thinking_token_budget": Refused(_THINK, (-1,)),
    "suffix": Refused("This server only continues a text and cannot fill a gap before a suffix", ("",)),
    "best_of": Refused("This server does not rank answers; ask for n and take the best"),
    "use_beam_search": Refused("This server samples and has no beam search", (False,)),
    "length_penalty": Refused("length_penalty belongs to beam search, which is not here", (1, 1.0)),
    "prompt_logprobs": Refused("This server gives log-probabilities of generated tokens only"),
    "logprob_token_ids": Refused(
        "This server gives the likeliest tokens' log-probabilities, not chosen ones"
    ),
    "prompt_embeds": Refused("This server takes text or token ids"),
    "truncate_prompt_tokens": Refused(_WHOLE),
    "chat_template": Refused("The chat template is the model's own; a stranger's is a program"),
    "continue_final_message": Refused(
        "A chat answer is a new message here; /v1/completions continues", (False,)
    ),
    "spaces_between_special_tokens": Refused("Tokens are joined as the tokenizer joins them", (True,)),
    "return_token_ids": Refused(_SHAPE, (False,)),
    "return_tokens_as_token_ids": Refused(_SHAPE, (False,)),
    "return_prompt_text": Refused(_SHAPE, (False,)),
    "return_token_offsets": Refused(_SHAPE, (False,)),
    "routed_experts_prompt_start": Refused(_SHAPE, (0,)),
    "watermarking": Refused(_ABSENT, (False,)),
    "repetition_detection": Refused(_ABSENT),
    "kv_transfer_params": Refused(_ABSENT),
    "ec_transfer_params": Refused(_ABSENT),
    "vllm_xargs": Refused(_ABSENT, ({},)),
    "structured_outputs": Refused(_GRAMMAR),
    "guided_json": Refused(_GRAMMAR),
    "guided_json_object": Refused(_GRAMMAR, (False,)),
    "guided_regex": Refused(_GRAMMAR),
    "guided_choice": Refused(_GRAMMAR),
    "guided_grammar": Refused(_GRAMMAR),
    "structural_tag": Refused(_GRAMMAR),
    "grammar": Refused(_GRAMMAR),  # llama.cpp's
    "json_schema": Refused(_GRAMMAR),  # llama.cpp's and SGLang's
    "regex": Refused(_GRAMMAR),  # SGLang's
    "ebnf": Refused(_GRAMMAR),  # SGLang's
}


# Completions read these.
OF_CHAT: Mapping[str, Refused] = {
    "echo": Refused("A chat answer is a new message and does not repeat the last one", (False,)),
    "add_special_tokens": Refused("The chat template writes the special tokens", (False,)),
}


def refuse_the_rest(fields: Fields) -> None:
    """Look at every field that was not read so far, so call it last. BadRequest for what cannot be followed."""
    refused, names = {**REFUSED, **OF_CHAT}, fields.unread()
    for name in names:
        if (rule := refused.get(name)) and not rule.takes(fields.get(name)):
            raise BadRequest(f"{rule.why}; leave {name} out.", param=name)
    for name in names:
        if name not in HARMLESS and name not in refused:
            near = difflib.get_close_matches(name[:40], fields.read() | HARMLESS | refused.keys(), 1, 0.75)
            cure = f"did you mean {near[0]}?" if near else "leave it out."
            raise BadRequest(
                f"There is no field {shown(name)} here, and an answer without it might not be what you asked for; "
                f"{cure}",
                param=name[:60],
            )
