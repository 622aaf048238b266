# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7 · Semantic caches

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/07_semantic_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/07_semantic_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/07_semantic_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 75 min · here: [exercises](../exercises/07_semantic_cache.ipynb), [solutions](../solutions/07_semantic_cache.ipynb)
#
# </div>

# %% [markdown]
# Somebody asks *How do I delete a file?* The model answers, and the answer is kept. Now two more people come. One asks
# *What's the command for deleting a file?* and could have the kept answer at once. The other asks *How do I **not** delete a
# file?*
#
# A [semantic cache](../book/glossary.md#term-semantic-cache) compares meanings: an *encoder* makes a point in space of each
# question. The one in this chapter puts the two opposites closer together than the two questions that mean the same.
#
# **When may an old answer serve a new question, and when is it the opposite of one?**
#
# By the end you can
#
# - say what belongs in the key of a cache that is never wrong;
# - turn a question into a vector by hand, and find its nearest neighbour among 100,000;
# - choose a threshold from labelled pairs, and say what no threshold can separate;
# - tell which of three caches fits a use, and from which hit rate on it pays.
#
# Needs: [the prefix cache](06_prefix_cache.ipynb).

# %% tags=["setup", "hide-input", "nbval-ignore-output"]
import importlib
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("lumen") is None:  # Colab: brings lumen, leaves torch and numpy as they are
    repository = "lumen-inference @ git+https://github.com/lumen-course/lumen@main"
    source = os.environ.get("LUMEN_SOURCE", repository)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("07_semantic_cache")

# %%
from collections import Counter

import numpy as np
import torch

from lumen import assets, bench
from lumen.semantic import ExactCache, MiniLM, SemanticCache, check, load_pairs
from lumen.semantic.evaluate import Scored, best_threshold, rates
from lumen.explore import callout, figure, label_line, markdown, palette, reveal, table

torch.set_grad_enabled(False)
encoder = MiniLM()
device = session.device

# %% [markdown]
# ## One answer, three questions
#
# MiniLM is a transformer of 22 million weights that turns a text into 384 numbers of length 1. How alike two texts are is
# the cosine of the angle between their vectors: 1 in the same direction, 0 at a right angle.

# %% tags=["measure", "nbval-ignore-output"]
STORED = "How do I delete a file?"
asked = {
    "its opposite": "How do I not delete a file?",
    "the same in other words": "What's the command for deleting a file?",
    "something else": "Why does bread rise?",
}
stored, *others = encoder.encode([STORED, *asked.values()])
opening = {name: float(stored @ vector) for name, vector in zip(asked, others, strict=True)}
opposite, same, unrelated = opening.values()

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"The opposite is nearer ({opposite:.2f}) than the paraphrase ({same:.2f})" if opposite > same
    else f"Opposite {opposite:.2f}, paraphrase {same:.2f}",
    x="cosine to the stored question", y="question", height=300,
)  # fmt: skip
colors = [palette.orange, palette.blue, palette.grey]
fig.add_bar(x=list(opening.values()), y=[0, 1, 2], orientation="h", marker_color=colors, width=0.4)
for row, text in enumerate(asked.values()):
    label_line(fig, 0, row, text, anchor="left", shift=26)
fig.update_yaxes(visible=False, range=[2.4, -0.7])
fig.update_xaxes(range=[min(0, unrelated) - 0.02, 1.02])
fig

# %% tags=["hide-input", "nbval-check-output"]
print(f"the opposite is nearer than the paraphrase: {opposite > same}")
assert opposite > same > 0.5 > abs(unrelated)

# %% [markdown]
# A threshold between 0 and 1 that lets the paraphrase in lets the opposite in, too. What now?
#
# ## First, the cache that cannot be wrong
#
# Before meaning, equality. The answer to the very same request may be given again, if nothing that could change the answer
# is different: the prompt, the model, the sampling parameters, and the tenant whose documents may be behind it. All of that
# goes into the key, and the key is a hash of it.

# %% tags=["nbval-check-output"]
exact = ExactCache(capacity=1000, ttl=3600)
greedy = {"temperature": 0, "max_tokens": 50}
exact.put(STORED, "Use rm.", model="smollm2", params=greedy, tenant="ann")

requests = {
    "word for word": (STORED, "smollm2", greedy, "ann"),
    "0.0 for 0, another order": (STORED, "smollm2", {"max_tokens": 50, "temperature": 0.0}, "ann"),
    "without the question mark": (STORED[:-1], "smollm2", greedy, "ann"),
    "another model": (STORED, "llama", greedy, "ann"),
    "more tokens": (STORED, "smollm2", {**greedy, "max_tokens": 51}, "ann"),
    "another tenant": (STORED, "smollm2", greedy, "ben"),
}
for name, (prompt, model_name, params, tenant) in requests.items():
    hit = exact.get(prompt, model=model_name, params=params, tenant=tenant)
    print(f"{name:26} {'hit' if hit else 'miss'}")

# %% [markdown]
# It is the first cache to install: a hash costs microseconds, and retries, buttons and scheduled jobs do repeat themselves to the
# letter. Only beware of chance. At a temperature above 0 it returns the first sample for ever.
#
# People do not repeat themselves to the letter. A question mark is enough for a miss. So, points in space.
#
# ## From a question to a point
#
# The transformer inside MiniLM gives one vector *per token*. To get one per text, their mean is taken
# ([mean pooling](https://arxiv.org/abs/1908.10084)) and scaled to length 1. Here it is by hand, on the bare transformer:

# %%
from transformers import AutoModel, AutoTokenizer, logging

logging.disable_progress_bar()

network = AutoModel.from_pretrained(assets.path("minilm")).to(device).eval()
pieces = AutoTokenizer.from_pretrained(assets.path("minilm"))


def embed(texts, mask_padding=True):
    """list of B texts -> (B, 384), each of length 1"""
    batch = pieces(texts, padding=True, truncation=True, max_length=256, return_tensors="pt").to(device)
    tokens = network(**batch).last_hidden_state  # (B, T, 384)
    real = batch["attention_mask"][:, :, None]  # (B, T, 1): 1 for a token, 0 for padding
    if not mask_padding:
        real = torch.ones_like(real)
    mean = (tokens * real).sum(1) / real.sum(1)
    return (mean / mean.norm(dim=1, keepdim=True)).float().cpu().numpy()


# %% tags=["nbval-check-output"]
short_and_long = [
    STORED,
    "Rust?",
    "How do I delete every file in this folder that is older than thirty days?",
]
theirs = encoder.encode(short_and_long)  # sentence-transformers
ours = embed(short_and_long)
careless = embed(short_and_long, mask_padding=False)
print("ours equals sentence-transformers:", np.allclose(ours, theirs, atol=1e-4))
print("... with padding averaged in:     ", np.allclose(careless, theirs, atol=1e-4))
assert np.allclose(ours, theirs, atol=1e-4) and not np.allclose(careless, theirs, atol=1e-4)

# %% [markdown]
# The mask is the part that goes wrong in practice. Without it a text's vector depends on how long its neighbours in the batch
# are, and the same question is not found again.
#
# For vectors $q$ and $s$ of length 1, with an angle of $\theta$ between them,
#
# $$\cos\theta = \frac{q \cdot s}{|q|\,|s|} = q \cdot s$$
#
# $$|q - s|^2 = 2 - 2\,\cos\theta$$
#
# So inner product, cosine and Euclidean distance all name the same neighbour, and an index may use whichever is fastest.
# The last one runs the other way: *small* is near.
#
# Where do the directions come from? From [contrastive training](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2)
# on about a billion pairs of texts that occurred together: a question and its answer, a title and its article. In a batch each
# text must find its partner among all the others. Wrong partners are mostly about something else, so *topic* decides nearly
# every case. Few pairs are there to teach that a "not" turns an answer round.
#
# ### Predict
#
# *Is Saturn bigger than Jupiter?* and *Is Jupiter bigger than Saturn?* consist of the same words. The answer to one is no, to the
# other yes. What is their cosine? As a model, take an encoder that counts words and ignores their order: it says exactly 1.

# %% tags=["predict"]
my_guess = 0.85  # the cosine of the two questions

# %% tags=["measure"]
planets = "Is Saturn bigger than Jupiter?", "Is Jupiter bigger than Saturn?"
words = [Counter(text.lower().strip("?").split()) for text in planets]
counted = sum(words[0][w] * words[1][w] for w in words[0]) / len(words[0])
swapped = float(np.dot(*encoder.encode(planets)))

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
reveal(
    guess=my_guess, model=counted, measured=swapped, unit="cosine", what="alike", log=False,
    title=f"Who is bigger than whom makes a difference of {1 - swapped:.3f}",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"**{swapped:.3f}.** A true paraphrase of the file question stood at {same:.2f}. "
    + (
        "To this encoder, the order of the planets hardly matters, and the choice of words does."
        if swapped > same
        else "Here the order of the planets was noticed more than the choice of words."
    )
)

# %% [markdown]
# ## Four hundred pairs
#
# Single examples prove little. The course brings pairs of questions, written for it and labelled: may the answer to the first
# be given to the second? One half is for choosing things (*tune*), the other is looked at only to report (*report*).

# %% tags=["measure", "nbval-ignore-output"]
pairs = load_pairs()
texts = [text for pair in pairs for text in (pair.stored, pair.asked)]
vectors = encoder.encode(texts)
kept, new = vectors[::2], vectors[1::2]
scored = [
    Scored(pair, float(s @ q), check(pair.asked, pair.stored).rule)
    for pair, s, q in zip(pairs, kept, new, strict=True)
]
tune = [item for item in scored if item.pair.half == "tune"]
report = [item for item in scored if item.pair.half == "report"]

# %% tags=["hide-input", "nbval-ignore-output"]
kinds = list(dict.fromkeys(pair.kind for pair in pairs))
rows = []
for kind in kinds:
    group = [item for item in tune if item.pair.kind == kind]
    middle = sorted(group, key=lambda item: item.score)[len(group) // 2]
    rows.append(
        [
            kind,
            sum(p.kind == kind for p in pairs),
            f"{middle.score:.2f}",
            middle.pair.stored,
            middle.pair.asked,
        ]
    )
table(rows, ["kind", "pairs", "median cosine", "the median pair: stored", "asked"], align="lrrll")

# %% [markdown]
# Only the first kind may hit. The median pair of a kind stands for it.
#
# ## The nearest of many
#
# A cache does not compare pairs. It takes a new question and looks for the nearest of all that are stored. With unit vectors
# that is one matrix product, and a library such as [FAISS](https://arxiv.org/abs/2401.08281) does nothing else in its *flat* index:

# %% tags=["nbval-check-output"]
import faiss

index = faiss.IndexFlatIP(kept.shape[1])
index.add(kept)
score, place = index.search(new, 1)
everything = new @ kept.T  # (402, 402), by brute force
print("same neighbours:", bool((place[:, 0] == everything.argmax(1)).all()))
print("same cosines:   ", np.allclose(score[:, 0], everything.max(1), atol=1e-5))
assert np.allclose(score[:, 0], everything.max(1), atol=1e-5)

# %% [markdown]
# Reading every vector is exact, and its time grows with their number. Three ideas read less:
#
# - **IVF** sorts the vectors into lists around centres and reads only the lists whose centres are nearest (`nprobe` of them).
# - **HNSW** links each vector to near ones, in layers from coarse to fine, and walks along the links, keeping the `efSearch` best.
# - **PQ** cuts a vector into parts and stores for each the number of the nearest of 256 standard parts. It reads all, but less of each.
#
# What that buys, among 100,000 lines of Shakespeare:

# %% tags=["hide-input"]
try:
    faiss_record = bench.load_evidence("faiss_indexes")
except bench.NoEvidence as missing:
    faiss_record = None
    markdown(str(missing))
if faiss_record:
    found = faiss_record["data"]["indexes"]
    count = faiss_record["data"]["vectors"]
    flat = found["flat"]["seconds_per_query"]["median"]
    wanted = ["flat", "ivf nprobe 1", "ivf nprobe 8", "ivf nprobe 64", "hnsw efSearch 16", "hnsw efSearch 64",
              "hnsw efSearch 256", "pq 24 B", "pq 48 B", "pq 96 B", "pq 48 B, 10 rescored"]  # fmt: skip
    table(
        [
            [
                name, f"{e['recall_at_1']:.1%}", f"{1e6 * e['seconds_per_query']['median']:,.0f} µs",
                f"{flat / e['seconds_per_query']['median']:.1f}×", f"{e['bytes'] / count:,.0f} B", f"{e['build_s']:.1f} s",
            ]
            for name in wanted if (e := found.get(name))
        ],
        ["index", "recall@1", "a query", "faster than flat", "memory a vector", "to build"], align="lrrrrr",
    )  # fmt: skip

# %% tags=["hide-input"]
if faiss_record:
    near = {n: e for n, e in found.items() if e["recall_at_1"] >= 0.95 and n != "flat"}
    fastest = min(near, key=lambda n: near[n]["seconds_per_query"]["median"], default="flat")
    gain = flat / found[fastest]["seconds_per_query"]["median"]
    fig = figure(
        f"95 % of the nearest, {gain:.0f} times faster than reading all ({fastest})",
        x="time of one query (µs)", y="recall@1", height=400, log_x=True,
    )  # fmt: skip
    for kind, name, color in (("ivf", "IVF", palette.blue), ("hnsw", "HNSW", palette.orange), ("pq", "PQ", palette.green)):  # fmt: skip
        points = [
            (1e6 * e["seconds_per_query"]["median"], e["recall_at_1"])
            for n, e in found.items() if e["kind"] == kind and "rescored" not in n
        ]  # fmt: skip
        x, y = zip(*sorted(points), strict=True)
        fig.add_scatter(
            x=x, y=y, mode="lines+markers" if kind != "pq" else "markers", line_color=color, name=name
        )
    fig.add_scatter(
        x=[1e6 * flat],
        y=[1],
        mode="markers+text",
        text="flat",
        textposition="bottom center",
        marker_color=palette.grey,
        showlegend=False,
    )
    fig.update_layout(showlegend=True)
    fig.update_yaxes(tickformat=".0%")
fig if faiss_record else None

# %% tags=["hide-input"]
if faiss_record:
    most = found[fastest]
    markdown(
        f"Recall@1 is the share of queries for which the true nearest line is named. Reading all takes {1e6 * flat:,.0f} µs, and "
        f"`{fastest}` {1e6 * most['seconds_per_query']['median']:,.0f} µs. PQ in 48 bytes names {found['pq 48 B']['recall_at_1']:.0%} of them, "
        f"and {found['pq 48 B, 10 rescored']['recall_at_1']:.0%} if its ten best are compared once more with the vectors themselves. "
        f"(Measured with one thread on {faiss_record['cpu']}, {faiss_record['date']}.)"
    )

# %% [markdown]
# A *vector database* is such an index with what a database adds: filters (this tenant only), deletion, a disk, replicas. For
# a cache of a few thousand answers a flat index in the process is enough. What an approximate index misses is only a missed
# hit, a cost of money. What comes next costs trust.
#
# ## Where to draw the line
#
# At which cosine is a question the same question? A common default is 0.8
# ([GPTCache](https://github.com/zilliztech/GPTCache)'s, for one). Here are the pairs of the tune half:

# %% tags=["hide-input", "nbval-ignore-output"]
LIMIT = 0.01
alone = best_threshold(tune, False, LIMIT)
above_all = max(item.score for item in tune if not item.pair.same)
title = (
    "No threshold keeps false hits under 1 % and hits anything" if alone is None
    else f"With false hits under 1 %, a threshold finds {alone.recall:.0%} of the paraphrases"
)  # fmt: skip
fig = figure(title, x="cosine of the pair", y="pairs of the tune half", height=400)
groups = {
    "paraphrase: should hit": (("paraphrase",), palette.blue),
    "opposite, entity, number, roles": (("opposite", "entity", "number", "roles"), palette.orange),
    "unrelated, context": (("unrelated", "context"), palette.grey),
}
for name, (members, color) in groups.items():
    fig.add_histogram(
        x=[item.score for item in tune if item.pair.kind in members], name=name, marker_color=color,
        xbins={"start": -0.2, "end": 1.05, "size": 0.05},
    )  # fmt: skip
fig.update_layout(barmode="stack", showlegend=True, legend_traceorder="normal")
fig

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    "Unrelated questions are easy: they lie to the left. The orange ones lie among the blue ones, and the highest of "
    f"them lies at {above_all:.3f}, "
    + (
        "above every paraphrase."
        if above_all > max(i.score for i in tune if i.pair.same)
        else "above most of them."
    )
    + f" To shut out all but {LIMIT:.0%} of them, the threshold must "
    + (
        "rise so far that no paraphrase is left."
        if alone is None
        else f"rise to {alone.threshold:.3f}, where {alone.recall:.0%} of the paraphrases still hit."
    )
)

# %% [markdown]
# *Precision* is the share of hits that are right, *recall* the share of paraphrases that hit. Fewer than a quarter of our pairs
# are paraphrases, and that would be the precision if the cosine meant nothing.
#
# ### Predict
#
# Of the tune pairs with a cosine of 0.8 or more, what share are paraphrases?

# %% tags=["predict"]
my_guess = 0.9  # precision at a threshold of 0.8

# %% tags=["measure"]
usual = rates(tune, 0.8, checked=False)
base = sum(item.pair.same for item in tune) / len(tune)

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
reveal(
    guess=100 * my_guess, model=100 * base, measured=100 * usual.precision, unit="%", what="hits that are right", log=False,
    title=f"At 0.8, {1 - usual.precision:.0%} of the hits answer another question",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"**{usual.precision:.0%}**, where a cosine without meaning would give {base:.0%}. It hits {usual.right} of "
    f"{usual.by_kind['paraphrase'][1]} paraphrases, and also "
    + ", ".join(f"{h} of {n} {k}" for k, (h, n) in usual.by_kind.items() if k != "paraphrase")
    + ". Our pairs are harder than traffic: traps are rarer in life. But nobody tells you when one comes."
)

# %% tags=["hide-input", "nbval-ignore-output"]
cuts = [cut / 100 for cut in range(40, 100)]
curve = [rates(tune, cut, False) for cut in cuts]
best_precision = max((r.precision, r.threshold) for r in curve if r.right + r.wrong)
fig = figure(
    f"Raising the threshold never makes more than {best_precision[0]:.0%} of the hits right",
    x="threshold (cosine)", y="share", height=380,
)  # fmt: skip
for name, values, color in (
    ("recall", [r.recall for r in curve], palette.blue),
    ("precision", [r.precision for r in curve], palette.green),
    ("false-hit rate", [r.false_hit_rate for r in curve], palette.orange),
):
    fig.add_scatter(x=cuts, y=values, mode="lines", line_color=color, name=name)
fig.update_layout(showlegend=True)
fig.update_yaxes(tickformat=".0%", range=[-0.02, 1.02])
fig

# %% [markdown]
# The threshold buys fewer hits. It does not buy better ones, not beyond a point. The information is not in the cosine: it was
# lost when a question became a single point. So somebody has to read both questions again.
#
# ## A second reader
#
# `lumen.semantic.check` reads the two questions side by side, after the threshold, and refuses what it sees differ. It has
# eight rules: *context* (one cannot stand alone), *negation*, *number* (or unit), *opposite* (increase and lower), *name*, *kind*
# (when and where, why and how many), *roles* (from A to B and from B to A) and *edit* (one word was changed, and nobody said that
# it means the same). That two questions mean the same it cannot tell. That is the encoder's part.

# %% tags=["hide-input", "nbval-check-output"]
shown = [(asked["its opposite"], STORED), (asked["the same in other words"], STORED), planets[::-1],
         ("How many calories are in six eggs?", "How many calories are in two eggs?"), ("And in winter?", STORED)]  # fmt: skip
table(
    [[s, a, "may hit" if (v := check(a, s)).same else f"{v.rule}: {v.reason}"] for a, s in shown],
    ["stored", "asked", "verdict"],
)
assert not check(*shown[0]).same and check(*shown[1]).same and not check(*planets).same

# %% [markdown]
# With the check behind it the threshold is chosen anew, on the tune half: the highest recall with at most 1 % false hits. Then,
# once, both go to the report half, which neither the rules nor the threshold have seen.

# %% tags=["measure"]
guarded = best_threshold(tune, True, LIMIT)
trials = {"threshold alone, 0.8": rates(report, 0.8, False)}
if alone:
    trials[f"threshold alone, {alone.threshold:.2f} (chosen)"] = rates(report, alone.threshold, False)
trials["second check, 0.8"] = rates(report, 0.8, True)
trials[f"second check, {guarded.threshold:.2f} (chosen)"] = final = rates(report, guarded.threshold, True)

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [
        [name, f"{r.recall:.0%}", f"{r.precision:.1%}", f"{r.false_hit_rate:.1%}",
         ", ".join(f"{h} {k}" for k, (h, _) in r.by_kind.items() if h and k != "paraphrase") or "none"]
        for name, r in trials.items()
    ],
    ["report half", "recall", "precision", "false-hit rate", "wrong hits"], align="lrrrl",
)  # fmt: skip
must_miss = sum(n for k, (_, n) in final.by_kind.items() if k != "paraphrase")
markdown(
    f"The check turns a precision of {trials['threshold alone, 0.8'].precision:.0%} into {final.precision:.0%}, and finds "
    f"{final.recall:.0%} of the paraphrases. How sure is that? {final.wrong} of {must_miss} traps got through. "
    + (
        f"With none seen among {must_miss}, a true rate of up to {3 / must_miss:.1%} is still possible (the *rule of three*, at 95 %)."
        if not final.wrong
        else f"Give or take {2 * (final.wrong**0.5) / must_miss:.1%}: so few events tell no more."
    )
    + " A promise of 1 % needs more pairs than these, and pairs from your own traffic."
)

# %% [markdown]
# And what does the reader with the rules refuse without need? Paraphrases of the report half that were near enough:

# %% tags=["hide-input", "nbval-ignore-output"]
refused = [i for i in report if i.pair.same and i.rule and i.score >= guarded.threshold]
low = [i for i in report if i.pair.same and i.score < guarded.threshold]
table([[i.rule, i.pair.stored, i.pair.asked] for i in refused[:6]], ["rule", "stored", "asked"])
leaks = [i for i in report if not i.pair.same and i.hit(guarded.threshold, True)]
markdown(
    f"{len(refused)} of {final.by_kind['paraphrase'][1]} paraphrases are refused by a rule and {len(low)} by the threshold. Each is an "
    "answer computed once more, nothing worse. "
    + (
        "What gets through wrongly: "
        + "; ".join(f"“{i.pair.stored}” for “{i.pair.asked}” ({i.pair.kind})" for i in leaks)
        + "."
        if leaks
        else "No trap of this half gets through."
    )
)

# %% [markdown]
# Rules of this kind are cheap, readable and blind to everything outside their lists, and these know English only. The learned
# alternative is a *cross-encoder*: a second transformer that reads both questions in one sequence, so that its attention can
# compare word with word ([re-ranking](https://arxiv.org/abs/1901.04085)), or one trained on contradiction. It costs one more
# forward pass per candidate, and it must be measured on the same pairs.
#
# Move the threshold yourself. The points are the report half; the switch is the check.

# %% tags=["hide-input", "nbval-ignore-output"]
lumen.explore.Threshold(report, threshold=0.8)

# %% [markdown]
# ## Whose answer, and how old?
#
# Three more gates have nothing to do with vectors. Answers belong to a *tenant*: what was computed from Ann's documents is not
# for Ben, however alike they ask. Answers grow old: a *TTL* says when. And a follow-up such as *And in winter?* means nothing
# without its conversation, so it must neither be stored nor found.

# %% tags=["nbval-check-output"]
now = [0.0]  # a clock that we move
cache = SemanticCache(encoder, threshold=guarded.threshold, ttl=3600, clock=lambda: now[0])
print("stored:            ", cache.put(STORED, "Use rm.", tenant="ann"))
print("follow-up stored:  ", cache.put("And in winter?", "Then also.", tenant="ann"))
PARAPHRASE = asked["the same in other words"]
print("Ann, other words:  ", cache.look(PARAPHRASE, tenant="ann").hit is not None)
print("Ann, the opposite: ", cache.look(asked["its opposite"], tenant="ann").rule)
print("Ben, word for word:", cache.look(STORED, tenant="ben").hit is not None)
now[0] = 3600.0
print("Ann, an hour later:", cache.look(PARAPHRASE, tenant="ann").hit is not None)
assert cache.get(STORED, tenant="ben") is None

# %% [markdown]
# ## Where it loses
#
# **Where hits are rare.** Every look-up pays for a vector, hit or miss. A hit saves a whole answer. With a look-up of $t_\text{look}$
# and an answer of $t_\text{answer}$, the cache pays from a hit rate of $t_\text{look} / t_\text{answer}$ on.

# %% tags=["measure", "nbval-ignore-output"]
probe = [pair.asked for pair in load_pairs("report")[:8]]
looking = bench.measure(lambda: [encoder.encode([text]) for text in probe], repeats=5).per(len(probe))
model, tokenizer = lumen.load("smollm2-135m")
speed = bench.generation(model, 32, 9, repeats=1)
writing = {n: speed.ttft + (n - 1) * speed.tpot for n in (1, 10, 100, 300)}

# %% tags=["hide-input", "nbval-ignore-output"]
look_s = looking.median
table(
    [[n, f"{t:.2f} s", f"{look_s / t:.1%}" if look_s < t else "never"] for n, t in writing.items()],
    ["tokens of the answer", "time to write it", "break-even hit rate"], align="rrr",
)  # fmt: skip
markdown(
    f"A look-up costs {1e3 * look_s:.1f} ms on this machine, nearly all of it the vector, and a decode step of SmolLM2 "
    f"{1e3 * speed.tpot:.1f} ms: {look_s / speed.tpot:.1f} tokens' worth. Answers of 300 tokens pay from {look_s / writing[300]:.1%} on, a "
    f"classifier's one word {f'only from {look_s / writing[1]:.0%}' if look_s < writing[1] else 'never'}. Break-even does not know what "
    "a wrong answer costs."
)

# %% [markdown]
# **Where every request is its own.** Creative prompts and turns of a chat look alike and want different answers, or are
# meaningless alone:

# %% tags=["measure", "nbval-ignore-output"]
creative = [
    "Write a poem about the sea.", "Write a haiku about autumn rain.", "Tell me a bedtime story about a fox.",
    "Invent a name for my bakery.", "Write a limerick about a tired programmer.", "Describe a city on the moon.",
    "Draft a toast for my sister's wedding.", "Write a song about leaving home.",
]  # fmt: skip
followups = [pair.asked for pair in pairs if pair.kind == "context"]
hit_rate = {}
for name, traffic in {"creative prompts": creative, "follow-ups": followups}.items():
    fresh = SemanticCache(encoder, threshold=guarded.threshold)
    for text in traffic:
        if fresh.get(text) is None:
            fresh.put(text, "…")
    hit_rate[name] = fresh.stats.hit_rate
full = SemanticCache(encoder, threshold=guarded.threshold)
for item in report:
    full.put(item.pair.stored, "…")
again = [full.get(i.pair.asked) is not None for i in report if i.pair.same]
hit_rate["paraphrases of stored questions"] = sum(again) / len(again)

# %% tags=["hide-input", "nbval-ignore-output"]
table([[name, f"{rate:.0%}"] for name, rate in hit_rate.items()], ["traffic", "hits"], align="lr")

# %% [markdown]
# ### Negative controls
#
# Three caches that must fail, each in its own way. Pairs that are put together at random must not hit. Random vectors must
# find nobody near. And a threshold of −1 without a check must hit whatever it is asked.

# %% tags=["nbval-check-output"]
shuffled = (kept * np.roll(new, 7, axis=0)).sum(1)
random_rows = np.random.default_rng(0).standard_normal(new.shape).astype(np.float32)
random_rows /= np.linalg.norm(random_rows, axis=1, keepdims=True)
anything = SemanticCache(encoder, threshold=-1.0, second_check=None)
anything.put(STORED, "Use rm.")
print(f"shuffled pairs at 0.8 or more: {(shuffled >= 0.8).mean():.1%}")
print("nearest of random vectors below 0.5:", bool((random_rows @ kept.T).max() < 0.5))
print("threshold -1, 'Why does bread rise?':", anything.get("Why does bread rise?").answer)
assert (shuffled >= 0.8).mean() < 0.02 and (random_rows @ kept.T).max() < 0.5

# %% [markdown]
# ## Three caches, three uses
#
# | | exact | prefix ([chapter 6](06_prefix_cache.ipynb)) | semantic |
# | --- | --- | --- | --- |
# | what must agree | the whole request, model and parameters | the beginning, token for token | the meaning, in the encoder's opinion |
# | what a hit saves | everything | the prefill of the shared part | everything, less the vector |
# | can it be wrong | no | no | yes |
# | sampling at temperature > 0 | frozen | untouched | frozen |
# | good for | retries, buttons, batch jobs, evaluations | chats, agents, long documents, shared instructions | frequent questions to a help desk, each complete in itself |
# | leave it out | unique requests | prompts that begin differently | anything personal, current, creative or dangerous |
#
# They stack in this order: the exact one first, since it is cheapest and never wrong, then the semantic one where it is
# allowed at all, and the prefix cache below, in the engine, for everything that is left.
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the test set holds paraphrases and unrelated questions only | precision near 100 % at any threshold | four kinds of traps, each counted by itself |
# | threshold chosen and reported on the same pairs | a false-hit rate that does not survive its first week | two halves, split by a hash; no question stands in both |
# | hit rate taken for success | a loose threshold looks better and better | right and wrong hits counted apart; a cache with threshold −1 hits everything |
# | similarity in one library, distance in the next | 0.2 where 0.8 was meant, and nearly everything hits, or nothing | one convention (cosine), asserted against numpy |
#
# ## Play
#
# Type two questions. The lab shows their cosine, what the threshold says, and what the second reader says and why.

# %% tags=["nbval-ignore-output"]
lab = lumen.explore.semantic_lab(encoder, threshold=guarded.threshold)

# %% [markdown]
# ## In production
#
# | system | what it offers | version |
# | --- | --- | --- |
# | [GPTCache](https://github.com/zilliztech/GPTCache) | `similarity_threshold`, 0.8 by default, and exchangeable evaluations, cross-encoders among them (since 0.1.31); [opposites pass the default](https://github.com/zilliztech/GPTCache/issues/694) | issue of August 2026 |
# | [RedisVL](https://redis.io/docs/latest/develop/ai/redisvl/0.9.1/user_guide/llmcache/) | `SemanticCache` with `distance_threshold` (a cosine *distance*, 0 to 2: small is strict), TTL, filters for several users | 0.9.1 |
# | [langchain-redis](https://reference.langchain.com/python/langchain-redis/cache/LangCacheSemanticCache) | `LangCacheSemanticCache`: exact and semantic search, `distance_threshold=0.2` with a choice of two scales | read in November 2026 |
# | [vLLM semantic router](https://github.com/vllm-project/semantic-router/pull/3075) | `polarity_guard` after the threshold: `lexical` by default, `nli`, or both, after [opposites had been served](https://github.com/vllm-project/semantic-router/issues/2691) | August 2026 |
# | vLLM, SGLang, TensorRT-LLM, llama.cpp | the engines themselves cache prefixes only: no engine guesses at meaning | read in November 2026 |
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **Topic is near, truth is not.** A question and its negation have a cosine of {opposite:.2f}, a paraphrase {same:.2f}, and two "
    f"questions with their planets exchanged {swapped:.3f}.\n"
    f"- **The exact cache first.** Prompt, model, parameters and tenant are the key; it is never wrong.\n"
    f"- **The threshold is data, and not enough.** At 0.8, {usual.precision:.0%} of the hits were right; "
    + (
        "no threshold kept false hits under 1 %.\n"
        if alone is None
        else f"under 1 % false hits {alone.recall:.0%} recall was left.\n"
    )
    + f"- **A second reader** brought precision to {final.precision:.0%} at a recall of {final.recall:.0%}, on pairs that nobody had tuned on.\n"
    f"- **It pays** from a hit rate of {look_s / writing[100]:.1%} on for answers of 100 tokens, and not at all where each request is new."
)
callout(
    "takeaway",
    "**Takeaway.** A semantic cache is a classifier with users behind it. Count its wrong hits on pairs that were made to trap it, "
    "before you count what it saves.",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "A help desk raises the threshold from 0.8 to 0.95 after a wrong hit. What does it get?",
            "choices": [
                {"text": "Fewer hits, and still opposites among them.", "ok": True, "why": "Exchanged roles and negations lie as high as the best paraphrases, or higher."},
                {"text": "Only right hits.", "why": "The pairs with exchanged planets are above 0.95."},
                {"text": "The same hits.", "why": "Many paraphrases lie between the two and are lost."},
            ],
        },
        {
            "kind": "numeric",
            "question": "Two unit vectors have a squared distance of 0.4. What is their cosine?",
            "answer": 0.8, "tolerance": 0.001, "unit": "",
            "right": "1 − 0.4 / 2.",
            "wrong": "The squared distance is 2 − 2 cos.",
            "slips": [
                {"answer": 0.6, "tolerance": 0.001, "why": "One minus distance is right for cosine distance. Here the squared Euclidean distance is given."},
                {"answer": 0.2, "tolerance": 0.001, "why": "That is the cosine distance, one minus the cosine."},
            ],
        },
        {
            "kind": "choice",
            "question": "Mean pooling forgets the attention mask. Who notices?",
            "choices": [
                {"text": "The same question gets another vector in another batch.", "ok": True, "why": "The number of padding tokens depends on the longest text of the batch."},
                {"text": "Nobody: padding vectors are zero.", "why": "The transformer writes something at every position, padding too."},
                {"text": "Only texts longer than 256 tokens.", "why": "Those are cut. Short texts beside long ones have the most padding."},
            ],
        },
        {
            "kind": "numeric",
            "question": "A look-up takes 20 ms, an answer 2 s. From which hit rate on does the cache save time, in percent?",
            "answer": 1, "tolerance": 0.01, "unit": "%",
            "right": "20 ms / 2,000 ms.",
            "wrong": "Every request pays the look-up; a hit saves the answer.",
            "slips": [{"answer": 0.01, "tolerance": 0.001, "why": "As a share. In percent, please."}],
        },
        {
            "kind": "choice",
            "question": "Which cache for an agent that sends its growing conversation with every step?",
            "choices": [
                {"text": "A prefix cache.", "ok": True, "why": "Each step begins with the one before, to the token, and the answers must be new."},
                {"text": "A semantic cache.", "why": "Two steps of a conversation are very much alike and need different answers."},
                {"text": "An exact cache.", "why": "No step is sent twice, except in retries."},
            ],
        },
    ],
    id="07",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/07_semantic_cache.ipynb) ([solutions](../solutions/07_semantic_cache.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("07"))

# %% [markdown]
# ## Further reading
#
# - [Sentence-BERT](https://arxiv.org/abs/1908.10084) (Reimers and Gurevych, 2019): read it for why the bare transformer's vectors
#   are poor, and what training on pairs changes.
# - [The Faiss library](https://arxiv.org/abs/2401.08281) (Douze and others, 2024): read it for how to choose an index, and what each
#   gives up.
# - [HNSW](https://arxiv.org/abs/1603.09320) (Malkov and Yashunin, 2016): read it for the graph that most vector databases walk.
# - [vCache](https://arxiv.org/abs/2502.03771) (2025): read it for a threshold of its own for each stored prompt, learned while
#   serving, under an error budget.
# - [GPT Semantic Cache](https://arxiv.org/abs/2411.05276) (Regmi and Pun, 2024): read it with exercise 5 in mind, for what is
#   counted as a correct hit.
# - [Opposites served by a semantic cache](https://github.com/vllm-project/semantic-router/issues/2691) (2026): read it for this
#   chapter's first page, found in production with another encoder.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
try:
    record = bench.load_evidence("semantic_cache")
    lookup = {part: 1e3 * timing["median"] for part, timing in record["data"]["seconds"].items()}
    print("published look-up:", ", ".join(f"{part} {ms:.2f} ms" for part, ms in lookup.items()))
    print(f"evidence: semantic_cache, {record['date']}, {record['cpu']}")
except bench.NoEvidence as missing:
    print(missing)
if faiss_record:
    print(f"evidence: faiss_indexes, {faiss_record['date']}, {faiss_record['cpu']}")
print(f"{len(pairs)} pairs, {len(tune)} to tune and {len(report)} to report; encoder {encoder.fingerprint}")
