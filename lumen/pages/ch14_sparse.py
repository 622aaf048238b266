"""What chapter 14 shows of selections: what they catch of attention, what they read, all methods in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lumen.attention.sparse.work import Heads
from lumen.bench import Estimate, says, sentence
from lumen.bench.numbers import percent, size
from lumen.explore.figures.theme import figure, log_axis, palette, percent_axis
from lumen.pages import ch14
from lumen.pages.ch14 import Kept, Table, apart, estimate

if TYPE_CHECKING:
    import plotly.graph_objects as go

LLAMA = Heads(query=32, kv=8, key=128, value=128)  # a layer of Llama-3-8B, 16 bits
SELECTIONS = {
    "heaviest": "the heaviest, picked afterwards",
    "indexer": "an indexer, warmed up (DSA)",
    "bound": "blocks, by their channels' bounds (Quest)",
    "compressed": "blocks, by means of smaller pieces (NSA learns them)",
    "mean": "blocks, by their mean (MoBA)",
    "newest and first": "the newest, and the first four",
    "newest": "the newest",
    "random": "any",
    "indexer untrained": "an indexer, as it was drawn",
}


# which keys are read ------------------------------------------------------------------------------
def patterns(tokens: int = 48) -> dict[str, tuple[str, list[list[bool]]]]:
    """What four methods let each of `tokens` queries read, for `ch14_picture.maps`, 16 keys at most. Queries and keys
    are random where they decide."""
    import torch

    from lumen.attention.core import visible
    from lumen.attention.sparse import BigBird
    from lumen.attention.sparse import recall as rc

    pos = torch.arange(tokens)[None]
    draw = torch.Generator().manual_seed(1)
    drift = torch.randn(tokens, 16, generator=draw).cumsum(0)  # a text's neighbours resemble each other
    keys = (drift / drift.norm(dim=-1, keepdim=True))[None, None]
    queries = keys[:, :, torch.randint(tokens, (tokens,), generator=draw)]
    window = visible(pos, pos, 12) | (visible(pos, pos) & (pos < 4)[:, None, None])
    bird = BigBird(block=4, near=1, first=1, drawn=1)
    blocks = bird.reads(1, pos, tokens // 4).repeat_interleave(4, -1) & visible(pos, pos)
    found = {
        "Longformer": ("a window, first ones", window),
        "BigBird": ("near, first, drawn", blocks),
        "MoBA": ("blocks by their mean", rc.by_mean(queries, keys, pos, pos, 16, 4)),
        "DSA": (
            "tokens, by an indexer",
            rc.by_index(queries, keys[:, 0], torch.ones(1, tokens, 1), pos, pos, 16),
        ),
    }
    return {name: (words, seen[0, 0].tolist()) for name, (words, seen) in found.items()}


# what is caught -----------------------------------------------------------------------------------
def caught(kept: Kept, selection: str, budget: int, what: str = "mass") -> Estimate:
    (one,) = (c for c in kept["cells"] if (c["selection"], c["budget"]) == (selection, budget))
    return estimate(one[what])


def budgets_of(kept: Kept) -> list[int]:
    return sorted({cell["budget"] for cell in kept["cells"]})


def alike(kept: Kept, budget: int) -> float:
    """The share of `budget` keys if all keys weighed alike: queries stand in the second half of a text."""
    length = kept["length"]
    places = range(length // 2, length)
    return sum(min(1.0, budget / (place + 1)) for place in places) / len(places)


def heaviest_title(kept: Kept, budget: int) -> str:
    share = caught(kept, "heaviest", budget).value
    return f"{budget} keys of at most {kept['length']:,} hold {percent(share, 1)} of the weight"


def heaviest_story(kept: Kept, budget: int) -> str:
    share = caught(kept, "heaviest", budget)
    return (
        f"{percent(share.value, 1)} ({percent(share.low, 1)} to {percent(share.high, 1)}, the median of {share.n} "
        f"texts) in "
        f"{percent(alike(kept, budget))} of what a query may read. The rest, {percent(1 - alike(kept, budget))} of the "
        f"keys, holds {percent(1 - share.value, 1)}: whoever knew *which* it is could leave it unread. But this "
        "selection is no method: it has computed every score in order to know which were the largest. A method has to "
        "tell from less."
    )


def caught_table(kept: Kept) -> Table:
    """Share of the weight that each selection catches, by budget."""
    budgets = budgets_of(kept)
    names = [name for name in SELECTIONS if any(c["selection"] == name for c in kept["cells"])]
    names.sort(key=lambda name: -caught(kept, name, budgets[1]).value)
    rows = [[SELECTIONS[name], *(percent(caught(kept, name, b).value) for b in budgets)] for name in names]
    return rows, ["read", *(f"{b:,} keys" for b in budgets)], "l" + "r" * len(budgets)


def caught_figure(kept: Kept) -> go.Figure:
    budgets = budgets_of(kept)
    best, any_ = (caught(kept, name, budgets[0]).value for name in ("heaviest", "random"))
    fig = figure(
        f"{budgets[0]} keys: between {percent(any_)} of the weight at random and {percent(best)} at best",
        x="keys that a query reads",
        y="share of attention's weight",
        log_x=True,
        height=420,
    )
    for name, words, color in (
        ("heaviest", "the heaviest", palette.grey), ("indexer", "indexer", palette.blue),
        ("mean", "blocks by mean", palette.green), ("random", "any", palette.orange),
    ):  # fmt: skip
        found = [caught(kept, name, b) for b in budgets]
        fig.add_scatter(
            x=budgets, y=[e.value for e in found], mode="lines+markers", line_color=color, name=words, showlegend=True,
            error_y={"array": [e.high - e.value for e in found], "arrayminus": [e.value - e.low for e in found]},
        )  # fmt: skip
    log_axis(fig, "x", budgets)
    percent_axis(fig)
    fig.update_yaxes(range=[0, 1.04])
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    return fig


@sentence(
    example={"one": "one", "other": "the other"},
    at=0.0,
    unit="points",
    effect=20.0,
    more_words=["points more"],
    less_words=["catches less than"],
)
def catches(est: Estimate, one: str, other: str) -> str:
    """A selection's share of the weight less another's."""
    return says(
        est,
        at=0.0,
        worth=0.5,
        more=f"{one} catches {{x}} points more than {other} (at least {{low}})",
        same=f"{one} and {other} are not told apart ({{estimate}})",
        less=f"{one} catches less than {other}: {{x}} points (at most {{high}})",
    )


@sentence(at=0.0, unit="points", effect=20.0, more_words=["points more"], less_words=["catches less"])
def first_four(est: Estimate) -> str:
    """The newest keys and the first four, less the newest alone; what follows for whoever compares."""
    one, other = "keeping the first four beside the newest", "the newest alone"
    return says(
        est,
        at=0.0,
        worth=0.5,
        more=f"{one} catches {{x}} points more than {other} (at least {{low}}), so whoever compares selections has to "
        "give all of them the first block",
        same=f"{one} and {other} are not told apart ({{estimate}})",
        less=f"{one} catches less than {other}: {{x}} points (at most {{high}})",
    )


def caught_story(kept: Kept, budget: int) -> str:
    """The selections beside their baselines at one budget, blocks at the largest as well, by intervals."""
    most, block = budgets_of(kept)[-1], kept["block"]

    def far(a: str, b: str, keys: int = budget) -> Estimate:
        return apart(caught(kept, a, keys), caught(kept, b, keys))

    def over(a: str, b: str, one: str, other: str, keys: int = budget) -> str:
        return catches(far(a, b, keys), one, other)

    return (
        f"With {budget} keys: {first_four(far('newest and first', 'newest'))}.\n\n"
        f"{budget} keys are {budget // block} blocks, of which the first and the query's own are given, so "
        f"{budget // block - 2} are chosen: "
        f"{over('mean', 'newest and first', 'choosing them by their mean key', 'that baseline')}. With {most:,} keys "
        f"{most // block - 2} are chosen: {over('mean', 'newest and first', 'the mean', 'that baseline', most)}. "
        f"Where {2 * block} keys are read, none is chosen: the two given blocks are all, and the judges cannot "
        "differ. Blocks at random, and the newest blocks, were not tried.\n\n"
        f"Other judges, again with {budget} keys:\n\n"
        f"- {over('compressed', 'mean', 'means of smaller pieces', 'one mean a block')};\n"
        f"- {over('bound', 'mean', 'Quest’s bound', 'the mean')};\n"
        f"- {over('indexer', 'mean', 'the indexer', 'the mean')};\n"
        f"- {over('indexer', 'indexer untrained', 'warmed up, the indexer', 'as it was drawn')}.\n\n"
        f"The indexer alone was trained for "
        f"this: {kept['recipe']['steps']} steps on {kept['recipe']['texts']} other texts, in layers "
        f"{', '.join(map(str, kept['recipe']['layers']))}. (Differences are of medians, with the widest interval that "
        "the two allow; pairs of the same text were not kept.)"
    )


# what it costs ------------------------------------------------------------------------------------
def reads_table(contexts: Sequence[int] = (2048, 16_384, 131_072)) -> Table:
    """Bytes that one query of one layer reads, each method with the sizes of its paper, in Llama-3-8B's shape."""
    from lumen.attention.sparse import dsa_work, full_work, moba_work, nsa_work, window_work

    ways: dict[str, Callable[[Heads, int], Any]] = {
        "everything": full_work,
        "window of 512": lambda h, n: window_work(h, n, 512),
        "NSA, 16 blocks of 64, window of 512": lambda h, n: nsa_work(h, n, dense_map=False),
        "MoBA, 3 blocks of 512": moba_work,
        "DSA, 2,048 tokens": dsa_work,
    }
    rows = []
    for name, work in ways.items():
        found = [work(LLAMA, n) for n in contexts]
        last, whole = found[-1], full_work(LLAMA, contexts[-1])
        rows.append([name, *(size(w.read) for w in found), f"{last.flops / whole.flops:.2g} ×"])
    return rows, ["reads", *(f"of {n:,}" for n in contexts), "FLOPs at the last"], "lrrrr"


def reads_story() -> str:
    """What the table of reads hides: heads that choose apart, and an indexer that was made for another model."""
    from lumen.attention.sparse import full_work, moba_work

    short, blocks = full_work(LLAMA, 2048), moba_work(LLAMA, 2048)
    wide = Heads(query=128, kv=1, key=512 + 64, value=512)  # DeepSeek-V3's absorbed latents
    index = 2 * 64 * 128
    shares = [index / (full_work(heads, 1).flops) for heads in (LLAMA, wide)]
    return (
        "Nothing here but the window is flat: means, compressed keys and an indexer's keys are read in full at every "
        "step, they are only fewer or narrower. MoBA's heads choose apart, and the table counts what they read if "
        f"each of {LLAMA.query} fetches for itself, at 2,048 tokens {blocks.read / short.read:.0f} times everything; "
        "whoever fetches a block once for all heads that want it, reads everything at most. It is made for prompts, "
        "where a block that is fetched serves many queries. NSA makes the heads of a group agree. And DSA's indexer "
        f"with its 64 heads of 128 multiplies as much for each key as all of Llama's attention ({shares[0]:.1f} ×): "
        f"it is made for DeepSeek's 128 heads on wide latents, where it is {percent(shares[1])}, in eight bits."
    )


def sla_story() -> str:
    """The three classes of a row of blocks."""
    from lumen.attention.sparse import SLA

    shape, tokens = SLA(), 32_768
    blocks = tokens // shape.block
    critical, negligible = shape.counts(blocks)
    return (
        f"SLA sorts a row of blocks into **three classes**. Of {blocks} blocks ({tokens:,} tokens) {critical} are "
        f"*critical* "
        f"and read exactly, {negligible} *negligible* and left out, and the {blocks - critical - negligible} "
        f"*marginal* ones "
        f"in between, too flat to matter one by one, are read through a state: the first half of this chapter and the "
        f"second in one layer, {percent(critical / blocks)} of the scores computed. It is made for diffusion "
        f"models, which "
        "read in both directions, and it is trained "
        "([Zhang and others, 2025](https://arxiv.org/abs/2509.24006), section 4)."
    )


def recap_line(kept: Kept) -> str:
    budget = 256
    best, mean, blind, indexer = (
        caught(kept, name, budget) for name in ("heaviest", "mean", "newest and first", "indexer")
    )
    return (
        f"- **Keep all, read few:** {budget} keys of at most {kept['length']:,} hold {percent(best.value)} of "
        "SmolLM2's "
        f"attention; blocks by their mean catch {ch14.spelled(mean)}, the newest and the first four, which look at no "
        f"key, {ch14.spelled(blind)}: {catches(apart(mean, blind), 'the mean', 'that rule')}. A warmed-up indexer "
        f"catches {ch14.spelled(indexer)}."
    )


# all methods --------------------------------------------------------------------------------------
def methods_table(recall: Kept | None, decode: Kept | None, sparse: Kept | None) -> Table:
    """Every method of chapters 11 to 14: exact or not, training, what it reduces, best for what, measured here."""
    found = {**_of_heads(), **_of_caches(), **_of_states(recall, decode), **_of_selections(sparse)}
    rows = [
        ("FlashAttention, split-KV", "yes", "no", "bytes of scores; long prompts, long contexts",
         "[chapter 11](11_flash_attention.ipynb)"),
        ("GQA, MQA", "no", "yes", "bytes held and read; many users", found.get("gqa4")),
        ("MLA", "no", "yes", "bytes held and read; where arithmetic idles", found.get("mla")),
        ("layers that share", "no", "yes", "bytes held; beside GQA", found.get("cla2")),
        ("keys and values in int8, KIVI", "nearly", "no", "bytes held and read; any model as it is", found.get("int8")),
        ("window and sinks", "no", "no; better with", "bytes held, FLOPs; endless chats", found.get("window")),
        ("eviction: H2O, SnapKV", "no", "no", "bytes held; long prompts, short answers", found.get("snapkv")),
        ("selection: Quest", "no", "no", "bytes read, none held; long contexts", found.get("quest")),
        ("Longformer, BigBird", "no", "yes", "FLOPs; encoders of long documents", None),
        ("MoBA", "no", "continued", "FLOPs, bytes read; long prompts", found.get("mean")),
        ("NSA", "no", "from the start", "FLOPs, bytes read; long contexts", found.get("compressed")),
        ("DSA", "no", "continued", "FLOPs, bytes read; models with MLA", found.get("indexer")),
        ("SLA", "no", "continued", "FLOPs; diffusion, both directions", "counted above"),
        ("linear attention", "no", "from the start", "bytes held: none grow; streams", found.get("linear")),
        ("gated: GLA, Mamba-2", "no", "from the start", "the same; what has aged may go", found.get("gated")),
        ("gated delta", "no", "from the start", "the same; what is told again", found.get("delta")),
        ("hybrids", "no", "from the start", "most of the bytes held; long contexts", found.get("hybrid")),
    ]  # fmt: skip
    cells = [["–" if cell is None else cell for cell in row] for row in rows]
    return cells, ["method", "exact?", "training?", "reduces; best for", "measured here"], "lllll"


def _of_heads() -> dict[str, str]:
    """From chapter 12: how far a conversion of gptlite stays above the control, after training on."""
    kept = ch14.evidence("fewer_kv_heads")
    rows = {row["name"]: row for row in (kept or {}).get("losses", [])}
    names = {"gqa4": "gqa4", "mla": "mla128", "cla2": "cla2"}
    found = {}
    for key, name in names.items():
        if name in rows and "above_control" in rows[name]:
            far = f"{rows[name]['above_control']['value']:+.3f}".replace("-", "−")
            found[key] = f"{far} nats, {rows[name]['numbers_per_token']:,} numbers a token"
    return found


def _of_caches() -> dict[str, str]:
    """From chapter 13: perplexity over that of the full cache, and bytes held, or read by Quest."""
    kept = ch14.evidence("smaller_cache")
    found = {}
    for name, share in (("int8", 1.0), ("window", 0.2), ("snapkv", 0.2), ("quest", 0.2)):
        for row in (kept or {}).get("perplexity", []):
            if row["kind"] == name and abs(row["share"] - share) < 1e-9:
                part = row["bytes"]["read" if name == "quest" else "held"]
                verb = "read" if name == "quest" else "held"
                ratio = "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["ratio"])
                found[name] = f"perplexity × {ratio} at {percent(part)} {verb}"
    return found


def _of_states(recall: Kept | None, decode: Kept | None) -> dict[str, str]:
    found = {}
    if recall is not None:
        models, most = ch14.models_of(recall), max(recall["pairs"])
        names = {"linear": "linear-8", "gated": "gated-8", "delta": "gated_delta-8", "hybrid": "hybrid-8"}
        for key, name in names.items():
            if name in models and name not in ch14.unlearned(recall):
                found[key] = f"{ch14.spelled(ch14.right(models[name], most))} of {most} pairs"
    if decode is not None:
        last = decode["rows"][-1]
        for key, kind in (("delta", "linear"), ("hybrid", "hybrid")):  # the timed states fade and correct
            won = f"step × {1 / ch14.gain_of(last, kind)[0].value:.2f} at {last['context']:,} tokens"
            found[key] = f"{found[key]}; {won}" if key in found else won
    return found


def _of_selections(kept: Kept | None) -> dict[str, str]:
    if kept is None:
        return {}
    return {
        name: f"{ch14.spelled(caught(kept, name, 256))} of the weight in 256 keys, {how}"
        for name, how in (
            ("mean", "untrained"),
            ("compressed", "untrained"),
            ("indexer", "indexer warmed up"),
        )
    }
