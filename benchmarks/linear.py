"""The product of a linear map through oneDNN against F.linear: the figures behind ops/linear.py.

Run: python -m benchmarks.linear
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.report import CONSOLE, Row, gate, print_machine, print_rows
from suffice.ops import linear
from suffice.utils.timing import interleave

SHAPES = [
    (1, 256, 256), (16, 256, 256), (64, 64, 64), (256, 64, 64), (64, 256, 256),
    (1024, 64, 128), (512, 256, 256), (2048, 256, 256), (8192, 256, 256), (2048, 256, 1024),
]  # fmt: skip


def main() -> None:
    print_machine()
    if not linear.PRESENT:
        CONSOLE.print("this machine has no AVX-512 or torch no oneDNN: F.linear is always used")
        return
    forward, training = [], []
    for rows, inputs, outputs in SHAPES:
        x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        b = torch.randn(outputs)
        gate("oneDNN", linear._product(x, w, b), F.linear(x, w, b), 1e-3)
        picked = "oneDNN" if linear.fast(rows, inputs, outputs) else "F.linear"
        label = f"{rows} x {inputs} x {outputs}, picks {picked}"
        with torch.inference_mode():
            times = interleave(
                {"o": lambda: linear._product(x, w, b), "f": lambda: F.linear(x, w, b)},  # noqa: B023
                rounds=9, warmup=3, min_seconds_per_sample=0.01,
            )  # fmt: skip
        forward.append(Row(case=label, peer="F.linear", ours=times["o"], theirs=times["f"]))
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]

        def both(product, leaves=leaves):
            out = product(*leaves)
            return torch.autograd.grad(out, leaves, torch.ones_like(out))

        times = interleave(
            {"o": lambda: both(linear._Product.apply), "f": lambda: both(F.linear)},
            rounds=9, warmup=3, min_seconds_per_sample=0.01,
        )  # fmt: skip
        training.append(Row(case=label, peer="F.linear", ours=times["o"], theirs=times["f"]))
    print_rows("forward", forward)
    print_rows("forward and backward", training)


if __name__ == "__main__":
    main()
