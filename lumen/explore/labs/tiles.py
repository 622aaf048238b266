"""The tiles lab: attention in tiles of your own size, what it moves, skips and takes, beside torch's own operator."""

from __future__ import annotations

from typing import Any

from IPython.display import display

from lumen.bench.numbers import percent
from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers

LONGEST, TILE = 8192, 4096
HEADS, DIM = 9, 64
RECORDED = ((32, 32), (128, 128), (256, 512), (1024, 1024), (2048, 2048))


class TilesLab:
    """One layer's attention (9 heads of 64) over random numbers, by `lumen.attention.flash_attention`."""

    def __init__(self, device: Any = None):
        from lumen import runtime

        self.device = runtime.device() if device is None else device
        self.found: dict[str, float] = {}

    def run(self, tokens: int, block_q: int, block_k: int, causal: bool = True) -> None:
        """Measure. ValueError with the limit for sizes that are out of it."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        from lumen import bench
        from lumen.attention import Traffic, flash_attention, naive_traffic

        if not 1 <= tokens <= LONGEST:
            raise ValueError(
                f"tokens lie between 1 and {LONGEST:,}: all scores of more would not be compared in time"
            )
        if not (1 <= block_q <= TILE and 1 <= block_k <= TILE):
            raise ValueError(f"a tile has between 1 and {TILE:,} rows and columns")
        if -(-tokens // block_q) * -(-tokens // block_k) > 20_000:
            raise ValueError(
                "that makes more than 20,000 tiles, minutes of Python: take larger ones or fewer tokens"
            )
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, HEADS, tokens, DIM, generator=draw).to(self.device) for _ in range(3))
        pos, count = torch.arange(tokens, device=self.device)[None], Traffic()
        with torch.inference_mode():
            ours, _ = flash_attention(
                q, k, v, pos, pos, causal=causal, block_q=block_q, block_k=block_k, traffic=count
            )
            theirs = scaled_dot_product_attention(q, k, v, is_causal=causal)
            taken = bench.compare(
                {
                    "loop": lambda: flash_attention(
                        q, k, v, pos, pos, causal=causal, block_q=block_q, block_k=block_k
                    ),
                    "torch": lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
                },
                repeats=5, warmup=0, budget_s=2.0,
            )  # fmt: skip
        self.found = {
            "loop": taken["loop"].median,
            "torch": taken["torch"].median,
            "moved": count.moved,
            "naive": naive_traffic(q, k, v).moved,
            "tiles": count.tiles,
            "skipped": count.skipped,
            "held": 4 * HEADS * min(block_q, tokens) * min(block_k, tokens),
            "error": float((ours - theirs).norm() / theirs.norm()),
        }

    def values(self) -> list[tuple[str, str]]:
        """The last run's numbers, named."""
        f = self.found
        return [
            ("the loop takes", milliseconds(f["loop"])),
            ("torch's operator", milliseconds(f["torch"])),
            ("bytes moved", f"{f['moved'] / 2**20:,.1f} MiB"),
            ("of the naive way's", percent(f["moved"] / f["naive"], 1)),
            ("scores held", f"{f['held'] / 2**20:.3g} MiB"),
            ("tiles, skipped", f"{f['tiles']:,.0f}, {f['skipped']:,.0f}"),
            ("relative difference", f"{f['error']:.0e}"),
        ]

    def report(self) -> str:
        return numbers(self.values())

    def recorded(self, tokens: int) -> str:
        """Runs with larger and larger tiles, as an HTML table."""
        lines = []
        for block_q, block_k in RECORDED:
            self.run(tokens, block_q, block_k, causal=False)
            shown = dict(self.values())
            cells = [f"{block_q} × {block_k}", *(shown[name] for name in (
                "the loop takes", "bytes moved", "scores held", "tiles, skipped"))]  # fmt: skip
            lines.append(
                "<tr>"
                + "".join(
                    f'<td style="padding:2px 12px 2px 0;white-space:nowrap">{cell}</td>' for cell in cells
                )
                + "</tr>"
            )
        heads = "".join(
            f"<th>{name}</th>" for name in ("tile", "time", "bytes moved", "scores held", "tiles, skipped")
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def widget(self, tokens: int, block_q: int, block_k: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}

        def size(name: str, value: int, most: int) -> Any:
            return w.BoundedIntText(value=value, min=1, max=most, description=name, layout=wide, style=style)

        self.tokens = size("Tokens", tokens, LONGEST)
        self.block_q = size("Queries a tile", block_q, TILE)
        self.block_k = size("Keys a tile", block_k, TILE)
        self.causal = w.Checkbox(value=True, description="causal", indent=False)
        self.button = w.Button(description="Run", button_style="primary", tooltip="Attend in these tiles")
        self.numbers = w.HTML()
        on_press(self.button, self.numbers, self._pressed, "Running…")
        return w.VBox([self.tokens, self.block_q, self.block_k, self.causal, self.button, self.numbers])

    def _pressed(self) -> str:
        self.run(self.tokens.value, self.block_q.value, self.block_k.value, self.causal.value)
        return self.report()


def tiles_lab(*, tokens: int = 2048, block_q: int = 256, block_k: int = 512) -> TilesLab:
    """Show the lab and return it. On the static page stand recorded runs with smaller and larger tiles, no mask.

    >>> lab = tiles_lab(tokens=1024)
    """
    lab = TilesLab()
    sentence = why_static()
    if sentence is None:
        display(lab.widget(tokens, block_q, block_k))
    else:
        heading = f"<p>{tokens:,} tokens, no mask, in tiles of queries × keys:</p>"
        show_recorded(sentence.replace("the run", "the runs"), heading + lab.recorded(tokens))
    return lab
