"""The questions of chapter 05."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A contiguous allocator knows every length in advance, reserves exactly that much, "
        "and packs without gaps. An hour later a request waits although enough positions are free. Why does that "
        "not happen with blocks?",
        "choices": [
            {
                "text": "Every free block fits every request.",
                "ok": True,
                "why": "A hole is useless only when it is smaller than what is wanted. Here all holes and all wishes "
                "have one size.",
            },
            {
                "text": "Blocks are packed without gaps between them.",
                "why": "So were the pieces. Gaps appear when neighbours end at different times, and they do in a pool "
                "of blocks, too.",
            },
            {
                "text": "The last block of a request is filled before a new one is taken.",
                "why": "That keeps waste *inside* a request below one block. It says nothing about holes.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "Nine of ten requests write 10 tokens, one of ten writes 110. Look into a busy server at a random "
        "moment: how many percent of the requests in flight are writing a long answer?",
        "answer": 55,
        "tolerance": 0.5,
        "unit": "%",
        "right": "Of ten requests the short ones stay 90 steps in all, the long one 110: 110 / 200.",
        "wrong": "Weigh each request by the steps that it stays.",
        "slips": [
            {
                "answer": 10,
                "tolerance": 0.3,
                "why": "That counts each request once. A long one is there eleven times as long.",
            },
            {
                "answer": 91.7,
                "tolerance": 0.3,
                "why": "So it would be if as many long ones came as short ones: 110 / 120.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Three rows share a block that is not full, and each writes its next token. How many "
        "copies of the block are made?",
        "choices": [
            {
                "text": "2",
                "ok": True,
                "why": "The first two writers copy. Then the third holds the block alone and writes in place.",
            },
            {
                "text": "3",
                "why": "Then nobody would hold the original, and it would have to be freed. After two copies the third "
                "row is its only reader.",
            },
            {"text": "0", "why": "Then all three would write their token into the same place."},
            {"text": "1", "why": "The second writer still shares it with the third."},
        ],
    },
    {
        "kind": "choice",
        "question": "A card's arithmetic and its bus both get twice as fast. Preempted requests are swapped block by "
        "block, and each transfer has a fixed price of 10 µs. What happens to swapping against recomputing?",
        "choices": [
            {
                "text": "Recomputing gains.",
                "ok": True,
                "why": "Recomputing takes half as long. Of a swap only the bytes get faster; the fixed price of each "
                "transfer stays.",
            },
            {
                "text": "Nothing: both take half as long.",
                "why": "That holds for one large transfer, where the fixed price does not count.",
            },
            {
                "text": "Swapping gains.",
                "why": "Its bytes take half as long, and so does the arithmetic. Its fixed price is left.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "In a pool, free blocks and blocks in tables add up to all blocks. Which fault alone can "
        "still be there?",
        "choices": [
            {
                "text": "Two strangers write into one block.",
                "ok": True,
                "why": "A block in two tables is one block of the sum. Only its owners, asked one by one, tell.",
            },
            {
                "text": "A block that is neither free nor in a table.",
                "why": "Then one would be missing from the sum.",
            },
            {
                "text": "A free block that also stands in a table.",
                "why": "Then it would be counted twice, and the sum would be one too many.",
            },
        ],
    },
]
