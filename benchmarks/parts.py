"""What a part costs: a layer with sinks, a cap, gates or differences beside the same without it.

fp32, 2 threads, B=1, T=512, d_model=512, H=8, causal; the times are of whole layers, maps included.
Differences are 8 pairs of maps, 32 wide, over values 64 wide, at the same parameters.
Each layer equals its float64 reference before it is timed; ratios are of medians of interleaved
rounds. `--case latent`: a decoding step of MLA (rank 256, 32 rotary) beside MHA, d_model=1024,
H=16, weights included, and the share reached of what the bytes of weights and caches allow.

Run: python -m benchmarks.parts [--case latent] (SUFFICE_ISA=avx2 with ATEN_CPU_CAPABILITY=avx2 and
ONEDNN_MAX_CPU_ISA=AVX2 stands in for a processor without AVX-512)
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.malloc import keep_large_temporaries
from benchmarks.report import CONSOLE, print_machine
from suffice import Attention, AttentionSpec
from suffice.combine import Differential, Gated
from suffice.encoders import MLA
from suffice.kernels import Softmax
from suffice.layers.state import LayerState
from suffice.memory import Static
from suffice.ops.native import library
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import assert_close, drawn
from suffice.utils.timing import interleave

THREADS, LENGTH, D_MODEL = 2, 512, 512
PLAIN = AttentionSpec(d_model=D_MODEL, num_heads=8, pattern=Causal())
# and the ratio of its time that is asked for, forward
PARTS = {
    "sinks": (replace(PLAIN, kernel=Softmax(sink=True)), 1.1),
    "cap": (replace(PLAIN, kernel=Softmax(cap=50.0)), 1.15),
    "gates": (replace(PLAIN, combine=Gated()), 1.1),
    "differences": (replace(PLAIN, combine=Differential()), 2.1),
}

WIDE, SHARE = 1024, 0.8  # SHARE: of what bytes allow, asked for
MHA = AttentionSpec(d_model=WIDE, num_heads=16, pattern=Causal(), position=Rope())
LATENT = replace(MHA, encoder=MLA(rank=256, rotary_dim=32))


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


def step_bytes(layer: Attention, state: LayerState) -> int:
    """Return the bytes that a step has to read: the weights, and what is cached."""
    return sum(p.numel() * p.element_size() for p in layer.parameters()) + state.nbytes


def filled(
    spec: AttentionSpec, length: int, dtype: torch.dtype = torch.float32
) -> tuple[Attention, LayerState]:
    """Return a layer and a state that holds what it caches of so many tokens."""
    layer = drawn(Attention(spec), seed=0).to(dtype).eval()
    state = layer.state(Static(length + 2))
    x = torch.randn(1, length, spec.d_model, generator=torch.Generator().manual_seed(1))
    inputs = state.step(x.to(dtype), None)
    state.append(layer, layer.encode(inputs).cached, inputs.at)
    return layer, state


def step(layer: Attention, state: LayerState, x: Tensor) -> Tensor:
    """Return the outputs of one more token, which is not kept."""
    out = layer(x, state=state)
    state.drop_last(1)
    return out


@torch.inference_mode()
def time_latent_steps() -> bool:
    """Print what a decoding step of MLA takes beside one of MHA; return whether the goal is met."""
    met = True
    x = torch.randn(1, 1, WIDE, generator=torch.Generator().manual_seed(2))
    for spec in (MHA, LATENT):
        layer, state = filled(spec, LENGTH, torch.float64)
        layer.impl = "reference"
        assert_close(step(*filled(spec, LENGTH), x), step(layer, state, x.double()), n=WIDE)
    for length in (4096, 32768):
        layers = {"mha": filled(MHA, length), "mla": filled(LATENT, length)}
        calls = {name: partial(step, *one, x) for name, one in layers.items()}
        samples = interleave(calls, rounds=15, warmup=3, min_seconds_per_sample=0.05)
        times = {name: median(values) for name, values in samples.items()}
        needed = {name: step_bytes(*one) for name, one in layers.items()}
        ratio, most = times["mha"] / times["mla"], needed["mha"] / needed["mla"]
        reached = ratio >= SHARE * most
        met = met and reached
        CONSOLE.print(
            f"step behind {length:6,} tokens, {library.instructions()}: "
            f"MHA {1e3 * times['mha']:.2f} ms, MLA {1e3 * times['mla']:.2f} ms, {ratio:.2f}x as "
            f"fast; bytes allow {most:.2f}x, {ratio / most:.2f} of it "
            f"{'reached' if reached else f'MISSED {SHARE}'}"
        )
    return met


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return 1 if one is not what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("parts", "latent"), default="parts")
    case = parser.parse_args(words).case
    torch.set_num_threads(THREADS)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    if case == "latent":
        return int(not time_latent_steps())
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
