"""Where each op wins: matmul and folded against fused, the figures behind ops/dispatch.py.

Run: python -m benchmarks.crossover [--backward]
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.report import Row, gate, print_machine, print_rows
from suffice import attend
from suffice.patterns import Causal, Full
from suffice.utils.timing import interleave

SHAPES = [(8, 8, 32), (8, 4, 64), (8, 2, 128), (8, 1, 256), (32, 4, 16), (1, 1, 256)]
LENGTHS = (16, 32, 64, 128, 256, 512, 768, 1024)


def call(impl: str, tensors: tuple, pattern, backward: bool):
    q, k, v = tensors
    if not backward:

        def forward():
            with torch.inference_mode():
                return attend(q, k, v, pattern=pattern, impl=impl)

        return forward
    inputs = [t.clone().requires_grad_() for t in tensors]

    def both():
        out = attend(*inputs, pattern=pattern, impl=impl)
        return torch.autograd.grad(out, inputs, torch.ones_like(out))[0]

    return both


def dense(pattern, backward: bool) -> list[Row]:
    rows = []
    for batch, heads, width in SHAPES:
        for length in LENGTHS:
            if batch * heads * length * length > 5e7:
                continue
            make = [torch.randn(batch, length, heads, width).transpose(1, 2) for _ in range(3)]
            calls = {op: call(op, tuple(make), pattern, backward) for op in ("fused", "matmul")}
            gate("matmul", calls["matmul"](), calls["fused"](), 1e-3)
            times = interleave(calls, rounds=7, warmup=2, min_seconds_per_sample=0.01)
            label = f"matmul {pattern!r} B={batch} H={heads} D={width} T={length}"
            rows.append(Row(case=label, peer="fused", ours=times["matmul"], theirs=times["fused"]))
    return rows


def decode() -> list[Row]:
    rows = []
    for heads, groups in ((8, 2), (32, 4), (8, 1)):
        for queries in (1, 4, 16, 32, 64):
            for keys in (256, 2048):
                q = torch.randn(1, heads, queries, 64)
                k, v = (torch.randn(1, groups, keys, 64) for _ in range(2))
                ops = ("fused", "folded")
                calls = {op: call(op, (q, k, v), Causal(), False) for op in ops}
                gate("folded", calls["folded"](), calls["fused"](), 1e-3)
                times = interleave(calls, rounds=7, warmup=2, min_seconds_per_sample=0.01)
                label = f"folded H={heads} G={groups} T={queries} S={keys}"
                rows.append(
                    Row(case=label, peer="fused", ours=times["folded"], theirs=times["fused"])
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backward", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    print_machine()
    for pattern in (Full(), Causal()):
        what = "forward and backward" if given.backward else "forward"
        print_rows(f"{what}, {pattern!r}", dense(pattern, given.backward))
    if not given.backward:
        print_rows("few queries, shared heads", decode())


if __name__ == "__main__":
    main()
