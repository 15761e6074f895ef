"""The cases of the table of mechanisms: fp32, B=1, H=8, D=64, self-attention.

Each case is a function of the effort that gives rows; `CASES` holds them by name.

Letters: B batch, H heads, T positions, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.contest import Effort, Rival, Side, contest, growth, timed
from benchmarks.exact import Heads, check, rows_of
from benchmarks.peers import bigbird, flex, local, longformer, performer, sdpa
from benchmarks.report import Outcome
from suffice import AttentionSpec, attend
from suffice.kernels import Elu, Favor, Kernel
from suffice.ops import AttentionCall, MaskInputs, choose
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full, Pattern, Strided, Window
from suffice.utils.timing import peak_bytes

HEADS, WIDTH = 8, 64
SIZE = 256  # keys of the causal window
MEBIBYTE = 1 << 20
Rows = Iterator[Outcome]


def drawn(length: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [1, H, T, D], laid out as a layer's projections give them."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, length, HEADS, WIDTH, generator=generator).transpose(2, 3)
    return q, k, v


def posed(pattern: Pattern, length: int) -> AttentionCall:
    """Return the problem of a softmax over a pattern."""
    spec = AttentionSpec(d_model=HEADS * WIDTH, num_heads=HEADS, pattern=pattern)
    return AttentionCall.of(spec, length, length)


def softmax(pattern: Pattern, length: int, *, backward: bool) -> Side:
    """Return ours, through `suffice.attend`."""
    problem, inputs = posed(pattern, length), drawn(length)
    compute = partial(attend, pattern=pattern)
    exact = partial(rows_of, problem=problem)
    with torch.set_grad_enabled(backward):
        name = choose(problem).name
    return Side(
        name=name,
        call=timed(compute, inputs, backward=backward),
        check=partial(check, compute, exact, inputs, backward=backward, n=length),
    )


def features(kernel: Kernel, length: int, *, backward: bool = False, impl: str = "auto") -> Side:
    """Return ours with a kernel of feature maps, causal, planned once as a layer does it."""
    spec = AttentionSpec(d_model=HEADS * WIDTH, num_heads=HEADS, kernel=kernel, pattern=Causal())
    maps = kernel.build(head_dim=WIDTH, scale=spec.score_scale, device=None)
    problem, inputs, parts = (
        AttentionCall.of(spec, length, length),
        drawn(length),
        Parts(features=maps),
    )
    op = choose(problem, impl)

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return op.run(q, k, v, MaskInputs(), problem, parts)

    exact = partial(rows_of, problem=problem, parts=parts)
    return Side(
        name=op.name,
        call=timed(compute, inputs, backward=backward),
        check=partial(check, compute, exact, inputs, backward=backward, n=length),
    )


def against_sdpa(
    pattern: Pattern, length: int, reach: float, *, masked: bool = False, backward: bool = False
) -> Rival:
    """Return SDPA on the same q, k, v."""
    made = partial(sdpa.side, masked=masked, backward=backward)
    name = "SDPA, mask" if masked else ("causal SDPA" if pattern.causal else "SDPA")
    make = partial(made, drawn(length), posed(pattern, length))
    return Rival(name=name, make=make, reach=reach)


def told(what: str, length: int, backward: bool = False) -> str:
    """Return the case as the table shows it."""
    return f"{what}, T={length}, {'forward + backward' if backward else 'forward'}"


def window(effort: Effort) -> Rows:
    """Causal window: forward against flex_attention and local-attention, both passes, memory."""
    what, pattern = f"causal window {SIZE}", Window(SIZE) & Causal()
    for length in map(effort.length, (4096, 16384)):
        inputs, problem = drawn(length), posed(pattern, length)
        rivals = [
            Rival(
                name="compiled flex_attention",
                make=partial(flex.side, inputs, problem),
                reach=1.6,
            ),
            Rival(
                name=f"local-attention, {SIZE + 1} keys",
                make=partial(local.side, inputs, problem, size=SIZE, backward=False),
                reach=5.0,
            ),
        ]
        ours = softmax(pattern, length, backward=False)
        yield from contest(told(what, length), ours, rivals, effort)
    length = effort.length(4096)
    ours = softmax(pattern, length, backward=True)
    rivals = [against_sdpa(Causal(), length, 2.2, backward=True)]
    yield from contest(told(what, length, True), ours, rivals, effort)


def memory(effort: Effort) -> Rows:
    """Most bytes torch holds at once during the forward of a window: its output is in it."""
    length = effort.length(16384)
    side = softmax(Window(SIZE) & Causal(), length, backward=False)
    row = Outcome(case=told(f"causal window {SIZE}", length), op=side.name, peer="peak of torch")
    try:
        side.check()
    except AssertionError as error:
        yield row.told(f"WRONG: {error}")
        return
    peak = peak_bytes(side.call) / MEBIBYTE
    yield row.told(effort.judge(peak <= 96), value=f"{peak:.1f} MiB", reach="96 MiB")


def sparse(effort: Effort) -> Rows:
    """Longformer, BigBird and strided patterns against SDPA with the boolean mask."""
    length = effort.length(4096)
    patterns = {
        "Longformer 512 + 16 global": longformer.pattern(512, 16),
        "BigBird 3 + 3 + 2 blocks of 64": bigbird.pattern(length),
        "strided 64": (Window(64) | Strided(64)) & Causal(),
    }
    for what, pattern in patterns.items():
        for backward, reach in ((False, 5.0), (True, 4.0)):
            ours = softmax(pattern, length, backward=backward)
            rivals = [against_sdpa(pattern, length, reach, masked=True, backward=backward)]
            yield from contest(told(what, length, backward), ours, rivals, effort)


def ports(effort: Effort) -> Rows:
    """Longformer and BigBird layers against transformers', maps included, output map left out."""
    length = effort.length(4096)
    x = torch.randn(1, length, HEADS * WIDTH, generator=torch.Generator().manual_seed(0))
    for backward in (False, True):
        yield from _longformer(x, backward, effort)
        yield from _bigbird(x, backward, effort)


def _longformer(x: Tensor, backward: bool, effort: Effort) -> Rows:
    length = x.shape[1]
    pattern = longformer.pattern(512, 16)
    problem, case = posed(pattern, length), told("Longformer layer", length, backward)
    port = longformer.Port(length, HEADS, WIDTH, window=512, tokens=16)
    ours = port.our_side(
        choose(problem).name, _over(pattern), _over(Full()), x, problem, backward=backward
    )
    make = partial(port.side, x, problem, backward=backward)
    yield from contest(
        case, ours, [Rival(name="transformers Longformer", make=make, reach=2.0)], effort
    )


def _bigbird(x: Tensor, backward: bool, effort: Effort) -> Rows:
    length = x.shape[1]
    pattern = bigbird.pattern(length)
    problem, case = posed(pattern, length), told("BigBird layer", length, backward)
    port = bigbird.Port(length, HEADS, WIDTH)
    ours = port.our_side(choose(problem).name, _over(pattern), x, problem, backward=backward)
    make = partial(port.side, x, backward=backward)
    yield from contest(
        case, ours, [Rival(name="transformers BigBird", make=make, reach=2.0)], effort
    )


def _over(pattern: Pattern) -> Heads:
    return partial(attend, pattern=pattern)


def linear(effort: Effort) -> Rows:
    """Causal Elu against causal SDPA."""
    for length, reach in ((512, 1.0), (2048, 2.2), (8192, 6.5)):
        size = effort.length(length)
        rivals = [against_sdpa(Causal(), size, reach)]
        yield from contest(told("causal Elu", size), features(Elu(), size), rivals, effort)


def favor(effort: Effort) -> Rows:
    """Causal FAVOR+ against performer-pytorch and causal SDPA."""
    length = effort.length(2048)
    rivals = [
        Rival(
            name="performer-pytorch",
            make=partial(performer.side, drawn(length), features=256),
            reach=15.0,
        ),
        against_sdpa(Causal(), length, 0.9),
    ]
    ours = features(Favor(256), length)
    yield from contest(told("causal FAVOR+, 256 features", length), ours, rivals, effort)


def dense(effort: Effort) -> Rows:
    """Short dense attention against SDPA."""
    for length in (32, 64, 128):
        for backward in (False, True):
            ours = softmax(Full(), length, backward=backward)
            rivals = [against_sdpa(Full(), length, 1.25, backward=backward)]
            yield from contest(told("dense", length, backward), ours, rivals, effort)


def grows(effort: Effort) -> Rows:
    """The exponent of time over the length, for the window and for Elu."""
    lengths = [effort.length(1024 << step) for step in range(6)]
    made: dict[str, Callable[[int], Side]] = {
        f"causal window {SIZE}": partial(softmax, Window(SIZE) & Causal(), backward=False),
        "causal Elu": partial(features, Elu()),
    }
    fewer = replace(effort, seconds=effort.seconds / 5)
    for what, make in made.items():
        sides = {length: make(length) for length in lengths}
        yield from growth(f"{what}, forward", sides, 1.08, fewer)


CASES: dict[str, Callable[[Effort], Rows]] = {
    case.__name__: case for case in (window, memory, sparse, ports, linear, favor, dense, grows)
}
