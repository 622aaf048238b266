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
# # 6 · The prefix cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/06_prefix_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/06_prefix_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/06_prefix_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 95 min · here: [exercises](../exercises/06_prefix_cache.ipynb), [solutions](../solutions/06_prefix_cache.ipynb)
#
# </div>

# %% [markdown]
# SmolLM2 is told to answer questions about the first scene of *Hamlet*. The scene goes into the system prompt, a thousand
# tokens of it, and every question of every reader carries those thousand tokens along. The first reader pays for them. The
# second one should not have to.
#
# Then somebody has the good idea to tell the model what time it is, and writes the clock into the first line.
#
# **Why are the thousand tokens free the second time, and why does one digit at the top make them expensive again?**
#
# By the end you can
#
# - say which part of a prompt can be reused, to the token, and why it is never the middle;
# - predict the time to first token (TTFT) behind a cached prefix, and name what still has to be paid;
# - write a prefix cache in 40 lines that never serves another customer's numbers;
# - lay out a prompt for hits, and say from which use on a cache price of 1.25 and 0.1 pays off.
#
# Needs: [the KV cache](04_kv_cache.ipynb), [the paged cache](05_paged_cache.ipynb).

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

session = lumen.setup("06_prefix_cache")

# %% [markdown]
# Equality is the point here, so the model runs in fp32, on a GPU too.

# %%
import hashlib
import random

import torch

from lumen import assets, bench, cost, hardware
from lumen.cache import BlockPool, BlockStore, HashPrefix, NoCache, RadixPrefix
from lumen.cache.prefix import Prefix
from lumen.explore import callout, figure, label_line, markdown, palette, reveal, table
from lumen.models import CONFIGS, Llama, ModelConfig

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device

# %% [markdown]
# ## One prompt, five requests
#
# The store below is the paged cache of the last chapter: blocks of 16 positions. One line is new. It gives the store a
# [prefix cache](../book/glossary.md#term-prefix-cache): a memory of what its blocks hold, which outlives the requests.

# %%
BLOCK = 16
plays, _ = assets.shakespeare()
hamlet = tokenizer.encode(plays[plays.index("SCENE I. Elsinore") :][:6000])
RULES = "Answer in one sentence, from this scene.\n\n" + tokenizer.decode(hamlet[:960])

store = BlockStore.for_model(model, 300, BLOCK)
store.prefix = HashPrefix(store.pool)  # the new line


def prompt_of(system, question):
    talk = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return tokenizer.apply_chat(talk)


def ask(store, prompt, new=1):
    """Generate on blocks of `store`; whatever its prefix cache knows is not run again."""
    with store.rows(1) as cache:
        (done,) = lumen.generate(model, [prompt], new, tokenizer=tokenizer, eos_ids=(), cache=cache)
    return done


# %% tags=["measure", "nbval-ignore-output"]
WHO, WHAT = "Who is on guard?", "What have the guards seen?"
requests = {
    "the first question": prompt_of(RULES, WHO),
    "another question": prompt_of(RULES, WHAT),
    "clock on top, 09:12:03": prompt_of("09:12:03\n" + RULES, WHAT),
    "clock on top, 09:12:04": prompt_of("09:12:04\n" + RULES, WHAT),
    "clock at the end, 09:12:05": prompt_of(RULES, WHAT + " It is 09:12:05."),
}
ask(store, tokenizer.encode("Warm up, please. " * 8))
answers = {name: ask(store, prompt) for name, prompt in requests.items()}

# %% tags=["hide-input", "nbval-ignore-output"]
names = list(answers)
held = [answers[n].num_cached_tokens for n in names]
length = [answers[n].num_prompt_tokens for n in names]
ttft = [1e3 * answers[n].ttft for n in names]
fig = figure(
    f"A known beginning: {ttft[1]:,.0f} ms instead of {ttft[0]:,.0f}. One digit before it: {ttft[3]:,.0f} ms again",
    x="tokens of the prompt", y="request", height=360,
)  # fmt: skip
fig.add_bar(x=held, y=names, orientation="h", marker_color=palette.blue, name="found in the cache")
fig.add_bar(
    x=[p - h for p, h in zip(length, held, strict=True)], y=names, orientation="h", marker_color=palette.orange,
    name="run through the model", text=[f" {t:,.0f} ms" for t in ttft], textposition="outside", cliponaxis=False,
)  # fmt: skip
fig.update_layout(barmode="stack", showlegend=True)
fig.update_yaxes(autorange="reversed", title_text=None)
fig.update_xaxes(range=[0, 1.5 * max(length)])  # room for the labels on a narrow screen
fig

# %% tags=["hide-input", "nbval-check-output"]
table(
    [[n, p, h, p - h] for n, p, h in zip(names, length, held, strict=True)],
    ["request", "tokens", "found", "run"],
)
assert held[0] == held[2] == held[3] == 0 and length[1] - held[1] < 2 * BLOCK and held[4] >= held[1]

# %% [markdown]
# The second request finds everything up to its own question, to the block. The fourth differs from the third in one digit and from the
# second in nine characters, all of them in front of the same thousand tokens, and finds nothing. With the clock at the
# end, everything is back.
#
# The text of the scene is in memory each time. Why can the fourth request not use it?
#
# ## The beginning, and nothing but the beginning
#
# Take forty tokens of the scene and put them behind two clocks that differ in one digit. Same tokens, same positions. Are
# their keys and values the same? What if something else of the same length stands there, and what if one token more does?


# %%
class Recorder(NoCache):
    """Keeps nothing for the model, but writes down keys and values of every layer for us."""

    def __init__(self):
        self.seen = []

    def update(self, layer, k, v, pos, q=None):
        self.seen.append(torch.cat([k, v], -1))
        return k, v, pos


def keys_values(front):
    """(layers, KV heads, 40, 2 · 64): keys and values of the same forty tokens behind `front`."""
    tokens, tape = torch.tensor([front + hamlet[:40]], device=device), Recorder()
    model.hidden(tokens, torch.arange(tokens.shape[1], device=device)[None], tape)
    return torch.stack(tape.seen)[:, 0, :, -40:]


def change(one, other):
    return [float((a - b).norm() / a.norm()) for a, b in zip(one, other, strict=True)]


clock, later = tokenizer.encode("09:12:03\n"), tokenizer.encode("09:12:04\n")
base = keys_values(clock)
pirate = tokenizer.encode("Answer like an angry pirate, in rhymes, and never politely.\n")[-len(clock) :]
one_digit = change(base, keys_values(later))
another = change(base, keys_values(pirate))
one_more = change(base, keys_values(clock + clock[-1:]))
assert len(pirate) == len(clock)
assert len(clock) == len(later) and sum(a != b for a, b in zip(clock, later, strict=True)) == 1

# %% tags=["hide-input", "nbval-ignore-output"]
layers = list(range(1, config.num_layers + 1))
fig = figure(
    f"Layer 1 does not notice what stands in front. The last layer changes by {one_digit[-1]:.1%} for one digit, "
    f"{another[-1]:.0%} for another sentence",
    x="layer", y="change of K and V (norm)",
)  # fmt: skip
curves = {"one other digit": (one_digit, palette.blue), "another sentence": (another, palette.green),
          "one token more": (one_more, palette.orange)}  # fmt: skip
for name, (y, color) in curves.items():
    fig.add_scatter(x=layers, y=y, mode="lines+markers", line_color=color)
    side, at = ("left", 1) if y is one_more else ("right", -1)
    label_line(fig, layers[at], y[at], name, color, anchor=side, shift=15)
fig.update_yaxes(rangemode="tozero", tickformat=".0%")
fig

# %% [markdown]
# In layer 1 a key is made from its own token and its own position, and both are the same. But layer 1 also lets every token
# *look* at what is in front. What it saw goes into the keys of layer 2, and from there on nothing is the same any more. One
# digit does little, and little is not nothing: rounding in fp32 begins at the seventh digit. One token more moves everything
# along, and then layer 1 changes too.
#
# So the keys and values at position $p$ belong to **all tokens from 0 to $p$**, in this order. Two requests may share them
# exactly as far as they agree from the very first token on. A match in the middle of a text is no match, however long it
# is: prefixes, not substrings. And it is token ids that must agree, not words: a space, a capital letter, a chat template
# with another version are other tokens.
#
# The other direction holds as well. Nothing that comes *later* changes position $p$. That is why a question can be
# replaced behind the scene, and why it does not matter who asked it.
#
# ## What a hit leaves to do
#
# A hit is counted in whole blocks, and at least one token must run, since the logits for the first new token come out
# of the prompt's last row. With $P$ tokens in the prompt, the first $s$ of them shared, and blocks of $b$, the number found is
#
# $$ f = b \cdot \left\lfloor \min(s,\; P - 1) / b \right\rfloor $$
#
# The rest goes through the model, and looks at everything that was found. With $\kappa$ bytes of cache a token:
#
# | step | cold | warm |
# | --- | --- | --- |
# | matrices | $P$ rows | $P - f$ rows, and all weights are read once all the same |
# | attention | $P(P+1)/2$ pairs | each new row with each position before it |
# | cache | $P \kappa$ bytes written | $(P - f)\, \kappa$ bytes written, $f \kappa$ read |
#
# `cost.predict_prefill` adds the rows of this table up, `held` being what was found. `cache="paged"` adds what our version pays
# for [gathering blocks](05_paged_cache.ipynb): the whole cache, read and written once more.


# %%
def found(shared, prompt, block=BLOCK):
    return min(shared, prompt - 1) // block * block


chip = hardware.measure(progress=False)


def predict(new, held=0):
    """Time, and its parts, of running `new` prompt tokens behind `held` found ones on this machine."""
    return cost.predict_prefill(config, chip, new, dtype="fp32", held=held, cache="paged")


# %% tags=["hide-input", "nbval-ignore-output"]
kappa = cost.kv_bytes_per_token(config, "fp32")
markdown(
    f"For SmolLM2 in fp32 a token costs {kappa / 2**10:.0f} KiB of cache, so 1,000 found tokens are "
    f"{1000 * kappa / 1e6:.0f} MB to read: {1e3 * 1000 * kappa / chip.bandwidth:.1f} ms at this machine's "
    f"{chip.bandwidth / 1e9:.1f} GB/s. To compute them takes "
    f"{1e3 * predict(1000).seconds:,.0f} ms, predicted. "
    f"A prompt of 1,000 tokens that is known word for word: {found(1000, 1000)} are found; of 992, which is 62 blocks "
    f"to the token, {found(992, 992)}. The last block is run again for the sake of one row."
)
assert found(992, 992) == 976 and found(1000, 1000) == 992 and found(15, 400) == found(1, 1) == 0

# %% [markdown]
# ## Predict: 512 shared, 32 new
#
# A prompt of 544 tokens, of which 512 were there before. 17 times fewer tokens have to run. **How many times lower is
# the TTFT?** Write down your number.

# %% tags=["predict"]
my_guess = 17.0  # times lower TTFT

# %% tags=["measure", "nbval-ignore-output"]
shared = hamlet[:512]
memory = BlockStore.for_model(model, 60, BLOCK)
memory.prefix = HashPrefix(memory.pool)
ask(memory, shared + hamlet[600:632])  # somebody was here before
cold, warm = [], []
for i in range(1, 4):
    prompt = shared + hamlet[600 + 32 * i : 632 + 32 * i]
    cold.append(ask(BlockStore.for_model(model, 35, BLOCK), prompt))
    warm.append(ask(memory, prompt))
print("tokens found:", [w.num_cached_tokens for w in warm])
print("the same first token:", [c.tokens == w.tokens for c, w in zip(cold, warm, strict=True)])

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
ratios = [c.ttft / w.ttft for c, w in zip(cold, warm, strict=True)]
behind = predict(32, held=512)
ratio, expected = sorted(ratios)[1], predict(544).seconds / behind.seconds
reveal(
    guess=my_guess, model=expected, measured=ratios, unit="×", what="lower TTFT",
    title=f"17 times fewer tokens gave {ratio:.1f} times less waiting",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
weights = cost.weight_bytes(config, "fp32")
few, many = (predict(n).seconds / n for n in (32, 544))
looked = behind.parts["attention"] + behind.parts["cache"]  # at what was found, and gathering it
markdown(
    f"The model says **{expected:.1f}×**, the clock says **{ratio:.1f}×**. "
    + (
        f"Less than 17, because 32 rows are not a 17th of the work of 544: they read all {weights / 1e9:.2f} GB of weights "
        f"just the same, and at {1e3 * few:.2f} ms a row against {1e3 * many:.2f} ms they use the machine less well. "
        if ratio < 16
        else "Close to 17 or above: on this machine a row costs about the same in a short pass as in a long one. "
    )
    + f"What was found is not free either. To gather it and to look at it takes {1e3 * looked:.0f} of the {1e3 * behind.seconds:.0f} ms "
    "predicted for the warm prompt."
)

# %% [markdown]
# The same at three lengths, with more repeats, from the published run:

# %% tags=["hide-input"]
try:
    record = bench.load_evidence("prefix_cache")
    evidence = record["data"]
except bench.NoEvidence:
    record = evidence = None

if evidence:
    rows = evidence["shared_prompt"]
    table(
        [
            [
                f"{r['shared']:,} + {r['new']}", f"{1e3 * r['cold']['median']:,.0f} ms", f"{1e3 * r['predicted_cold']:,.0f} ms",
                f"{1e3 * r['warm']['median']:,.0f} ms", f"{1e3 * r['predicted_warm']:,.0f} ms",
                f"{r['cold']['median'] / r['warm']['median']:.1f}×",
            ]
            for r in rows
        ],
        ["shared + new", "cold", "predicted", "warm", "predicted", "lower"], align="lrrrrr",
    )  # fmt: skip
    far = [r["warm"]["median"] / r["predicted_warm"] - 1 for r in rows]
    markdown(
        f"Cold TTFT grows with the shared prompt, warm TTFT {'hardly' if rows[-1]['warm']['median'] < 2 * rows[0]['warm']['median'] else 'too'}: "
        f"{1e3 * rows[0]['warm']['median']:.0f} ms behind {rows[0]['shared']} tokens, {1e3 * rows[-1]['warm']['median']:.0f} ms "
        f"behind {rows[-1]['shared']:,}. Against their predictions the warm ones took {min(far):+.0%} to {max(far):+.0%}. "
        f"(Measured on {record['cpu']}, {record['date']}.)"
    )
else:
    markdown(
        "The published run `prefix_cache` is not here. `python benchmarks/prefix_cache.py` makes it in minutes."
    )

# %% [markdown]
# So a hit is worth a lot. Now somebody has to *find* it, in a pool that may hold a hundred thousand blocks.
#
# ## Build it
#
# Ask for a block by its sixteen tokens and you get the wrong one, as we saw: the same tokens behind another beginning are
# other numbers. Ask for it by everything from the first token on, and the keys grow with the prompt. The way out is a
# chain. A block's key is a hash of **its parent's key and its own tokens**. The parent's key stands for all that came
# before, so each key does, at a fixed size:
#
# $$ \text{key}_i = \text{sha256}(\text{key}_{i-1},\ \text{tokens}_i,\ \text{extra}) $$
#
# *Extra* is whatever else the numbers depend on, or must not be shared with: the LoRA adapter, the tenant, a salt. Two
# models with different adapters turn the same tokens into different keys and values. `lumen.generate` takes it as `extra=`.
#
# A hash is no proof. It finds a candidate; the stored parent, tokens and extra must then agree, or it is a miss.


# %%
class MyPrefix(Prefix):
    """Blocks under chained keys. The dictionary is kept in order of use, oldest first."""

    def __init__(self, pool):
        self.pool, self.known = pool, {}  # key -> (block, what the key stands for)

    def chain(self, tokens, count, extra):
        key, size = b"", self.pool.block_size
        for start in range(0, count * size, size):
            content = (key, tuple(tokens[start : start + size]), tuple(extra))
            key = hashlib.sha256(repr(content).encode()).digest()
            yield key, content

    def match(self, tokens, extra=()):
        keys, blocks = [], []
        for key, content in self.chain(tokens, (len(tokens) - 1) // self.pool.block_size, extra):
            block, stored = self.known.get(key, (None, None))
            if stored != content:
                break
            keys.append(key)
            blocks.append(block)
        self.touch(keys)
        self.pool.share(blocks)  # one reference for the caller: nobody evicts what is being read
        return blocks

    def insert(self, tokens, blocks, extra=()):
        keys = []
        full = self.chain(tokens, len(tokens) // self.pool.block_size, extra)
        for (key, content), block in zip(full, blocks, strict=False):
            if key not in self.known:
                self.pool.share([block])  # and one of our own
                self.known[key] = block, content
            keys.append(key)
        self.touch(keys)

    def touch(self, keys):
        for key in reversed(keys):  # the end of a chain first, so that it is older than its parents
            self.known[key] = self.known.pop(key)

    def evict(self, count):
        unread = [key for key, (block, _) in self.known.items() if self.pool.refs(block) == 1][:count]
        return len(self.pool.release([self.known.pop(key)[0] for key in unread]))

    def blocks(self):
        return [block for block, _ in self.known.values()]


# %% [markdown]
# Three details carry the weight. `match` stops one token short of the prompt, so that something is left to run.
# Only full blocks are remembered, because a half-full one will still be written to. And `touch` walks the chain backwards: a
# block whose parent is gone can never be reached again, so ends must go first, and the order of the dictionary sees
# to that. (`lumen` counts children as well. With several requests in flight a block can be in use while its parent, of
# which another request has a twin, is not.)
#
# ## Equal to whom?
#
# On paper first, without a model: 400 requests with shared beginnings, against the two prefix caches of `lumen`. `serve`
# is the life of a request as far as blocks are concerned.


# %%
def serve(prefix, tokens):
    """Match, take blocks for the rest, remember them, end. Returns how many tokens were found."""
    pool = prefix.pool
    blocks = prefix.match(tokens)
    held, need = len(blocks) * pool.block_size, -(-len(tokens) // pool.block_size) - len(blocks)
    if need > pool.num_free:
        prefix.evict(need - pool.num_free)
    blocks += pool.allocate(need)
    prefix.insert(tokens, blocks)
    pool.release(blocks)
    return held


def workload(requests, seed=0):
    """Thirty system prompts, a few of them popular, each followed by something of its own."""
    draw = random.Random(seed)
    trunks = [[draw.randrange(9999) for _ in range(draw.randrange(64, 384))] for _ in range(30)]
    for trunk in draw.choices(trunks, [1 / (i + 1) for i in range(30)], k=requests):
        yield trunk + [draw.randrange(4) for _ in range(draw.randrange(1, 80))]


# %% tags=["nbval-check-output"]
hits = {}
for kind in (MyPrefix, HashPrefix, RadixPrefix):
    prefix = kind(BlockPool(6000, BLOCK))
    hits[kind.__name__] = [serve(prefix, tokens) for tokens in workload(400)]
    prefix.pool.audit([prefix.blocks()])
print({name: sum(each) for name, each in hits.items()}, "tokens found")
assert hits["MyPrefix"] == hits["HashPrefix"] == hits["RadixPrefix"]

# %% [markdown]
# Then with numbers: a small random model in float64, nine query heads on three KV heads. A talk of ten turns through the
# cache, each turn's logits against the same tokens run whole.


# %%
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def last_logits(model, tokens, store):
    """Logits of the last token, and how many tokens were found. What is new is remembered."""
    with store.rows(1) as cache:
        (held,) = cache.adopt([tokens])
        row = model.hidden(torch.tensor([tokens[held:]], device=device), None, cache)[:, -1]
        cache.keep([tokens])
    return model.head(row), held


torch.manual_seed(0)
small = Llama(ModelConfig("small", 97, 3, 72, 9, 3, 8, 100, 256)).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)

small_store = BlockStore.for_model(small, 60, 4)
small_store.prefix = MyPrefix(small_store.pool)
talk, errors, reused = [], [], 0
for _ in range(10):
    talk += torch.randint(97, (11,)).tolist()
    logits, held_now = last_logits(small, talk, small_store)
    errors.append(relative_error(logits, small(torch.tensor([talk], device=device))[:, -1]))
    reused += held_now

# %% tags=["nbval-check-output"]
small_store.audit()
print(f"{reused} of 605 tokens reused; equal to float64 rounding: {max(errors) < 1e-12}")
assert max(errors) < 1e-12 and reused > 400

# %% [markdown]
# And on the real weights in fp32, against Hugging Face transformers, which runs the whole prompt and has no prefix cache
# at all:

# %% tags=["hide-input"]
try:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from lumen.models.weights import to_hf_state

    logging.disable_progress_bar()
    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads, head_dim=config.head_dim,
        num_key_value_heads=config.num_kv_heads, max_position_embeddings=config.max_positions,
        rope_theta=config.rope_theta, rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = LlamaForCausalLM(shape).eval()
    theirs.load_state_dict(to_hf_state(model) | {"lm_head.weight": model.embed.weight}, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(shape).to(device)  # a table, not a weight
except ImportError:
    theirs = None  # the comparison is left out, everything else runs

# %% tags=["hide-input", "nbval-ignore-output"]
mine = BlockStore.for_model(model, 30, BLOCK)
mine.prefix = MyPrefix(mine.pool)
front = hamlet[:150]
last_logits(model, front + tokenizer.encode(" Who speaks?"), mine)
asked = front + tokenizer.encode(" Where are they?")
ours, held_now = last_logits(model, asked, mine)
others = {"no cache": model.head(model.hidden(torch.tensor([asked], device=device))[:, -1])}
if theirs is not None:
    others["transformers"] = theirs(torch.tensor([asked], device=device)).logits[:, -1]
table(
    [[name, f"{relative_error(ours, other):.0e}".replace("0e+00", "0")] for name, other in others.items()],
    [f"MyPrefix, {held_now} of {len(asked)} tokens found, against", "relative error of the logits"],
)
assert all(relative_error(ours, other) < 1e-4 for other in others.values()) and held_now == 144

# %% [markdown]
# The limit is $10^{-4}$, asserted; what remains is the order of additions. Prefix caching is exact. It changes no token.
#
# ## Predict: a chat of ten turns
#
# A chat is the best customer of this cache, because each turn repeats everything said before, and *the model's own answers
# are kept as well*: their keys and values were computed when they were generated. Ten turns, all about equally long.
# Without a cache, turn ten runs ten turns' worth of tokens. **Over the whole chat, how many times less time is spent
# waiting for first tokens?**

# %% tags=["predict"]
my_guess = 10.0  # times less waiting for first tokens, over ten turns

# %% tags=["measure", "nbval-ignore-output"]
QUESTIONS = [
    "Hello! Can you tell me something about the sea?", "How deep is it?", "And what lives at the bottom?",
    "What do they eat down there?", "Is it cold?", "How cold, in degrees?", "Do people go there?",
    "What do they travel in?", "Would you go?", "Thank you. Say goodbye like a sailor.",
]  # fmt: skip
chat_store = BlockStore.for_model(model, 120, BLOCK)
chat_store.prefix = RadixPrefix(chat_store.pool)
talk, turns, same = [], [], 0
for question in QUESTIONS:
    talk += tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
    with_cache = ask(chat_store, talk, new=24)
    (without,) = lumen.generate(model, [talk], 1, eos_ids=())
    turns.append((len(talk), with_cache.num_cached_tokens, without.ttft, with_cache.ttft))
    same += without.tokens == with_cache.tokens[:1]
    talk += with_cache.tokens + tokenizer.encode("<|im_end|>\n")
print(f"first tokens that agree: {same} of 10")

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
run_cold, run_warm = sum(p for p, *_ in turns), sum(p - h for p, h, *_ in turns)
waited_cold, waited_warm = (sum(t[i] for t in turns) for i in (2, 3))
chat_ratio, chat_work = waited_cold / waited_warm, run_cold / run_warm
reveal(
    guess=my_guess, model=chat_work, measured=chat_ratio, unit="×", what="saved over ten turns",
    title=f"{chat_work:.1f} times fewer tokens run, {chat_ratio:.1f} times less waiting",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"Turn 10: {1e3 * turns[-1][2]:,.0f} ms without the cache, {1e3 * turns[-1][3]:,.0f} ms with it",
    x="turn of the chat", y="time to first token (ms)", height=340,
)  # fmt: skip
for i, color in ((2, palette.orange), (3, palette.blue)):
    fig.add_scatter(
        x=list(range(1, 11)), y=[1e3 * t[i] for t in turns], mode="lines+markers", line_color=color
    )
label_line(fig, 10, 1e3 * turns[-1][2], "no cache", palette.orange, anchor="right", shift=14)
label_line(fig, 10, 1e3 * turns[-1][3], "prefix cache", palette.blue, anchor="right", shift=14)
fig.update_yaxes(rangemode="tozero")
fig.update_xaxes(dtick=1)
fig

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Without a cache the ten turns run {run_cold:,} prompt tokens, with one {run_warm:,}: **{chat_work:.1f}×** fewer. "
    "Ten turns of one length would give 5.5, the mean of 1 to 10; answers that need not be run either add to that, blocks "
    f"that are not full take away. The waiting shrinks by **{chat_ratio:.1f}×**, "
    + (
        "less than the work, because short passes read the weights too. "
        if chat_ratio < 0.95 * chat_work
        else "as the work does. "
        if chat_ratio < 1.1 * chat_work
        else "by even more than the work. "
    )
    + f"At turn 10, {turns[-1][1]} of {turns[-1][0]} tokens are found, answers among them. Each turn runs what is new and the "
    "part of a block that was left over."
)

# %% [markdown]
# One line grows with the chat, the other hardly does. Summed over the turns, that is the difference between a bill that is
# quadratic in their number and one that is linear.
#
# ## The same job as a tree
#
# Chained keys flatten something that is a tree by nature: system prompts branch into users, users into turns. A
# [radix tree](../book/glossary.md#term-radix-tree) keeps that shape. An edge carries a run of tokens; looking up means walking and comparing,
# with nothing to hash; when a request leaves a run in its middle, the run is *split* there. Leaves are evicted, the
# least recently used first, and a path that a request is reading is locked by its references. Step through a ticket
# office. Watch request 2 split a run, and request 6, which says *boat* where the others say *train*.

# %%
lumen.explore.RadixTree(page=2, room=48)

# %% [markdown]
# Now set the clock to *first word*. The tree grows one bare trunk per request.
#
# Which of the two is better? They find the same tokens, as we asserted. What differs is what a lookup costs and what goes
# first when room is short.

# %% tags=["measure"]
rooms, rates = [100, 200, 400, 800, 1600], {}
for kind in (HashPrefix, RadixPrefix):
    for room in rooms:
        prefix = kind(BlockPool(room, BLOCK))
        asked_for = [(serve(prefix, tokens), len(tokens)) for tokens in workload(300, seed=1)]
        rates[kind.__name__, room] = sum(f for f, _ in asked_for) / sum(n for _, n in asked_for)

# %% tags=["hide-input"]
best = rates["HashPrefix", rooms[-1]]
fig = figure(
    f"A sixteenth of the room still finds {rates['HashPrefix', rooms[0]] / best:.0%} of what can be found",
    x="room in the pool (tokens)", y="share of prompt tokens found", height=340, log_x=True,
)  # fmt: skip
for kind, color, shift in (("HashPrefix", palette.blue, 16), ("RadixPrefix", palette.orange, -16)):
    y = [rates[kind, room] for room in rooms]
    fig.add_scatter(x=[r * BLOCK for r in rooms], y=y, mode="lines+markers", line_color=color)
    name = "chained keys" if kind == "HashPrefix" else "radix tree"
    side = "right" if kind == "HashPrefix" else "left"
    label_line(fig, rooms[2] * BLOCK, y[2], name, color, anchor=side, shift=shift)
fig.update_yaxes(rangemode="tozero", tickformat=".0%")
lumen.explore.theme.log_axis(fig, "x", [r * BLOCK for r in rooms])
fig

# %% tags=["hide-input"]
worst = max(abs(rates["HashPrefix", r] - rates["RadixPrefix", r]) for r in rooms)
text = (
    f"The two differ by {100 * worst:.1f} points at most. Popular beginnings are short of nothing, since each use makes them "
    "young again; what is lost first are the private ends that nobody asks for twice. "
)
if evidence:
    speed = {k: v["median"] for k, v in evidence["lookup"].items()}
    text += (
        f"In the published run, with 100,000 blocks remembered, a prompt of 64 blocks is found in {1e6 * speed['hash']:,.0f} µs by "
        f"chained keys and in {1e6 * speed['radix']:,.0f} µs by the tree, which compares tokens and hashes nothing; hit rates under "
        f"eviction were {evidence['hit_rate']['hash']:.1%} and {evidence['hit_rate']['radix']:.1%}. A lookup grows with the prompt and not with the pool."
    )
markdown(text)

# %% [markdown]
# So the choice hardly matters for hits. Engines choose by what else they want: keys travel well (a router or another machine
# can compare them), a tree shows who shares what (a scheduler can run requests of one branch together).
#
# ## What it costs, and from when on it pays
#
# If you rent the model by the token, the saving comes back as a price. Anthropic announced in
# [August 2024](https://www.anthropic.com/news/prompt-caching): writing a prefix into the cache costs 1.25 times the
# ordinary input price, reading it 0.1 times. OpenAI, in [October 2024](https://openai.com/index/api-prompt-caching/): automatic from
# 1,024 tokens on, in steps of 128, no charge for writing, half price for reading. Both have changed their lists since; the
# arithmetic stays. With $w$ for the price of a write and $r$ of a read, a prefix that is used $n$ times costs
# $w + r\,(n - 1)$ instead of $n$. So it pays when
#
# $$ n > \frac{w - r}{1 - r} $$

# %% tags=["hide-input", "nbval-check-output"]
saving = {n: cost.cached_prompt_saving(n) for n in (1, 2, 5, 10, 100)}
table([[n, f"{cost.cached_prompt_price(n):.2f}", f"{100 * s:.1f} %"] for n, s in saving.items()],
      ["uses n", "price, in prompts sent once", "saved"], align="rrr")  # fmt: skip
even = cost.cached_prompt_break_even()
markdown(
    f"It pays from n > {even:.3f} on, which means **from the second use**. The {100 * 0.9:.0f} % of the headlines is the "
    f"limit for infinitely many uses: ten give {100 * saving[10]:.1f} %. And a prefix that is written and never read costs a "
    f"quarter more. Each read saves 0.9, so a write must be read {0.25 / 0.9:.2f} times on average: if fewer than "
    f"{0.25 / 0.9:.0%} of all writes are ever read, and those once, do not write."
)
assert abs(even - 1.15 / 0.9) < 1e-12 and [round(100 * saving[n], 1) for n in (2, 5, 10, 100)] == [32.5, 67.0, 78.5, 88.8]  # fmt: skip

# %% tags=["hide-input"]
uses = [1, 2, 3, 5, 10, 20, 50, 100]
fig = figure(
    f"Ten uses save {100 * saving[10]:.1f} %, one use costs {-100 * saving[1]:.0f} % more",
    x="uses before the entry expires", y="saved on this prefix", height=340, log_x=True,
)  # fmt: skip
for write, color in ((1.25, palette.blue), (2.0, palette.orange)):
    y = [cost.cached_prompt_saving(n, write, 0.1) for n in uses]
    fig.add_scatter(x=uses, y=y, mode="lines+markers", line_color=color)
    name, at = f"write {write}", 2 if write < 2 else 3
    side, shift = ("right", 14) if write < 2 else ("left", -18)
    label_line(fig, uses[at], y[at], name, color, anchor=side, shift=shift)
fig.add_hline(y=0.9, line={"color": palette.grey, "dash": "dot"})
fig.add_hline(y=0, line={"color": palette.grey, "width": 1})
lumen.explore.theme.log_axis(fig, "x", [1, 2, 5, 10, 20, 50, 100])
fig.update_yaxes(tickformat=".0%")
fig

# %% [markdown]
# The second curve is Anthropic's price for an entry that lives an hour instead of five minutes (added in 2025). A longer
# life is bought with a dearer write, and pays only if more uses arrive in it.
#
# ## Lay out a prompt
#
# From all this follows one rule: **what never changes first, what changes most last.** Rules, tools, examples, then the
# customer's documents, then the talk so far, then the clock and the question. A talk is appended to, never edited: whoever
# shortens the history from the front, to save tokens, changes every position behind the cut and pays for all of them.
#
# Some order is invisible in the source. Tools serialised from a set, a user's name in the greeting, retrieved documents
# sorted by score: each is a clock in another dress. Further down you can move the parts of a prompt yourself.
#
# ## Beyond one pool
#
# A block that is evicted need not be lost. It can be copied to the host's memory, to a disk or to another machine, and
# brought back. Is that faster than computing it again? For 1,000 tokens of Llama-3-8B on an H100, at the rates that the
# links are sold with:

# %% tags=["hide-input", "nbval-check-output"]
llama, h100 = CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]
moved, again = cost.kv_bytes(llama, 1000), cost.predict_prefill(llama, h100, 1000).seconds
links = {"host memory over PCIe 5.0 ×16": 64e9, "a fast SSD": 7e9, "another machine, 25 Gbit/s": 25e9 / 8}
table(
    [["compute again (bound: datasheet peak)", f"{1e3 * again:.0f} ms", "1.0"]]
    + [[name, f"{1e3 * moved / rate:.0f} ms", f"{moved / rate / again:.1f}"] for name, rate in links.items()],
    ["1,000 tokens of Llama-3-8B", "at best", "times computing"], align="lrr",
)  # fmt: skip
markdown(
    f"{moved / 1e6:.0f} MB. Host memory is worth it by far. A disk is a little slower than a *perfect* prefill, and wins "
    f"against one that reaches less than {again * 7e9 / moved:.0%} of the chip's peak. The network must wait for one below "
    f"{again * 25e9 / 8 / moved:.0%}."
)

# %% [markdown]
# With several replicas there is a second question: the thousand tokens may be warm, but on another machine. A router that
# sends requests with the same beginning to the same replica keeps them warm; one that takes turns makes every replica pay
# once. (It must also notice when the popular replica is drowning. That is the subject of a later chapter.)
#
# And the middle of a text? It can be had, inexactly. [Prompt Cache](https://arxiv.org/abs/2311.04934) computes marked
# modules on their own, at positions reserved for them, and lets them not see each other.
# [CacheBlend](https://arxiv.org/abs/2405.16444) takes the keys and values of retrieved documents as they were computed
# elsewhere and runs a small share of the tokens again, those that changed most. Both are other models than the one you
# trained, by a little. How far off it would be with nothing corrected, the green curve above has shown.
#
# ## Where it loses
#
# **Where nobody comes back.** Unique prompts pay for hashing and for memory that no one reads. **Where prompts are
# short for the block.** Providers start at 1,024 tokens, and for one hybrid model vLLM chose
# [blocks of 2,096](https://github.com/vllm-project/vllm/issues/53749) (August 2026). **Where answers are long.** TTFT
# shrinks, the time per token does not.

# %% tags=["measure", "nbval-ignore-output"]
unique = [random.Random(i).randrange(49152) for i in range(1024)]
chain = MyPrefix(BlockPool(1, BLOCK)).chain
hashing = bench.measure(lambda: list(chain(unique, 64, ())), repeats=7)
step = bench.generation(model, 64, 9, repeats=1).tpot

# %% tags=["hide-input", "nbval-ignore-output"]
prefill = predict(1024).seconds
cold_s, warm_s = answers[names[0]].ttft, answers[names[1]].ttft
whole = [t + 299 * step for t in (cold_s, warm_s)]
table(
    [
        ["unique prompts of 1,024 tokens", f"{1e3 * hashing.median:.2f} ms of hashing, {hashing.median / prefill:.2%} of the prefill; {1024 * kappa / 2**20:.0f} MiB a prompt remembered for nobody"],
        ["a shared beginning of 1,000 tokens", f"{found(1000, 1500)} found in blocks of 16, {found(1000, 1500, 2096)} in blocks of 2,096"],
        ["the scene, and an answer of 300 tokens", f"{whole[0]:.1f} s cold, {whole[1]:.1f} s warm: {whole[0] / whole[1]:.1f}×, where TTFT alone gains {cold_s / warm_s:.0f}×"],
    ],
    ["case", "what happens"],
)  # fmt: skip

# %% [markdown]
# **Where the working set is one document too large.** Twelve documents of 320 tokens are asked about in turns. LRU
# throws out what was used longest ago, which is precisely what will be asked for next.

# %% tags=["measure"]
documents = [[random.Random(d).randrange(9999) for _ in range(20 * BLOCK)] for d in range(12)]
cyclic = {}
for room in range(6, 16):
    prefix = HashPrefix(BlockPool(20 * room + 1, BLOCK))
    got = [serve(prefix, documents[i % 12] + [10_000 + i]) for i in range(72)]
    cyclic[room] = sum(got) / (72 * 320)

# %% tags=["hide-input"]
fig = figure(
    f"Room for 11 of 12 documents finds {cyclic[11]:.0%}, room for 12 finds {cyclic[12]:.0%}",
    x="room, in documents", y="share of document tokens found", height=320,
)  # fmt: skip
fig.add_scatter(x=list(cyclic), y=list(cyclic.values()), mode="lines+markers", line_color=palette.blue)
fig.update_yaxes(tickformat=".0%", range=[-0.05, 1])
fig.update_xaxes(dtick=1)
fig

# %% tags=["hide-input", "nbval-check-output"]
print(f"found with room for 11 documents: {cyclic[11]:.1%}; with room for 12: {cyclic[12]:.1%}")
assert cyclic[11] == 0 and abs(cyclic[12] - 5 / 6) < 1e-9

# %% [markdown]
# The cache is eleven twelfths as large as it should be. The hit rate is zero. Here the cure is one document more of
# room, or asking all questions about a document before going on to the next.
#
# ### Two negative controls
#
# A prefix cache can be fast and wrong. First, one that forgets the adapter. Two customers have fine-tuned the small
# model, each in their own way, and send the same 40 tokens:

# %% tags=["nbval-check-output"]
import copy

tuned = copy.deepcopy(small)
for block in tuned.blocks:  # a low-rank change of the projections, as LoRA makes it
    matrix = block.attn.qkv.weight
    matrix += 0.05 * torch.randn(matrix.shape[0], 2).to(matrix) @ torch.randn(2, matrix.shape[1]).to(matrix)
prompt = torch.randint(97, (40,)).tolist()
(truth,) = lumen.generate(tuned, [prompt], 8, eos_ids=())
controls = {"the adapter is in the key": (("A",), ("B",)), "the adapter is forgotten": ((), ())}
for label, extras in controls.items():
    shared_store = BlockStore.for_model(small, 40, 4)
    shared_store.prefix = MyPrefix(shared_store.pool)
    for customer, extra in zip((small, tuned), extras, strict=True):
        with shared_store.rows(1) as cache:
            (done,) = lumen.generate(customer, [prompt], 8, eos_ids=(), cache=cache, extra=extra)
    right = sum(a == b for a, b in zip(done.tokens, truth.tokens, strict=True))
    print(
        f"{label}: customer B has {done.num_cached_tokens} tokens found, all 8 of the answer right: {right == 8}"
    )
assert right < 8

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"The forgetful cache has the better hit rate. It answers customer B out of customer A's numbers: {right} of 8 tokens are "
    "right, and nothing crashes. A *salt* per tenant does the same for privacy: whoever shares a prefix cache with you can tell from "
    "TTFT whether you have sent a text before ([measured on public services](https://arxiv.org/abs/2502.07776) in 2025)."
)

# %% [markdown]
# Second, one that is too generous. A prompt of exactly three blocks is asked twice, and the cache hands out all of it:

# %% tags=["nbval-check-output"]
exact = prompt[:12]  # three blocks of 4
for hit in (12, found(12, 12, block=4)):
    rows = small.embed(torch.tensor([exact[hit:]], dtype=torch.int64, device=device)).shape[1]
    print(f"{hit:2} of 12 tokens found: {rows} rows to run, so {'a' if rows else 'no'} row of logits")

# %% [markdown]
# Keys and values of a whole prompt do not contain its next token. Only the last row, on its way through the model, does.
# Engines have met [the crash](https://github.com/GeeeekExplorer/nano-vllm/pull/199), and after running one single token
# again [a quieter fault](https://github.com/vllm-project/vllm/pull/11186): the last block was left out of the chain. What
# is left of that is the rule above: whole blocks, and the last one runs again.
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the benchmark sends the same prompts in every repeat | prefill at an impossible rate, TTFT of a fraction | `num_cached_tokens` stands beside each time; every repeat has its own end |
# | the answer is sent back as *text* in the next turn | fewer hits than expected: tokens need not survive decoding and encoding | the chat above carries token ids |
# | preempted requests find their own blocks when they come back | [a hit rate of 32 % on random prompts](https://github.com/vllm-project/vllm/issues/25780) | hits are counted once, at admission |
# | hit rate taken for correctness | a cache that forgets the adapter finds more | logits against a run without a cache, and a control that must fail |
#
# ## Play
#
# A prompt of five parts, in the order in which a careless programmer would concatenate them. Move them, and watch six
# requests of two passengers find more or less. The parts are tokenised by SmolLM2 and counted by `HashPrefix`.

# %% tags=["nbval-ignore-output"]
lab = lumen.explore.prompt_order_lab(tokenizer)

# %% [markdown]
# ## In production
#
# | engine | what decides about prefixes | version |
# | --- | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/latest/design/prefix_caching/) | chained block hashes, on by default in V1; `--no-enable-prefix-caching` for benchmarks; `--prefix-caching-hash-algo sha256` (since 0.8.3); `cache_salt` in a request | read in November 2026 |
# | [SGLang](https://docs.sglang.io/advanced_features/server_arguments.html) | radix tree, on by default; `--disable-radix-cache`; `--schedule-policy lpm` serves the longest prefix first; `--enable-hierarchical-cache` for host memory | read in November 2026 |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/llm-api/reference/KvCacheConfig.html) | `KvCacheConfig(enable_block_reuse=True, host_cache_size=…)`; `enable_partial_reuse` shares half a block by copying it | 1.4.0rc4 |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | `cache_prompt` in a request, on by default: longest common prefix with what a slot holds; `--cache-ram` keeps old slots in host memory; `--cache-reuse N` shifts later chunks, inexactly | read in November 2026 |
#
# Note what the last flag does: it moves old keys to new positions, which RoPE allows, and keeps what they saw, which is
# another text now. RoPE mends what made the orange curve at the top of this chapter start above zero. What the green one shows
# stays wrong.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **A prefix, never a substring.** One digit in front changed the keys and values of the last layer by {one_digit[-1]:.1%}; "
    f"{held[1]:,} of {length[1]:,} tokens were found behind the same beginning and {held[3]} behind another clock.\n"
    f"- **A hit leaves the new rows and all the weights.** 17 times fewer tokens were {ratio:.1f} times less TTFT "
    f"(predicted {expected:.1f}). A chat of ten turns: {chat_work:.1f} times fewer tokens, {chat_ratio:.1f} times less waiting.\n"
    f"- **Chained keys and a radix tree find the same**: {sum(hits['MyPrefix']):,} tokens of 400 requests, ours in 40 lines. Leaves "
    f"are forgotten first, one token at least is run, and adapter and tenant are part of the key.\n"
    f"- **1.25 to write, 0.1 to read**: pays from the second use, {100 * saving[10]:.1f} % after ten, never 90.\n"
    f"- **It loses** on unique and on short prompts, behind long answers ({whole[0] / whole[1]:.1f}×), and all at once when LRU "
    f"is one document short: {cyclic[12]:.0%} to {cyclic[11]:.0%}."
)
callout(
    "takeaway",
    f"**Takeaway.** Static first, changing last. A clock at the top of a prompt cost {ttft[3] - ttft[1]:,.0f} ms per request "
    "here; at the end it costs its own few tokens.",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "Two prompts share 4,000 tokens in the middle, behind different first sentences. What can be reused exactly?",
            "choices": [
                {"text": "Nothing of the 4,000.", "ok": True, "why": "Above layer 1 their keys and values carry what the first sentence said."},
                {"text": "The 4,000, if the first sentences have equal lengths.", "why": "Equal positions save layer 1. From layer 2 on the sentence has been seen."},
                {"text": "The 4,000, with RoPE.", "why": "RoPE lets keys move to other positions. It does not undo what they have read."},
            ],
        },
        {
            "kind": "numeric",
            "question": "Blocks of 16. A prompt of 800 tokens, 50 blocks exactly, is sent a second time, word for word. How many tokens are found?",
            "answer": 784, "tolerance": 0, "unit": "tokens",
            "right": "The last token must run, so at most 799 may be found, and those are 49 whole blocks.",
            "wrong": "At least one token must run, and hits come in whole blocks.",
            "slips": [
                {"answer": 800, "tolerance": 0, "why": "Then nothing would run, and there would be no logits to sample from."},
                {"answer": 799, "tolerance": 0, "why": "Only full blocks are shared: 799 is not a multiple of 16."},
            ],
        },
        {
            "kind": "numeric",
            "question": "Write 1.25, read 0.1. A prefix is used four times before it expires. How many percent are saved on it?",
            "answer": 61.25, "tolerance": 0.5, "unit": "%",
            "right": "1.25 + 3 · 0.1 = 1.55 instead of 4.",
            "wrong": "One write, three reads, divided by four.",
            "slips": [
                {"answer": 90, "why": "That is the discount on a read. The write has to be paid too."},
                {"answer": 58.75, "tolerance": 0.3, "why": "You counted four reads. The first use is the write."},
            ],
        },
        {
            "kind": "choice",
            "question": "Why are leaves evicted before their parents?",
            "choices": [
                {"text": "A child without its parent can never be found again.", "ok": True, "why": "A lookup walks from the first token. Behind a gap everything is unreachable and only takes up room."},
                {"text": "Parents are larger.", "why": "With blocks of one size they are not. What counts is that lookups pass through them."},
                {"text": "Leaves are always older.", "why": "A leaf can be the youngest of all. Order of use decides among leaves; being a leaf decides who may go."},
            ],
        },
        {
            "kind": "choice",
            "question": "After switching the prefix cache on, TTFT falls by a factor of ten and the requests per second hardly change. Why?",
            "choices": [
                {"text": "Decoding long answers is where the machine spends its time.", "ok": True, "why": "A hit saves prefill only. Each token of the answer still reads weights and cache, found tokens included."},
                {"text": "The hit rate must be low.", "why": "Then TTFT would not have fallen for most requests."},
                {"text": "Hashing costs what prefill saved.", "why": "The table above puts hashing far below one percent of the prefill."},
            ],
        },
    ],
    id="06",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/06_prefix_cache.ipynb) ([solutions](../solutions/06_prefix_cache.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("06"))

# %% [markdown]
# ## Further reading
#
# - [SGLang: Efficient Execution of Structured Language Model Programs](https://arxiv.org/abs/2312.07104) (Zheng and others,
#   2023), section 3: read it for the radix tree, and for scheduling in the order of the tree.
# - [Automatic Prefix Caching](https://docs.vllm.ai/en/latest/design/prefix_caching/) (vLLM design document): read it for block
#   hashes worked through on an example, free queue and eviction included.
# - [Prompt Cache](https://arxiv.org/abs/2311.04934) (Gim and others, 2023): read it for reuse that is not a prefix, and what
#   has to be given up for it.
# - [CacheBlend](https://arxiv.org/abs/2405.16444) (Yao and others, 2024): read it for which tokens must be computed again when
#   documents change places.
# - [Mooncake](https://arxiv.org/abs/2407.00079) (Qin and others, 2024): read it for a prefix cache that spans the memory of a
#   whole cluster.
# - [Auditing Prompt Caching in Language Model APIs](https://arxiv.org/abs/2502.07776) (Gu and others, 2025): read it for what
#   TTFT gives away about other people's prompts.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print(
    f"fp32 throughout; read bandwidth measured on this machine: {chip.bandwidth / 1e9:.1f} GB/s ({chip.name})"
)
print("compared with Hugging Face transformers:", theirs is not None)
print(
    "evidence:", f"prefix_cache, {record['date']}, {record['cpu']}" if record else "prefix_cache is not here"
)
