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
# # Solutions 10 · Serving
#
# Six exercises on the [chapter](../chapters/10_serving.ipynb). Each check looks at your own function or class and says
# NOT STARTED, WRONG and why, or RIGHT. No model is loaded and nothing is timed.

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/10_serving.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/10_serving.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/10_serving.ipynb)
#
# CPU is enough · read 35 min · run 2 min · practise 104 min · here: [chapter](../chapters/10_serving.ipynb), [exercises](../exercises/10_serving.ipynb)
#
# </div>

# %% tags=["setup", "hide-input", "nbval-ignore-output"]
import importlib
import importlib.util
import os
import subprocess
import sys

# Colab: brings lumen, leaves torch and numpy as they are
if importlib.util.find_spec("lumen") is None:
    address = "git+https://github.com/lumen-course/lumen@main"
    address = os.environ.get("LUMEN_SOURCE", address)
    wanted = "lumen-inference[serve] @ " + address
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, wanted], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("10_serving")

# %%
from lumen import cost
from lumen.hardware import CHIPS
from lumen.models import CONFIGS

grader = lumen.grading.for_chapter("10")

# %% [markdown]
# ## 1 · A queue by hand
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 12 minutes · 3 points
#
# A server has 32 slots. A prefill takes 20 ms, a step 25 ms however many slots are taken, and every answer has 129 tokens.
# Give
#
# - `"saturation"`: the requests per second that it finishes when all slots are always taken;
# - `"inside"`: on a quiet day 6 requests a second come and each stays for 2.5 s on average; how many are inside, on average?
# - `"last wait"`: on a bad day 10 a second come for one minute, 600 in all; how many seconds after it came is the last one
#   answered, to its end? Use the bathtub of the chapter: the door, fill and drain;
# - `"backlog"`: how many are not yet answered when that last one comes, by the same tub?
#
# Three significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# What does a full house of 32 requests cost, from its first prefill to its last step? What of it is paid once too often while
# the house fills and drains?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# The full house takes 3.84 s, and 3.2 s of them are steps.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# R / µ − R / λ + (n − 1) a for the last one, where a step costs a however many share it. Whoever is there when it comes
# leaves at µ in that time.
#
# </details>


# %% nbgrader={"grade_id": "queue-by-hand-answer", "solution": true}
def queue_by_hand() -> dict[str, float]:
    """Keys: "saturation", "inside", "last wait", "backlog"."""
    ### BEGIN SOLUTION
    slots, prefill, step, answer = 32, 0.020, 0.025, 129
    saturation = slots / (slots * prefill + (answer - 1) * step)
    wait = 600 / saturation - 600 / 10 + (answer - 1) * step
    return {
        "saturation": saturation,
        "inside": 6 * 2.5,
        "last wait": wait,
        "backlog": saturation * wait,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "queue-by-hand", "grade": true, "points": 3}
grader.check("queue-by-hand", queue_by_hand)

# %% [markdown] tags=["solution-only"]
# 8.33 requests a second. On the bad day the server is overloaded by a fifth only, for a minute only, and the last guest is
# answered after 15.2 s, 12 s of them for the door. (Simulated step by step, with random arrivals: 14.8 to 16.1 s over six seeds.) After an
# hour of it the door alone would be 12 minutes.

# %% [markdown]
# ## 2 · Events out of bytes
#
# **Build** · difficulty 3 of 5 · importance 4 of 5 · 25 minutes · 4 points
#
# Write the client's side of layer 5: a parser of server-sent events. `feed(chunk)` takes the bytes of one read from the socket and
# returns a list with the data of every event that is complete now, as strings. The rules:
#
# - lines end with `\n` or `\r\n`; an empty line completes the event;
# - a line `data: x` adds `x` to the event; one space behind the colon belongs to the protocol and is optional; several data lines
#   are joined by `\n`; a line `data:` or `data` adds an empty one;
# - lines with another name, and comments (they begin with a colon), are skipped; an event without any data line is none;
# - a chunk may end anywhere: in the middle of a line, of a character, between `\r` and `\n`.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which two things must be kept between two calls?
#
# </details>
# <details><summary>Hint 2: a shape to aim at</summary>
#
# The bytes of the line that is not whole, and the data lines of the event that is not whole.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `*lines, self.rest = (self.rest + chunk).split(b"\n")`: everything but the last part is a whole line, and can be decoded.
#
# </details>


# %% nbgrader={"grade_id": "event-stream-answer", "solution": true}
class Events:
    """Server-sent events out of bytes."""

    def __init__(self):
        ### BEGIN SOLUTION
        self.rest = b""  # of a line
        self.data: list[str] = []  # of an event
        ### END SOLUTION

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes."""
        ### BEGIN SOLUTION
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self.data:
                events.append("\n".join(self.data))
                self.data = []
            name, _, value = line.partition(b":")
            if name == b"data":
                self.data.append(value.removeprefix(b" ").decode())
        return events
        ### END SOLUTION


# %% nbgrader={"grade_id": "event-stream", "grade": true, "points": 4}
grader.check("event-stream", Events)

# %% [markdown] tags=["solution-only"]
# The split happens on bytes, and only whole lines are decoded. In UTF-8 the byte of `\n` never occurs inside a character, so that
# is safe. Lumen's client does the same, and refuses an event of more than 16 MiB: a server that never ends a line must not fill
# the memory of its clients.

# %% [markdown]
# ## 3 · The duck that never came
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 3 points
#
# This is how many servers stream: decode all bytes so far, and if the text ends with the replacement sign `�`, wait. It returns
# what is sent after each token, and once more at the end. A user in Shenzhen complains of missing last characters, another one
# of a text that comes in jerks.


# %%
def broken_stream(tokens):
    """Text to send after each token (bytes), and once more at the end."""
    pieces, raw, sent = [], b"", 0
    for token in tokens:
        raw += token
        text = raw.decode("utf-8", errors="replace")
        if text.endswith("\ufffd"):
            pieces.append("")
        else:
            pieces.append(text[sent:])
            sent = len(text)
    return [*pieces, ""]


print(
    broken_stream([b"a\xf0", b"\x9f\xa6\x86b"]),
    "the a could have gone at once",
)
print(broken_stream([b"a", b"\xf0\x9f"]), "where is the rest?")
print(
    broken_stream(["a\ufffd".encode(), b" b"]),
    "the model wrote that sign itself",
)

# %% [markdown]
# Mend it. After each token everything that is certain must be out; joined, the pieces must equal the full decode with
# `errors="replace"`, wherever the answer ends.
#
# <details><summary>Hint 1: the question again</summary>
#
# What tells "half a character" from "a character that happens to be `�`": the text or the bytes?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# At most three bytes have ever to be held.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `codecs.getincrementaldecoder("utf-8")(errors="replace")` holds them for you; `decode(b"", True)` says that the end has come.
#
# </details>


# %% nbgrader={"grade_id": "half-characters-answer", "solution": true}
def stream(tokens: list[bytes]) -> list[str]:
    """Text to send after each token, and once more at the end."""
    ### BEGIN SOLUTION
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        *(decoder.decode(token) for token in tokens),
        decoder.decode(b"", True),
    ]
    ### END SOLUTION


# %% nbgrader={"grade_id": "half-characters", "grade": true, "points": 3}
grader.check("half-characters", stream)

# %% [markdown] tags=["solution-only"]
# It looked at text where it had to look at bytes: so the `a` waited for the duck, and a sign that the model wrote waited for
# bytes that never come. It forgot what it held. And it decoded everything again at each token, which is quadratic. Real
# servers have had faults of this kind: in [sglang #31598](https://github.com/sgl-project/sglang/issues/31598) a character came
# twice.

# %% [markdown]
# ## 4 · The stop that was missed
#
# **Debug** · difficulty 4 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# This one looks for a stop string in a stream, letter by letter, and counts how much of the stop has been matched. What has
# matched is held back. So far so good.


# %%
def broken_hold(chunks, stop):
    """Text to send after each chunk and at the end; was it found?"""
    pieces: list[str] = []
    matched = 0
    for chunk in chunks:
        out = ""
        for letter in chunk:
            if letter == stop[matched]:
                matched += 1
                if matched == len(stop):
                    return [*pieces, out], True
            else:
                out += stop[:matched] + letter
                matched = 0
        pieces.append(out)
    return [*pieces, ""], False


print(broken_hold(["1", "1", "2"], "12"), "the stop is there")
print(broken_hold(["the E", "N"], "END"), "where is EN?")

# %% [markdown]
# Mend it. After each chunk, everything that can no longer become the stop must be out. When the stop is found, the list ends with
# that chunk's piece, and what follows the stop is dropped; otherwise it has one more piece for the end of the answer.
#
# <details><summary>Hint 1: the question again</summary>
#
# After `aa`, with the stop `aab`, comes another `a`. How much of the stop is matched now?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Two letters. The state is the longest end of the text that begins the stop.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `max(k for k in range(len(stop)) if held.endswith(stop[:k]))` letters are held, the others are sent.
#
# </details>


# %% nbgrader={"grade_id": "leaking-stop-answer", "solution": true}
def hold(chunks: list[str], stop: str) -> tuple[list[str], bool]:
    """Text to send after each chunk and at the end; was it found?"""
    ### BEGIN SOLUTION
    pieces, held = [], ""
    for chunk in chunks:
        held += chunk
        if stop in held:
            return [*pieces, held[: held.find(stop)]], True
        begun = [k for k in range(len(stop)) if held.endswith(stop[:k])]
        keep = max(begun)
        pieces.append(held[: len(held) - keep])
        held = held[len(held) - keep :]
    return [*pieces, held], False
    ### END SOLUTION


# %% nbgrader={"grade_id": "leaking-stop", "grade": true, "points": 3}
grader.check("leaking-stop", hold)

# %% [markdown] tags=["solution-only"]
# Two faults. What was held when the answer ended was lost. And the counter fell back to 0 where it should have fallen back to the
# next shorter beginning, the old mistake in string search ([litgpt #2302](https://github.com/Lightning-AI/litgpt/issues/2302)
# reports it for stop tokens). `lumen.io.stop` moves an automaton once a letter, however many stops there are; the version above is
# slower and shorter.

# %% [markdown]
# ## 5 · Four sentences on throughput
#
# **Literature** · difficulty 3 of 5 · importance 3 of 5 · 12 minutes · 2 points
#
# Two of these cannot be left as they are:
#
# - **a** "vLLM improves the throughput of popular LLMs by 2 to 4 times at the same level of latency, compared with
#   FasterTransformer and Orca." (In substance the [abstract](https://arxiv.org/abs/2309.06180) of the PagedAttention paper)
# - **b** "Continuous batching is 5 to 20 times as fast as static batching."
# - **c** "A server that finishes 2.5 requests a second, each of which stays for 4 s on average, has ten inside."
# - **d** "For a new deployment on GPUs, Hugging Face's TGI is a good first choice." (Introductions of 2024 say so; it is late 2026)
#
# Give their letters. And a number: eight slots get eight requests at once, seven of which want 10 tokens and one 80. Static
# batching runs 80 steps. If continuous batching could keep all slots full with other requests of the same kind, how many times the
# tokens per step would it write, at most? Three significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# For each sentence: compared with what, on which requests, and when?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# In static batching less than a quarter of the slot steps write a token.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Slot steps that are there, over slot steps that write a token.
#
# </details>


# %% nbgrader={"grade_id": "claims-on-throughput-answer", "solution": true}
def claims_on_throughput() -> tuple[str, float]:
    """The letters of the two sentences, such as "ac", and the factor."""
    ### BEGIN SOLUTION
    return "bd", 8 * 80 / (7 * 10 + 80)
    ### END SOLUTION


# %% nbgrader={"grade_id": "claims-on-throughput", "grade": true, "points": 2}
grader.check("claims-on-throughput", claims_on_throughput)

# %% [markdown] tags=["solution-only"]
# **b** names neither lengths nor arrivals. The factor is 4.27 for the lengths above, and 1 if all answers are equally long and
# come together: the spread of the lengths *is* the factor. **d** was overtaken:
# [TGI](https://github.com/huggingface/text-generation-inference) has been in maintenance mode since 11 December 2025. Sentences
# about software have a date, whether they print it or not.

# %% [markdown]
# ## 6 · How long a line?
#
# **Decide** · difficulty 4 of 5 · importance 5 of 5 · 20 minutes · 3 points
#
# Llama-3-8B in bf16 on one H100, at datasheet rates: prompts of 1,000 tokens, answers of 250. At the worst hour 40 requests a
# second come, more than it can do, so some get status 429, *too many requests*, at once. Choose `slots` (1 to 256; memory suffices for all of them) and
# `queue`, the number of requests that may wait (0 to 1,000), such that
#
# - TPOT with all slots taken is at most 25 ms: a full house takes $B\,t_\text{prefill} + 249\,t_\text{step}(B)$, where $B$ is `slots`,
#   and each of its answers is written in that time, so TPOT is that over 249;
# - who waits, waits at most 10 s: the queue's length over $\mu$;
# - a burst of 400 requests, on an empty server, finds a place in slots and queue;
# - and as few as possible are refused in the steady rush: $40 - \mu$ a second.
#
# The times come from the cost model: `cost.predict_prefill(model, chip, 1000, 1, "bf16").seconds` for one prompt and
# `cost.predict_decode(model, chip, 1125, slots, "bf16").seconds` for a step, at a context of 1,125 tokens, with
# `CONFIGS["llama-3-8b"]` and `CHIPS["H100 SXM"]`.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which of the two numbers changes µ, and which limit keeps it from growing?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# µ is about 32 requests a second.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Take the most slots whose full house lasts at most 249 × 25 ms; then any queue from 400 − slots up to 10 s × µ.
#
# </details>


# %% nbgrader={"grade_id": "queue-limit-answer", "solution": true}
def queue_limit() -> dict[str, int]:
    """Keys "slots" and "queue"."""
    ### BEGIN SOLUTION
    llama, chip = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
    prefill = cost.predict_prefill(llama, chip, 1000, 1, "bf16").seconds

    def house(slots):
        return (
            slots * prefill
            + 249
            * cost.predict_decode(llama, chip, 1125, slots, "bf16").seconds
        )

    slots = max(s for s in range(1, 257) if house(s) / 249 <= 0.025)
    return {"slots": slots, "queue": 400 - slots}
    ### END SOLUTION


# %% nbgrader={"grade_id": "queue-limit", "grade": true, "points": 3}
grader.check("queue-limit", queue_limit)

# %% [markdown] tags=["solution-only"]
# The queue adds nothing to the throughput. It turns refusals into waiting, which is right for a burst and useless in a rush: there
# the line is always full, everybody who gets in waits for its whole length over $\mu$, and just as many are refused. So make it
# as long as the burst needs and no longer.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
