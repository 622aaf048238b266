"""The questions of chapter 11."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "FlashAttention makes the same products as three operators. What does it do less of on a long "
        "prompt?",
        "choices": [
            {"text": "Multiplications.", "why": "It makes a few more: the corrections."},
            {
                "text": "Exponentials, because it approximates the softmax.",
                "why": "It is exact up to rounding, and takes one exponential for each score as well.",
            },
            {
                "text": "Reading and writing of scores in main memory.",
                "ok": True,
                "why": "T × S numbers, four times over. Keys and values it reads more often, which costs less.",
            },
            {
                "text": "Reading of keys and values.",
                "why": "It reads them more often: once for each row of tiles.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "One head of width 128, 16,384 tokens, 2 bytes a number, no mask. Scores written out move how many "
        "times the bytes of queries, keys, values and output?",
        "answer": 129,
        "tolerance": 0.4,
        "unit": "times",
        "right": "(4 T D + 4 T²) / 4 T D = 1 + T / D.",
        "wrong": "Four trips of T × T scores beside four matrices of T × D.",
        "slips": [
            {"answer": 128, "tolerance": 0.4, "why": "The inputs and the output move in any case: one more."},
            {
                "answer": 65,
                "tolerance": 0.4,
                "why": "Scores are written and read, and so are the weights: four trips.",
            },
            {"answer": 33, "tolerance": 0.4, "why": "One trip of four: written, read, written, read."},
        ],
    },
    {
        "kind": "choice",
        "question": "A query's largest score so far is 3, with a sum of 2.0. A tile brings the single score 3 + ln 4. "
        "What is the sum now, relative to the new largest score?",
        "choices": [
            {
                "text": "6.0",
                "why": "That adds e^(ln 4) = 4 to the old sum, measured from the old largest score.",
            },
            {
                "text": "1.5",
                "ok": True,
                "why": "The old sum shrinks by a factor of 4 to 0.5; the new score adds 1.",
            },
            {"text": "3.0", "why": "That forgets to shrink the old sum."},
            {
                "text": "9.0",
                "why": "That multiplies the old sum by 4. It must be divided: the new largest score is larger.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "You double the queries of a tile and halve its keys. What happens to the bytes moved, on a long "
        "prompt?",
        "choices": [
            {
                "text": "Nothing: the tile is as large as before.",
                "why": "The same scores are held, but see what is read.",
            },
            {
                "text": "They almost halve.",
                "ok": True,
                "why": "Keys and values are read once for each row of tiles, and there are half as many rows.",
            },
            {"text": "They almost double.", "why": "That would be half the queries and twice the keys."},
        ],
    },
    {
        "kind": "choice",
        "question": "A chat with one user at 100,000 tokens of context decodes slowly on a large GPU. What helps its "
        "attention?",
        "choices": [
            {
                "text": "Larger tiles.",
                "why": "There is one query. All keys are read once, whatever the tile.",
            },
            {"text": "A causal mask, so that half is skipped.", "why": "The newest token reads all of it."},
            {
                "text": "Cutting the keys into splits.",
                "ok": True,
                "why": "Without them there is one piece of work for each KV head, and most cores have none.",
            },
            {
                "text": "Writing the scores out.",
                "why": "They are small for one query, so it would cost little, and gain nothing.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Two splits return outputs 2 and 8 with log-sum-exps 0 and ln 2. What is the merged output?",
        "choices": [
            {"text": "5", "why": "That is their mean. The second split holds two thirds of the softmax."},
            {"text": "6", "ok": True, "why": "(1 · 2 + 2 · 8) / (1 + 2)."},
            {"text": "18", "why": "That is the weighted sum, not yet divided by 1 + 2."},
            {"text": "4", "why": "That swaps the weights."},
        ],
    },
]
