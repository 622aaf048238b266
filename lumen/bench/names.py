"""What a measured quantity is called: a name that says everything the number depends on but the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_WORD = re.compile(r"[^\s=/]+")
_FIELDS = ("batch", "context", "dtype", "kernel", "cache")


@dataclass(frozen=True, order=True)
class Name:
    """The name of a quantity. Two measurements with the same name are the same quantity, wherever they are quoted.

    `phase` is "decode" (one step), "prefill", or another thing that is timed. `context` counts the positions that a
    new token sees, itself included; for a prefill it is the prompt's length. `kernel` is which matrix kernel the
    model's linear layers use. What else the number depends on goes into `extra`. Words hold no space, "=" or "/".

    >>> str(Name("smollm2-135m", "decode", batch=8, context=512))
    'smollm2-135m/decode batch=8 context=512 dtype=fp32 kernel=default cache=static'
    """

    model: str
    phase: str
    batch: int = 1
    context: int = 1
    dtype: str = "fp32"
    kernel: str = "default"
    cache: str = "static"
    extra: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        given = dict(self.extra)
        object.__setattr__(self, "extra", tuple(sorted((str(k), str(v)) for k, v in given.items())))
        words = [self.model, self.phase, self.dtype, self.kernel, self.cache, *sum(self.extra, ())]
        for word in words:
            if not isinstance(word, str) or not _WORD.fullmatch(word):
                raise ValueError(f"A word of a name holds no space, = or / and is not empty, got {word!r}.")
        if len(given) != len(self.extra) or set(given) & set(_FIELDS):
            raise ValueError(f"An extra field has a name of its own, got {sorted(given)}.")
        if self.batch < 1 or self.context < 1:
            raise ValueError(f"batch and context are at least 1, got {self.batch} and {self.context}.")

    def __str__(self) -> str:
        pairs = [(f, getattr(self, f)) for f in _FIELDS] + list(self.extra)
        return f"{self.model}/{self.phase} " + " ".join(f"{key}={value}" for key, value in pairs)

    @classmethod
    def parse(cls, text: str) -> Name:
        """The name of a canonical text; ValueError for any other."""
        try:
            head, *pairs = text.split(" ")
            model, phase = head.split("/")
            given = dict(pair.split("=") for pair in pairs)
            batch, context, dtype, kernel, cache = (given.pop(f) for f in _FIELDS)
            name = cls(model, phase, int(batch), int(context), dtype, kernel, cache, tuple(given.items()))
        except (ValueError, KeyError):
            raise ValueError(f"{text!r} is not the name of a quantity.") from None
        if str(name) != text:
            raise ValueError(f"{text!r} is not in its canonical form, {str(name)!r}.")
        return name

    def short(self) -> str:
        """For tables: what is as usual (fp32, the default kernel, a static cache, one row) is left out.

        >>> Name("smollm2-135m", "decode", context=256).short()
        'smollm2-135m decode, context 256'
        """
        size = "prompt" if self.phase == "prefill" else "context"
        parts = [f"{self.model} {self.phase}", f"batch {self.batch}" if self.batch > 1 else ""]
        parts += [f"{size} {self.context}", self.dtype if self.dtype != "fp32" else ""]
        parts += [f"kernel {self.kernel}" if self.kernel != "default" else ""]
        parts += [self.cache if self.cache != "static" else "", *(f"{k} {v}" for k, v in self.extra)]
        return ", ".join(part for part in parts if part)
