"""The questions of chapter 14."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "numeric",
        "question": "A layer has 16 heads, each with a state of 128 × 128 numbers in fp32. Where it attends instead, "
        "a token leaves 4 KiB. Leave the convolution's few tokens out. Below how many tokens is a sequence smaller "
        "as keys and values?",
        "answer": 256,
        "tolerance": 2,
        "unit": "tokens",
        "right": "16 · 128 · 128 · 4 bytes are 1 MiB, and 1 MiB / 4 KiB = 256.",
        "wrong": "The state's bytes over those of a token.",
        "slips": [
            {"answer": 128, "tolerance": 1, "why": "That is with 2 bytes a number: a state is kept in fp32."},
            {"answer": 16, "tolerance": 0.5, "why": "That is one head of 16."},
            {"answer": 64, "tolerance": 1, "why": "A number in fp32 has 4 bytes."},
        ],
    },
    {
        "kind": "choice",
        "question": "What, left out of attention, allows all keys and values to be added up before a question is "
        "asked?",
        "choices": [
            {"text": "The causal mask.", "why": "The sum runs over the past as well: it is causal."},
            {
                "text": "The exponential around each score.",
                "ok": True,
                "why": "Without it (q kᵀ) v = q (kᵀ v), and the bracket holds no question.",
            },
            {"text": "The values.", "why": "They are in the sum, each next to its key."},
            {"text": "The division by √D.", "why": "A factor changes the order of nothing."},
        ],
    },
    {
        "kind": "choice",
        "question": "A name is told with a number, and later with another one. Later the name is asked for. What "
        "does a state "
        "that adds give back, what one that corrects with β = 1?",
        "choices": [
            {"text": "Both give the new number.", "why": "A sum holds what was ever added to it."},
            {
                "text": "The sum of the two numbers' values; the new one.",
                "ok": True,
                "why": "The correction writes the difference to what the key gave before.",
            },
            {"text": "The old one; the new one.", "why": "The new pair was added as well as the old."},
            {
                "text": "The new one; the mean of the two.",
                "why": "A sum keeps the old one too; and the mean takes β = ½, after a first write with 1.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A batch of prompts is padded on the right. The padded tokens' keys and values are set to "
        "zero. Whose state is "
        "wrong all the same?",
        "choices": [
            {
                "text": "Nobody's: zero times anything adds nothing.",
                "why": "It adds nothing. What else does a write do?",
            },
            {
                "text": "That of rules with a gate: every padded token still fades the state.",
                "ok": True,
                "why": "Padding must neither write nor fade; on the left, before an empty state, nobody would notice.",
            },
            {
                "text": "That of rules that correct: zero keys give back something.",
                "why": "A zero key reads zero and writes zero.",
            },
            {"text": "Everybody's: positions are off.", "why": "A state knows no positions."},
        ],
    },
    {
        "kind": "choice",
        "question": "A server shares prompts by their first tokens. With keys and values it can share any number "
        "of them. With "
        "states it cannot, because",
        "choices": [
            {
                "text": "states are kept in fp32.",
                "why": "Then they would be larger, and could be shared all the same.",
            },
            {"text": "states of different prompts cannot be added.", "why": "Nobody wants to add them."},
            {
                "text": "a sum of 1,000 tokens does not tell what it was after 700.",
                "ok": True,
                "why": "Unless the 300 later writes are kept as well, it must have been copied there; a copy is a "
                "state.",
            },
            {
                "text": "a prompt's state depends on the answer.",
                "why": "It depends on what stands before it alone.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A selection with a budget of 256 keys catches 90 % of the weight in a model that was not "
        "trained with it. Keeping "
        "the first 4 and the newest 252 catches 87 %. What has been shown?",
        "choices": [
            {
                "text": "That the selection works: it catches 90 %.",
                "why": "Most of it was caught by a rule that never looked at a key.",
            },
            {
                "text": "How little there was to choose: 3 points above a rule that is blind.",
                "ok": True,
                "why": "Sinks and neighbours hold most of the weight; the rest is what a selection is for.",
            },
            {
                "text": "That 90 % of the answers stay right.",
                "why": "Weight is not answers: a needle may lie in the rest.",
            },
            {"text": "That a trained model would do worse.", "why": "It learns to be caught."},
        ],
    },
]
