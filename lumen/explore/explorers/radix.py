"""The radix tree explorer: how a prefix cache grows, splits and forgets, request by request.

The Python side is no imitation: it drives `lumen.cache.RadixPrefix` over a `BlockPool`, with words for tokens, and
the JavaScript is held to what that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lumen.cache.pool import BlockPool
from lumen.cache.radix import RadixPrefix
from lumen.explore.explorers.widget import JSWidget

PAGES, ROOMS, CLOCKS = (1, 2, 4), (24, 32, 48, 96), ("none", "top", "end")

_TICKETS = "You sell train tickets . Be brief ."
_OSLO = f"{_TICKETS} From Rome to Oslo ?"
_PARIS = f"{_TICKETS} From Rome to Paris ?"
REQUESTS = (
    (_OSLO, "Twice a day ."),
    (_PARIS, "Every hour ."),
    (f"{_OSLO} Twice a day . And back ?", "Also twice ."),
    (f"{_TICKETS} Any seats left ?", "A few ."),
    (_OSLO, "Twice a day ."),
    ("You sell boat tickets . Be brief . From Rome to Oslo ?", "There is no boat ."),
    (f"{_PARIS} Every hour . And to Nice ?", "Once a day ."),
)


@dataclass(frozen=True)
class Step:
    """The cache after one request. `held` + `run` are the tokens of its prompt; `evicted`, `remembered` are blocks.

    SGLang calls a block a page, and so do the names below.

    `tree` lists the nodes from the top, children behind their parent: (depth, the words of each page).
    """

    held: int
    run: int
    evicted: int
    remembered: int
    tree: list[tuple[int, list[str]]]


def with_clock(requests: Sequence[tuple[str, str]], where: str) -> list[tuple[str, str]]:
    """The requests with the time of day as first or last word of the prompt ("top", "end"), or as they are ("none")."""
    if where not in CLOCKS:
        raise ValueError(f"the clock stands at one of {', '.join(CLOCKS)}, not {where!r}")
    if where == "none":
        return list(requests)
    times = [f"10:{minute:02}" for minute in range(1, len(requests) + 1)]
    return [
        (f"{time} {prompt}" if where == "top" else f"{prompt} {time}", answer)
        for time, (prompt, answer) in zip(times, requests, strict=True)
    ]


def replay(requests: Sequence[tuple[str, str]], page: int, room: int) -> list[Step]:
    """Serve (prompt, answer) pairs one after the other, a word a token, from a pool of `room` tokens.

    The answer's last token is never run, so nothing is kept for it. The twin of `replay` in radix_tree.js.
    """
    pool = BlockPool(max(room // page, 1), page)
    prefix, steps = RadixPrefix(pool), []
    for prompt, answer in requests:
        asked = prompt.split()
        tokens = asked + answer.split()[:-1]
        blocks = prefix.match(asked)  # type: ignore[arg-type]
        held, need = len(blocks) * page, -(-len(tokens) // page) - len(blocks)
        if need + len(blocks) > pool.num_blocks:
            pool.release(blocks)
            raise ValueError(
                f"a request of {len(tokens)} tokens needs {need + len(blocks)} pages of {page}, and the cache has "
                f"{pool.num_blocks}; make room for the longest request"
            )
        evicted = prefix.evict(need - pool.num_free) if need > pool.num_free else 0
        blocks += pool.allocate(need)
        prefix.insert(tokens, blocks)  # type: ignore[arg-type]
        pool.release(blocks)
        steps.append(Step(held, len(asked) - held, evicted, len(prefix.blocks()), list(_nodes(prefix))))
    return steps


def _nodes(prefix: RadixPrefix) -> Iterator[tuple[int, list[str]]]:
    waiting = [(-1, root) for root in prefix._roots.values()]
    while waiting:
        depth, node = waiting.pop()
        if depth >= 0:
            yield depth, [" ".join(map(str, words)) for words in node.pages]
        waiting += [(depth + 1, child) for child in reversed(node.children.values())]


class RadixTree(JSWidget):
    """A radix tree that grows by one request a click. Sliders set page size and room, a switch adds a clock.

    `requests` are (prompt, answer) pairs of words separated by spaces; the default is a ticket office.

    >>> RadixTree(page=2, room=48)
    """

    module = "radix_tree.js"
    label = "radix tree"

    def __init__(
        self,
        requests: Sequence[tuple[str, str]] = REQUESTS,
        page: int = 2,
        room: int = 48,
        clock: str = "none",
        *,
        title: str = "A tree of everything that was said",
        lead: str = "A word is a token. Blue blocks were found, orange ones are new in this request.",
    ) -> None:
        if page not in PAGES or room not in ROOMS:
            raise ValueError(
                f"page is one of {PAGES} and room one of {ROOMS} tokens; got page={page}, room={room}"
            )
        replay(with_clock(requests, clock), max(PAGES), min(ROOMS))  # every setting of the sliders has room
        super().__init__(
            requests=[list(pair) for pair in requests],
            page=page, room=room, clock=clock, pages=list(PAGES), rooms=list(ROOMS), title=title, lead=lead,
        )  # fmt: skip
