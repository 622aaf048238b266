"""What `generate` gives back for one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Completion:
    """What one prompt became. Times are seconds since `generate` was called.

    `tokens` are the sampled ids without the end-of-sequence token; `text` is their decoding, cut before a stop
    string. `finish_reason` is "stop" (end of sequence or stop string) or "length". `num_cached_tokens` of the
    prompt came from a prefix cache. `token_times[i]` is when sampled token i was known; an end-of-sequence token
    has its time too. Of `num_draft_tokens` that were verified, `num_accepted_tokens` are part of the answer.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds; None when no token was made."""
        return self.token_times[0] if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token: the mean gap after the first, in seconds; None below two tokens."""
        n = len(self.token_times)
        return (self.token_times[-1] - self.token_times[0]) / (n - 1) if n > 1 else None
