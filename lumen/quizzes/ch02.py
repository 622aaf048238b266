"""The questions of chapter 02."""

from __future__ import annotations

from lumen import hardware

A100 = hardware.CHIPS["A100 80GB SXM"]
MBU, MFU = (100 * 60 * 15e9 / most for most in (A100.bandwidth, A100.peak()))  # 1 FLOP per byte

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A model with 16-bit weights decodes a short context for one user on an H100 (ridge 295 FLOP per "
        "byte). Its MFU is 0.3 %. What can a better program gain, with these weights and this one user?",
        "choices": [
            {
                "text": "Hardly anything: its MBU is about 90 %",
                "ok": True,
                "why": "MBU = MFU × ridge / intensity = 0.3 % × 295 / 1 = 89 %. The memory is nearly as busy as it "
                "can be.",
            },
            {
                "text": "A factor of about 300, with a better matmul kernel",
                "why": "At 1 FLOP per byte the roof is 1/295 = 0.34 % of the peak. No kernel passes it.",
            },
            {
                "text": "A factor of two, on a chip with twice the FLOP/s and the same memory",
                "why": "Time follows the bytes here. On that chip the MFU would be half as high, and the time the "
                "same.",
            },
            {
                "text": "That cannot be told from an MFU",
                "why": "It can, where the intensity is known: 2 FLOPs for each weight of 2 bytes, so 1.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": f"A step for one user reads 15 GB, and an A100 80 GB SXM ({A100.bandwidth / 1e9:,.0f} GB/s, "
        f"{A100.peak() / 1e12:.0f} TFLOP/s) writes 60 tokens/s. Its MBU?",
        "answer": MBU,
        "tolerance": 0.5,
        "unit": "%",
        "right": "60 × 15 GB/s over the bandwidth: more than half of the time the memory waits, so a better program "
        "could gain.",
        "wrong": "Bytes a second over the bandwidth; each token reads the 15 GB once.",
        "slips": [
            {
                "answer": 100 / MBU * 100,
                "tolerance": 2,
                "why": "Upside down: the bytes that are read, over those that could be.",
            },
            {
                "answer": MBU / 100,
                "tolerance": 0.005,
                "why": "That is the share; percent are asked for.",
            },
            {
                "answer": MFU,
                "tolerance": 0.02,
                "why": "That is the MFU. At 1 FLOP per byte it cannot be high.",
            },
            {
                "answer": 100 - MBU,
                "tolerance": 0.5,
                "why": "That is what is left unused.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A decode step moves 0.2 GB on an H100 (0.06 ms at its bandwidth), and takes 2.4 ms in a "
        "program that "
        "starts 600 operators one by one, 4 µs each. What shortens the step most?",
        "choices": [
            {
                "text": "Starting all 600 with one call (a captured graph)",
                "ok": True,
                "why": "600 × 4 µs are the 2.4 ms. The work would fit between them forty times.",
            },
            {
                "text": "Weights in 4 bits",
                "why": "They save 0.04 ms of reading, which is hidden behind the starts anyway.",
            },
            {
                "text": "A chip with twice the bandwidth",
                "why": "It reads in 0.03 ms and waits for the same 600 starts.",
            },
            {
                "text": "Eight users in a step",
                "why": "A good idea: eight tokens for one toll. But the *step* gets no shorter.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A model with 32 KV heads gets 8 instead, its 32 query heads stay. What happens to the "
        "intensity of "
        "attention in a decode step?",
        "choices": [
            {
                "text": "It rises fourfold",
                "ok": True,
                "why": "All query heads still meet all keys, so the FLOPs stay; the cache's bytes fall to a quarter.",
            },
            {
                "text": "It stays: FLOPs and bytes both fall to a quarter",
                "why": "The bytes do. The FLOPs follow the query heads, of which there are as many as before.",
            },
            {
                "text": "It falls to a quarter",
                "why": "Fewer bytes for the same FLOPs raise the ratio.",
            },
        ],
    },
]
