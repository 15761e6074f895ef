"""What a part costs: a layer with sinks, a cap, gates or differences beside the same without it.

fp32, 2 threads, B=1, T=512, d_model=512, H=8, causal; the times are of whole layers, maps included.
Differences are 8 pairs of maps, 32 wide, over values 64 wide, at the same parameters.
Each layer equals its float64 reference before it is timed; ratios are of medians of interleaved
rounds.

Run: python -m benchmarks.parts (SUFFICE_ISA=avx2 with ATEN_CPU_CAPABILITY=avx2 and
ONEDNN_MAX_CPU_ISA=AVX2 stands in for a processor without AVX-512)
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.malloc import keep_large_temporaries
from benchmarks.report import CONSOLE, print_machine
from suffice import Attention, AttentionSpec
from suffice.combine import Differential, Gated
from suffice.kernels import Softmax
from suffice.measure.timing import interleave
from suffice.ops.native import library
from suffice.patterns import Causal
from suffice.testing import assert_close, drawn

THREADS, LENGTH, D_MODEL = 2, 512, 512
PLAIN = AttentionSpec(d_model=D_MODEL, num_heads=8, pattern=Causal())
# and the ratio of its time that is asked for, forward
PARTS = {
    "sinks": (replace(PLAIN, kernel=Softmax(sink=True)), 1.1),
    "cap": (replace(PLAIN, kernel=Softmax(cap=50.0)), 1.15),
    "gates": (replace(PLAIN, combine=Gated()), 1.1),
    "differences": (replace(PLAIN, combine=Differential()), 2.1),
}


def forward(layer: Attention, x: Tensor) -> None:
    """Run the layer without gradients."""
    with torch.no_grad():
        layer(x)


def train(layer: Attention, x: Tensor) -> None:
    """Run the layer and its gradients."""
    layer(x).sum().backward()


def checked(spec: AttentionSpec, x: Tensor) -> Attention:
    """Return a layer that gives what its float64 reference gives."""
    layer = drawn(Attention(spec), seed=0)
    exact = copy.deepcopy(layer).double()
    exact.impl = "reference"
    with torch.no_grad():
        assert_close(layer(x), exact(x.double()), n=LENGTH)
    return layer


def main() -> int:
    """Print the ratios; return 1 if one is larger than asked for."""
    torch.set_num_threads(THREADS)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    x = torch.randn(1, LENGTH, D_MODEL, generator=torch.Generator().manual_seed(1))
    specs = {"without": PLAIN} | {name: spec for name, (spec, _) in PARTS.items()}
    layers = {name: checked(spec, x) for name, spec in specs.items()}
    missed = False
    for what in (forward, train):
        calls = {name: partial(what, layer, x) for name, layer in layers.items()}
        samples = interleave(calls, rounds=15, warmup=3, min_seconds_per_sample=0.05)
        times = {name: median(values) for name, values in samples.items()}
        CONSOLE.print(f"{what.__name__}, {library.instructions()}")
        CONSOLE.print(f"  without      {1e3 * times['without']:7.2f} ms")
        for name, (_, most) in PARTS.items():
            ratio = times[name] / times["without"]
            verdict = "" if what is train else "reached" if ratio <= most else f"MISSED {most}x"
            missed = missed or verdict.startswith("MISSED")
            CONSOLE.print(f"  {name:12} {1e3 * times[name]:7.2f} ms  {ratio:.2f}x  {verdict}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
