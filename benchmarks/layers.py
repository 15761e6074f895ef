"""Forward of the four mechanisms against nn.MultiheadAttention, d_model 256, inference.

Run: python -m benchmarks.layers [--heads 1,4,8] [--rounds 15]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from benchmarks.report import Row, gate, print_machine, print_rows
from suffice import Attention, from_torch, preset
from suffice.utils.timing import interleave

D_MODEL = 256
REACH = {"standard": 0.95, "optimised": 0.85, "efficient": 0.45, "super_attention": 0.70}
BATCHES, LENGTHS = (8, 32), (64, 128, 256)


def case(heads: int, batch: int, length: int, rounds: int) -> list[Row]:
    torch.manual_seed(0)
    x = torch.randn(batch, length, D_MODEL)
    mha = nn.MultiheadAttention(D_MODEL, heads, batch_first=True).eval()
    calls = {"mha": lambda: mha(x, x, x, need_weights=False)[0]}
    gate("from_torch", from_torch(mha)(x), calls["mha"]())
    for name in REACH:
        options = {"length": length} if name == "super_attention" else {}
        layer = Attention(preset(name, D_MODEL, heads, **options)).eval()
        exact = Attention(layer.spec, impl="reference").eval()
        exact.load_state_dict(layer.state_dict())
        gate(name, layer(x[:2]), exact(x[:2]))
        calls[name] = lambda layer=layer: layer(x)
    times = interleave(calls, rounds=rounds, warmup=3, min_seconds_per_sample=0.02)
    return [
        Row(
            case=f"{name}, {heads} heads, B={batch}, T={length}",
            peer="nn.MultiheadAttention",
            ours=times[name],
            theirs=times["mha"],
            reach=reach,
        )
        for name, reach in REACH.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print_machine()
    for heads in map(int, given.heads.split(",")):
        rows = []
        with torch.inference_mode():
            for batch in BATCHES:
                for length in LENGTHS:
                    rows += case(heads, batch, length, given.rounds)
        print_rows(f"forward, d_model {D_MODEL}, {heads} heads", rows)


if __name__ == "__main__":
    main()
