"""Chapter 11: one query, whose keys are cut into splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lumen.bench import Estimate, miss, outcome, says, sentence
from lumen.bench.numbers import percent, size
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.pages.ch11_operators import DIM, HEADS, Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing

LLAMA = CONFIGS["llama-3-8b"]
SMS = 132  # cores of an H100 SXM: NVIDIA's white paper, table 1


@sentence(more_words=["longer"], less_words=["sooner"])
def one_query(est: Estimate) -> str:
    """Three operators over one, for a single query."""
    return says(
        est,
        more="In time there is something: the three take {size} longer than the one ({estimate}). Three calls, fresh "
        "memory and another product are not told apart",
        same="The three take as long as the one, as far as this run can show ({estimate})",
        less="The three are done {size} sooner than the one ({estimate})",
    )


def one_query_story(ratio: Estimate, keys: int) -> str:
    scores, read = 4 * HEADS * keys, 2 * 4 * HEADS * keys * DIM
    return (
        f"One query against {keys:,} keys, as in a decode step, is the negative control: its scores are {size(scores)} "
        f"beside {size(read)} of keys and values that have to be read in any case, so there are next to no bytes "
        f"to save. {one_query(ratio)}."
    )


@sentence(example={"splits": 2}, more_words=["times as fast"], less_words=["times as long"])
def split_gain(est: Estimate, splits: int) -> str:
    """Time unsplit over time in `splits`."""
    return says(
        est,
        more=f"in {splits} splits the query is answered {{x}} times as fast ({{low}} to {{high}}, {{n}} rounds)",
        same=f"in {splits} splits this run shows no difference: {{estimate}}",
        less=f"in {splits} splits it takes {1 / est.value:.2f} times as long: {{estimate}} as fast",
    )


@sentence(more_words=["longer"], less_words=["sooner"])
def cut_cost(est: Estimate) -> str:
    """Two splits over none, both on one core."""
    return says(
        est,
        more="two splits take {size} longer than none ({estimate}), which is what cut and merge cost",
        same="two splits take as long as none, as far as this run can show ({estimate})",
        less="two splits are done {size} sooner than none ({estimate}), so a gain is not the second core's alone",
    )


def splits_story(times: Mapping[int, Timing], one_core: Mapping[int, Timing], cores: int) -> str:
    """Splits on all cores beside a core each, and two of them on `one_core` as the control."""
    gains = "; ".join(split_gain(Estimate.ratio(times[1], times[n]), n) for n in (2, max(times)))
    if cores == 1:  # not measured
        return f"Torch has one core here, which does all the work however it is cut: {gains}. The merge is in the time."
    two, cost = Estimate.ratio(times[1], times[2]), Estimate.ratio(one_core[2], one_core[1])
    text = (
        f"One head, one query: one piece of work, for one of {cores} cores. Cut: {gains}. Splits beyond the cores find "
        "no core that is idle.\n\n"
        "A core for each of two: "
        + miss(
            2.0,
            two,
            why_low="That is more than a second core's arithmetic; not told apart here.",
            why_high="A core each counts neither cut nor merge, nor the start of threads, nor memory that cores share, "
            "nor other work on the machine; not told apart here.",
        )
        + f" The control, `torch.set_num_threads(1)`: {cut_cost(cost)}."
    )
    if outcome(cost) != "same":
        low, high = sorted((2 / cost.low, 2 / cost.high))
        text += (
            f" Two cores that share so much work, {low:.2f} to {high:.2f} × by the interval of the control: "
            + miss(
                2.0 / cost.value,
                two,
                why_low="The cut costs less on two cores than on one; not told apart here.",
                why_high="The start of threads, memory that cores share, other work: not told apart here.",
            )
        )
    return text


@sentence(example={"splits": 2}, more_words=["times as fast"], less_words=["times as long"])
def splits_title(est: Estimate, splits: int) -> str:
    """Time unsplit over time in `splits`, above a figure."""
    return says(
        est,
        more=f"In {splits} splits one query is answered {{x}} times as fast",
        same=f"In {splits} splits this run shows no difference",
        less=f"In {splits} splits one query takes {1 / est.value:.2f} times as long",
    )


def splits_figure(times: Mapping[int, Timing], cores: int) -> go.Figure:
    gains = {n: Estimate.ratio(times[1], t) for n, t in times.items()}
    fig = figure(
        splits_title(gains[2], 2),
        x="splits of the keys",
        y="how many times as fast",
        log_x=True,
        height=340,
    )
    fig.add_scatter(
        x=list(gains), y=[e.value for e in gains.values()], mode="lines+markers", line_color=palette.orange,
        error_y={
            "array": [e.high - e.value for e in gains.values()],
            "arrayminus": [e.value - e.low for e in gains.values()],
        },
    )  # fmt: skip
    ideal = [min(n, cores) for n in gains]
    fig.add_scatter(x=list(gains), y=ideal, mode="lines", line={"color": palette.grey, "dash": "dot"})
    label_line(fig, max(gains), ideal[-1], "by cores alone", palette.grey, anchor="right", shift=14)
    log_axis(fig, "x", list(gains))
    fig.update_yaxes(range=[0, max(*ideal, *(e.high for e in gains.values())) * 1.2])
    return fig


def busy_table() -> Table:
    """A decode step of Llama-3-8B on an H100: pieces of work without splits, and the splits that fit into one wave.

    A core does one piece at a time, so pieces come in waves, and the last wave may leave cores idle.
    """
    rows = []
    for users in (1, 4, 16, 17, 64):
        pieces = users * LLAMA.num_kv_heads
        splits = f"{SMS // pieces}" if pieces <= SMS else "–"
        waves = -(-pieces // SMS)
        rows.append([f"{users}", f"{pieces}", percent(pieces / (waves * SMS)), splits])
    return rows, ["users", "KV heads × users", "of the cores busy", "splits that fit at once"], "rrrr"
