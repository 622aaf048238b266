"""The matmul lab: multiply a matrix of your own size on this machine, and see which ceiling it stood under."""

from __future__ import annotations

from typing import Any

from IPython.display import display

from lumen.bench.numbers import percent
from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers

LARGEST = 16_384  # values a side; together with 4 bytes a value this keeps a matrix at 1 GiB


class MatmulLab:
    """Times one product of `rows` x `inputs` by a weight of `outputs` x `inputs`, and keeps its numbers.

    The weights of successive calls are different ones, together larger than the last-level cache, unless they are
    asked to stay `cached`: a decode step finds its weights in main memory, a benchmark that repeats one does not.
    """

    def __init__(self, chip: Any = None, device: Any = None, dtype: Any = None):
        from lumen import runtime

        self.chip = chip
        self.device = runtime.device() if device is None else device
        self.dtype = dtype or runtime.default_dtype(self.device)
        self.seconds = self.flops = self.bytes = 0.0

    def run(self, rows: int, inputs: int, outputs: int, cached: bool = False) -> None:
        """Measure. ValueError with the limit for a size that is not a positive number up to LARGEST."""
        import torch
        from torch import nn

        from lumen import bench, hardware
        from lumen.hardware.kernel_choice import choose
        from lumen.hardware.working_set import beyond_cache, matrix

        if not all(1 <= size <= LARGEST for size in (rows, inputs, outputs)):
            raise ValueError(f"rows, inputs and outputs lie between 1 and {LARGEST:,}")
        if self.chip is None:
            self.chip = hardware.measure(progress=False)
        device, size = torch.device(self.device), inputs * outputs * self.dtype.itemsize
        count = min(64, max(1, -(-beyond_cache(device) // size)))
        weights = nn.ModuleList(matrix(inputs, outputs, device, self.dtype) for _ in range(count))
        choose(weights, progress=False)  # multiplied by the kernel that a loaded model has for this shape
        visited = list(weights)[: 1 if cached else count]
        with torch.inference_mode():
            x = torch.randn(rows, inputs, device=self.device).to(self.dtype)

            def sweep() -> None:
                for weight in visited:
                    weight(x)

            timing = bench.measure(sweep, repeats=30, budget_s=1.0).per(len(visited))
        self.seconds = timing.median
        self.flops = 2.0 * rows * inputs * outputs
        self.bytes = (inputs * outputs + rows * (inputs + outputs)) * x.element_size()

    def report(self) -> str:
        """The last run's numbers as HTML."""
        from lumen import cost

        intensity = self.flops / self.bytes
        reached, bandwidth = self.flops / self.seconds, self.bytes / self.seconds
        roof = cost.roofline(intensity, self.chip, self.dtype)
        return numbers(
            [
                ("time", milliseconds(self.seconds)),
                ("FLOP per byte", f"{intensity:.3g}"),
                ("GFLOP/s reached", f"{reached / 1e9:.3g}"),
                ("GB/s moved", f"{bandwidth / 1e9:.3g}"),
                (
                    f"share of the roof, {cost.bound_by(intensity, self.chip, self.dtype)}-bound",
                    percent(reached / roof),
                ),
            ]
        )

    def recorded(self, inputs: int, outputs: int) -> str:
        """Runs with more and more rows, and one of a weight that stays cached, as an HTML table."""
        from lumen import cost

        lines = []
        for rows, cached in (*((rows, False) for rows in RECORDED), (1, True)):
            self.run(rows, inputs, outputs, cached)
            roof = cost.roofline(self.flops / self.bytes, self.chip, self.dtype)
            cells = [
                f"{rows}{', same weight' if cached else ''}",
                milliseconds(self.seconds),
                f"{self.bytes / self.seconds / 1e9:.3g}",
                f"{self.flops / self.seconds / 1e9:.3g}",
                percent(self.flops / self.seconds / roof),
            ]
            lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        heads = "".join(f"<th>{name}</th>" for name in ("rows", "time", "GB/s", "GFLOP/s", "of the roof"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def widget(self, rows: int, inputs: int, outputs: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}

        def size(name: str, value: int, most: int) -> Any:
            return w.BoundedIntText(value=value, min=1, max=most, description=name, layout=wide, style=style)

        self.rows = size("Rows", rows, LARGEST)
        self.inputs = size("Inputs", inputs, LARGEST)
        self.outputs = size("Outputs", outputs, LARGEST)
        self.cached = w.Checkbox(
            value=False, description="multiply by the same weight again and again", indent=False
        )
        self.button = w.Button(description="Measure", button_style="primary", tooltip="Multiply and time it")
        self.numbers = w.HTML()
        on_press(self.button, self.numbers, self._pressed, "Measuring…")
        return w.VBox([self.rows, self.inputs, self.outputs, self.cached, self.button, self.numbers])

    def _pressed(self) -> str:
        self.run(self.rows.value, self.inputs.value, self.outputs.value, self.cached.value)
        return self.report()


RECORDED = (1, 4, 16, 64, 256)  # rows of the runs that the static page shows


def matmul_lab(*, rows: int = 1, inputs: int = 576, outputs: int = 3072, chip: Any = None) -> MatmulLab:
    """Show the lab and return it. On the static page stand recorded runs: one row and more, and one weight kept cached.

    >>> lab = matmul_lab(rows=8)
    """
    lab = MatmulLab(chip)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(rows, inputs, outputs))
    else:
        heading = f"<p>Rows by {inputs} × {outputs}, each weight from main memory but in the last line:</p>"
        show_recorded(sentence.replace("the run", "the runs"), heading + lab.recorded(inputs, outputs))
    return lab
