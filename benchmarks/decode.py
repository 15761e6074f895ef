"""One more token of a long text against torch's fused attention and other caches of ours.

fp32 queries, 2 threads, B=1, D=64. What a memory holds in codes is read by a layer whose maps are
left out. A side that is not what the float64 specification says is told and not timed; 8-bit codes
may differ from it by what they round. Beside each row stands what its sides read and multiply, and
how long two threads take to read ours once: no way of computing it is faster than that.

--crossover times native_decode against the other ops, the figures behind ops/dispatch.py; a product
of torch goes before each call, as in a layer.

Run: python -m benchmarks.decode [--quick | --crossover]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contest import FULL, QUICK, Call, Effort, Outcome, Rival, Side, contest
from benchmarks.malloc import keep_large_temporaries
from benchmarks.report import CONSOLE, print_machine, print_outcomes
from suffice import Attention, AttentionSpec, attend
from suffice.memory import Quantised
from suffice.patterns import Causal
from suffice.testing import assert_close
from suffice.utils.timing import interleave

THREADS, HEADS, WIDTH = 2, 8, 64
CAUSAL = Causal()  # made once, as a layer does: plans are kept by it
ROUNDED = {8: 2e-3, 4: 5e-2}  # that outputs may be off by the bits of the values
CODES = Quantised()
UNEQUAL = Quantised(value_bits=4, block=128)  # with blocks of 64 keys .78 of the bytes of CODES


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a side computed something wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shows that all runs, judges nothing")
    parser.add_argument("--crossover", action="store_true", help="where the op wins")
    given = parser.parse_args(words)
    torch.set_num_threads(THREADS)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    effort = QUICK if given.quick else FULL
    if given.crossover:
        return _crossover()
    rows = []
    for groups, keys, coded, reach in (
        (8, 1024, False, 1.6),
        (8, 4096, False, 1.6),
        (1, 32768, True, 7.0),
    ):
        length = effort.length(keys)
        q, k, v = _drawn(groups, length)
        case = f"decode, {HEADS} heads on {groups}, {length} keys{', 8 bits' if coded else ''}"
        ours = (
            _streamed(q, k, v, CODES) if coded else _side("ours", partial(_plain, q, k, v), q, k, v)
        )
        torchs = partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=groups < HEADS)
        make = partial(_side, "SDPA", torchs, q, k, v)
        rows += contest(case, ours, [Rival(name="SDPA", make=make, reach=reach)], effort)
        _break_down(case, ours, (q, k, v), coded, effort)
    rows += _unequal(effort)
    print_outcomes("Attention of one more token.", rows)
    return int(any(row.failed for row in rows))


def _unequal(effort: Effort) -> Iterator[Outcome]:
    """Time keys in 8 and values in 4 bits against both in 8, and print the bytes of both."""
    length = effort.length(32768)
    q, k, v = _drawn(1, length)
    nbytes = [m.nbytes_of([(1, WIDTH)] * 2, length, 4) for m in (UNEQUAL, CODES)]
    case = f"decode, {HEADS} heads on 1, {length} keys in 8 and values in 4 bits"
    CONSOLE.print(f"{case}: {nbytes[0] / nbytes[1]:.3f} of the bytes of 8 bits", soft_wrap=True)
    eight = Rival(name="8 bits", make=partial(_streamed, q, k, v, CODES, "8 bits"), reach=1.0)
    return contest(case, _streamed(q, k, v, UNEQUAL), [eight], effort)


def _break_down(
    case: str, ours: Side, drawn: tuple[Tensor, ...], coded: bool, effort: Effort
) -> None:
    """Print what a case reads and multiplies, and the time of reading alone."""
    q, k, v = drawn
    size = 1 if coded else 4
    held = torch.ones((k.numel() + v.numel()) * size // 4)
    times = effort.times({"ours": ours.call, "reading": held.sum})
    took, reading = (statistics.median(times[name]) for name in ("ours", "reading"))
    products = 4 * HEADS * k.shape[2] * WIDTH
    CONSOLE.print(
        f"{case}: ours reads {held.nbytes / 1e6:.1f} MB, SDPA "
        f"{HEADS // k.shape[1] * (k.nbytes + v.nbytes) / 1e6:.1f} MB, {products / 1e6:.0f} MFLOP; "
        f"{1e6 * took:.0f} us, of which reading once {1e6 * reading:.0f} us "
        f"({held.nbytes / reading / 1e9:.0f} GB/s)",
        soft_wrap=True,
    )


def _crossover() -> int:
    weight, x = torch.randn(512, 512), torch.randn(1, 1, 512)
    for groups, queries in product((8, 2, 1), (1, 4)):
        other = "folded" if groups < HEADS else "fused"
        for keys in (128, 512, 1024, 2048, 4096, 16384):
            q, k, v = _drawn(groups, keys, queries)

            def one(impl: str, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> None:
                with torch.inference_mode():
                    F.linear(x, weight)
                    attend(q, k, v, pattern=CAUSAL, impl=impl)

            calls = {impl: partial(one, impl) for impl in ("native_decode", other)}
            times = interleave(calls, rounds=7, warmup=2, min_seconds_per_sample=0.01)
            gain = statistics.median(times[other]) / statistics.median(times["native_decode"])
            CONSOLE.print(f"{HEADS} heads on {groups}, {queries} x {keys}: {gain:.2f}x of {other}")
    return 0


def _drawn(groups: int, length: int, queries: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    k, v = (draw(1, groups, length, WIDTH) for _ in range(2))
    return draw(1, HEADS, queries, WIDTH), k, v


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, pattern=CAUSAL, impl="native_decode")


def _side(
    name: str, call: Call, q: Tensor, k: Tensor, v: Tensor, rounded: float | None = None
) -> Side:
    """Return a side whose call gives the outputs [1, H, 1, D]."""

    def timed() -> object:
        with torch.inference_mode():
            return call()

    def check() -> None:
        want = attend(q.double(), k.double(), v.double(), impl="reference")
        got = timed()
        if rounded is None:
            assert_close(got, want, n=k.shape[2])
        elif not (got - want).abs().max() <= rounded:  # type: ignore[operator]
            raise AssertionError(f"off by {(got - want).abs().max()}")  # type: ignore[operator]

    return Side(name=name, call=timed, check=check)


class _Heads(nn.Module):
    """A projection that returns the last positions of given heads [B, H, T, D]."""

    def __init__(self, heads: Tensor) -> None:
        super().__init__()
        self.weight = heads.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last positions, as many as x has."""
        return self.weight[:, self.weight.shape[1] - x.shape[1] :]


def _streamed(q: Tensor, k: Tensor, v: Tensor, memory: Quantised, name: str = "ours") -> Side:
    """Return a layer that goes on from a state in codes, one token each call.

    Each call takes its token back, so that all calls are alike.
    """
    spec = AttentionSpec(
        d_model=HEADS * WIDTH, num_heads=HEADS, num_kv_heads=k.shape[1], pattern=CAUSAL
    )
    layer = Attention(spec).eval()
    length, x = k.shape[2], torch.zeros(1, 1, spec.d_model)
    state = layer.state(memory)
    with torch.inference_mode():  # what a text before it would have left
        new = state.begin(x.expand(1, length - 1, -1), None)
        state.append(layer, (k[:, :, : length - 1], v[:, :, : length - 1]), new)
    layer.q_proj, layer.k_proj, layer.v_proj = _Heads(q), _Heads(k), _Heads(v)
    layer.o_proj = nn.Identity()

    def call() -> Tensor:
        out = layer(x, state=state).view(1, 1, HEADS, WIDTH).transpose(1, 2)
        state.drop_last(1)
        return out

    return _side(name, call, q, k, v, ROUNDED[memory.bits_of(1)])


if __name__ == "__main__":
    raise SystemExit(main())
