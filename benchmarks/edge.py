"""Writing on a small machine: against llama.cpp, ONNX Runtime and transformers, and its limits.

Run: python -m benchmarks.edge [--quick] [--rounds 3] [--case decode|bound|mechanism|prefill]
    [--shape 15m|110m] [--bits 32|16|8|4] [--peer llama.cpp|transformers|onnxruntime]

Where a row is missed, the parts of a token are printed below the table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.peers.decoders import (
    Absent,
    Decoder,
    check_alike,
    check_installed,
    gain,
    peer,
    session,
)
from benchmarks.report import WIDE, Outcome, print_machine, print_outcomes
from suffice.cli.bench import print_bench
from suffice.errors import ConfigError, StateError, UnsupportedError
from suffice.measure.edge.bench import Bench, bench
from suffice.measure.edge.run import Writer
from suffice.measure.edge.shapes import SHAPES, in_bits, prompt_of, randomise, shaped
from suffice.memory import Dynamic
from suffice.models import LM, configuration
from suffice.positions import NoPosition

# (shape, bits of ours, peer, bits of the peer): how much faster we must be
DECODE = {
    **{("110m", b, "llama.cpp", b): r for b, r in {32: 1.1, 16: 1.2, 8: 1.25, 4: 1.25}.items()},
    **{("15m", b, "llama.cpp", b): 1.1 for b in (32, 16, 8, 4)},
    **{("110m", b, "onnxruntime", b): r for b, r in {32: 1.1, 8: 1.3, 4: 1.0}.items()},
    ("110m", 32, "transformers", 32): 1.5,
    ("110m", 8, "transformers", 32): 4.5,
}
PREFILL = {("110m", 32, "llama.cpp", 32): 1.0, ("110m", 8, "llama.cpp", 8): 1.0}
BOUND = {("110m", 32): 0.85, ("110m", 16): 0.80, ("110m", 8): 0.60, ("110m", 4): 0.45}
MECHANISM, STATE = 1.12, 0.5
PROMPT, NEW, LONG = 16, 256, 512
MEBIBYTE = 1 << 20
Rows = Iterator[Outcome]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured.

    Args:
        rounds: texts of each side.
        shrink: divisor of the lengths; above 1 nothing is judged.
        shape: only this one, None = all.
        bits: only these.
        peer: only this one.
    """

    rounds: int
    shrink: int
    shape: str | None
    bits: int | None
    peer: str | None

    def wants(self, shape: str, bits: int, peer: str | None = None) -> bool:
        """Return whether a row was asked for."""
        pairs = (self.shape, shape), (self.bits, bits), (self.peer, peer)
        return all(asked is None or asked == own for asked, own in pairs)

    def judge(self, reached: bool) -> str:
        """Return the last column of a row."""
        return "" if self.shrink > 1 else ("reached" if reached else "MISSED")


def against(asked: Asked, reaches: dict, rate: str, prompt: int, new: int) -> Rows:
    """Give a row for each peer of each model; those of one model write in the same rounds."""
    for shape, bits in dict.fromkeys((shape, bits) for shape, bits, *_ in reaches):
        rivals = {
            key[2:]: reach
            for key, reach in reaches.items()
            if key[:2] == (shape, bits) and asked.wants(*key[:3])
        }
        if rivals:
            lm = shaped(shape)
            ids = prompt_of(lm, prompt)
            with tempfile.TemporaryDirectory() as folder:
                yield from duel(asked, (shape, bits), lm, ids, rivals, rate, new, Path(folder))


def duel(
    asked: Asked, of: tuple[str, int], lm: LM, ids: Tensor, rivals: dict, rate: str, new: int,
    folder: Path,
) -> Rows:  # fmt: skip
    """Check every side, let those that are right write in turn, and give a row for each rival."""
    shape, bits = of
    case = f"{rate} {shape}, {bits} bits"
    rows = {key: Outcome(case=case, op="suffice", peer=f"{key[0]} {key[1]}") for key in rivals}
    whole, ours = Writer(lm), Writer(in_bits(shaped(shape), bits))
    try:
        check_alike(whole, ours, ids, bits)
    except StateError as error:
        yield from (row.told(f"WRONG: {error}") for row in rows.values())
        return
    sides: dict[tuple[str, int], Decoder] = {}
    for name, own in rivals:
        try:
            check_installed(name)
            side = peer(name, lm, bits=own, room=len(ids) + new, folder=folder)
            check_alike(whole, side, ids, own)
            sides[name, own] = side
        except (Absent, ConfigError, UnsupportedError) as reason:
            rows[name, own] = rows[name, own].told(f"absent: {reason}")
        except StateError as error:
            rows[name, own] = rows[name, own].told(f"PEER WRONG: {error}")
    runs = session([ours, *sides.values()], ids, new, asked.rounds) if sides else {}
    for key, side in sides.items():
        found = gain(runs[ours.name], runs[side.name], rate)
        rows[key] = rows[key].told(
            asked.judge(found >= rivals[key]),
            ours=f"{median(getattr(run, rate) for run in runs[ours.name]):.1f}/s",
            theirs=f"{median(getattr(run, rate) for run in runs[side.name]):.1f}/s",
            value=f"{found:.2f}x",
            reach=f"{rivals[key]:g}x",
        )
    yield from rows.values()


def decode(asked: Asked) -> Rows:
    """New tokens behind a short prompt."""
    yield from against(asked, DECODE, "decode", PROMPT, NEW // asked.shrink)


def prefill(asked: Asked) -> Rows:
    """A long prompt and the token behind it."""
    yield from against(asked, PREFILL, "prefill", LONG // asked.shrink, 2)


def bound(asked: Asked) -> Rows:
    """The share of the rate at which the machine could read what a token needs."""
    missed: list[tuple[Bench, str, int]] = []
    for (shape, bits), reach in BOUND.items():
        if not asked.wants(shape, bits):
            continue
        sizes = {"prompt": PROMPT, "new": NEW // asked.shrink, "rounds": asked.rounds}
        told = bench(in_bits(shaped(shape), bits), Dynamic(), **sizes)
        missed += [(told, shape, bits)] if told.share < reach else []
        row = Outcome(case=f"bound {shape}, {bits} bits", op="suffice", peer="the machine")
        yield row.told(
            asked.judge(told.share >= reach),
            ours=f"{told.decode:.1f}/s",
            theirs=f"{told.bound:.1f}/s, {told.bandwidth / 1e9:.1f} GB/s",
            value=f"{told.share:.2f}",
            reach=f"{reach:.2f}",
        )
    for told, shape, bits in missed:
        print_bench(WIDE, told, shape, bits, "dynamic")


def unturned(shape: str) -> LM:
    """Return Efficient Attention with positions at the tokens, whose keys are its values."""
    config, specs = configuration(SHAPES[shape], "efficient")
    config = replace(config, positions="sinusoidal")
    return randomise(config.build([replace(spec, position=NoPosition()) for spec in specs]))


def mechanism(asked: Asked) -> Rows:
    """Efficient against Standard attention of the same sizes, in 8 bits: speed and state."""
    shape, bits, new = "110m", 8, NEW // asked.shrink
    if not asked.wants(shape, bits):
        return
    ours = Writer(in_bits(unturned(shape), bits), name="efficient")
    other = Writer(in_bits(shaped(shape), bits), name="standard")
    ids = prompt_of(ours.lm, PROMPT)
    runs = session([ours, other], ids, new, asked.rounds)
    found = gain(runs["efficient"], runs["standard"], "decode")
    row = Outcome(case=f"decode {shape}, {bits} bits", op="efficient", peer="our standard")
    yield row.told(
        asked.judge(found >= MECHANISM),
        ours=f"{median(run.decode for run in runs['efficient']):.1f}/s",
        theirs=f"{median(run.decode for run in runs['standard']):.1f}/s",
        value=f"{found:.2f}x",
        reach=f"{MECHANISM:g}x",
    )
    own, theirs = (side.generated(ids, new).state.nbytes for side in (ours, other))
    row = Outcome(case=f"state {shape}", op="efficient", peer="our standard")
    yield row.told(
        asked.judge(own <= STATE * theirs),
        ours=f"{own / MEBIBYTE:.2f} MiB",
        theirs=f"{theirs / MEBIBYTE:.2f} MiB",
        value=f"{own / theirs:.2f}x",
        reach=f"{STATE:g}x",
    )


CASES = {"decode": decode, "bound": bound, "mechanism": mechanism, "prefill": prefill}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short texts, nothing is judged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--shape", choices=("15m", "110m"))
    parser.add_argument("--bits", type=int, choices=(32, 16, 8, 4))
    parser.add_argument("--peer", choices=("llama.cpp", "transformers", "onnxruntime"))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    asked = Asked(
        rounds=1 if given.quick else given.rounds,
        shrink=16 if given.quick else 1,
        shape=given.shape,
        bits=given.bits,
        peer=given.peer,
    )
    print_machine()
    for name, case in CASES.items():
        if given.case in (None, name):
            print_outcomes(name, case(asked))


if __name__ == "__main__":
    main()
