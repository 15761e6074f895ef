"""Writing on a small machine: against every program that runs the same weights, and its limits.

Run: python -m benchmarks.edge [--isa avx2] [--json FILE] [--seconds 20] [--rounds 15] [--quick]
    [--busy] [--case decode|rows|prefill|training|mechanism] [--shape 15m|110m|0.6b]
    [--bits 32|16|8|4] [--peer NAME] [--llama FOLDER] [--parts]

All sides of a case have the same weights, are checked for the same logits, and write in turn in
the same rounds. "of bound" is the rate over that at which the machine reads what a token needs,
measured before each round. With --json an interrupted run goes on behind the last case of the file.

On a machine that others use, too, threads that wait for each other measure the others: --busy takes
one thread and counts the time it ran instead of the time that passed.

--isa imitates a processor with fewer instructions. Ours and torch's kernels are restricted by their
environment, of OpenVINO the products alone, ONNX Runtime not at all; llama.cpp needs a build of its
own, which --llama names:
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \\
        pip install --no-binary llama-cpp-python --no-deps --target FOLDER llama-cpp-python
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Tensor

from benchmarks import language
from benchmarks.peers.decoders import (
    MODULES,
    Absent,
    Decoder,
    Ours,
    Run,
    check_alike,
    check_installed,
    gain,
    peer,
    session,
)
from benchmarks.report import WIDE, Outcome, print_machine, print_outcomes
from suffice.choose.bench import (
    SHAPES,
    ReadBandwidth,
    bench,
    in_bits,
    prompt_of,
    randomise,
    read_bytes,
    shaped,
)
from suffice.cli.bench import print_bench
from suffice.errors import ConfigError, StateError, UnsupportedError
from suffice.memory import Dynamic
from suffice.models import LM, LMConfig, configuration
from suffice.models.configurations import layers
from suffice.ops.native import library
from suffice.positions import NoPosition, Rope
from suffice.utils.machine import machine_facts, software_versions

RESTRICTED = {  # environment in which a processor looks like one of this set to our side and torch
    "avx2": {
        "SUFFICE_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}
WIDEST = "avx512"  # whose reaches are higher
REACH = {"decode": 1.1, "rows": 1.1, "prefill": 1.0}  # our rate over each peer's
REACH_WIDEST = {"decode": 1.15}
BOUND = {32: 0.80, 16: 0.80, 8: 0.70, 4: 0.55}  # share of the bound of decoding
BOUND_WIDEST = {32: 0.92, 16: 0.92, 8: 0.75, 4: 0.60}
MECHANISM, STATE = 1.12, 0.5
TRAINING = {"standard": 1.15, "efficient": 1.3}
# 16 rows and few new tokens of a large model: a round should take seconds at most
PROMPT, NEW = 16, {"15m": 32, "110m": 16, "0.6b": 4}
BATCHES, PROMPTS = (4, 16), (16, 32, 64, 128, 512, 4096)
LENGTH = max(PROMPTS) + 64  # tokens of a text at most
BITS = (32, 16, 8, 4)
MEBIBYTE = 1 << 20
LARGEST_BUFFER = 256 * MEBIBYTE  # no cache holds more
Rows = Iterator[Outcome]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured.

    Args:
        rounds: texts of each side at most.
        seconds: after which no round of a case begins.
        shrink: divisor of the lengths; above 1 nothing is judged.
        shape: only this one, None = all.
        bits: only these.
        peer: only this one.
        clock: returns seconds.
        parts: whether the parts of a token are printed.
        done: rows of earlier runs by case.
        file: where rows are kept, None = nowhere.
    """

    rounds: int
    seconds: float
    shrink: int
    shape: str | None
    bits: int | None
    peer: str | None
    clock: Callable[[], float]
    parts: bool
    done: dict[str, list[dict]]
    file: Path | None

    def wants(self, shape: str, bits: int) -> bool:
        """Return whether a case was asked for."""
        return self.shape in (None, shape) and self.bits in (None, bits)

    def judge(self, reached: bool) -> str:
        """Return the last column of a row."""
        return "" if self.shrink > 1 else ("reached" if reached else "MISSED")

    def remembered(self, case: str, rows: Rows) -> Rows:
        """Give the rows of a case: those of the file, else new ones, which go there."""
        if case not in self.done:
            self.done[case] = [asdict(row) for row in rows]
            if self.file:
                described = description() | {"cases": self.done}
                self.file.write_text(json.dumps(described, indent=1))
        yield from (Outcome(**row) for row in self.done[case])


def description() -> dict[str, object]:
    """Return what the figures are of."""
    facts = {**software_versions(), **machine_facts()}
    isa = library.instructions() if library.available() else "none"
    return {"instructions": isa, "machine": {k: str(v) for k, v in facts.items()}}


def recorded(file: Path | None) -> dict[str, list[dict]]:
    """Return the rows of a file.

    Raises:
        ConfigError: if they are of other instructions.
    """
    if file is None or not file.exists():
        return {}
    read = json.loads(file.read_text())
    if read["instructions"] != description()["instructions"]:
        raise ConfigError(
            f"{file} has rows of {read['instructions']}, these kernels are "
            f"{description()['instructions']}; name another file."
        )
    return read["cases"]


@lru_cache(maxsize=1)
def model(shape: str) -> LM:
    """Return the model of a shape with weights of 32 bits, which nobody changes."""
    if shape != "0.6b":
        config, specs = configuration(SHAPES[shape], "standard")
    else:  # Qwen3-0.6B's sizes in a Llama: no norms on queries and keys
        config = LMConfig(
            vocabulary_size=151_936, length=LENGTH, d_model=1024, depth=28, mlp_width=3072,
            activation="swiglu", norm="rms", positions="none", bias=False, eps=1e-6,
        )  # fmt: skip
        sizes = {"num_kv_heads": 8, "head_dim": 128, "position": Rope()}
        specs = [replace(s, **sizes) for s in layers("standard", config, 16)]
    return randomise(replace(config, length=LENGTH).build(specs))


def packed(shape: str, bits: int) -> LM:
    """Return the model of a shape with weights of so many bits."""
    whole = model(shape)
    if bits == BITS[0]:
        return whole
    lm = whole.config.build(whole.specs).eval()
    lm.load_state_dict(whole.state_dict())
    return in_bits(lm, bits)


def rivals(asked: Asked) -> list[str]:
    """Return the names of the peers that were asked for."""
    return [name for name in MODULES if asked.peer in (None, name)]


class Bandwidth:
    """Measures before each round how fast the machine reads.

    Args:
        nbytes: that a token reads.
        clock: returns seconds.
    """

    def __init__(self, nbytes: int, clock: Callable[[], float]) -> None:
        self.nbytes = nbytes
        self.buffer = ReadBandwidth(min(nbytes, LARGEST_BUFFER), clock)
        self.rates: list[float] = []

    def measure(self) -> None:
        """Note the tokens per second that reading alone would allow."""
        self.rates.append(self.buffer.measure() / self.nbytes)

    def share(self, runs: list[Run]) -> float:
        """Return the median of decoding rates over these, rounds in pairs."""
        return median(run.decode / rate for run, rate in zip(runs, self.rates, strict=True))


def duel(asked: Asked, rate: str, shape: str, bits: int, ids: Tensor, new: int) -> Rows:
    """Check every side, let those that are right write in turn, and give a row for each rival.

    Args:
        asked: what is measured.
        rate: "decode", "rows" or "prefill".
        shape: of the model.
        bits: of a weight.
        ids: the prompt [T] or prompts [B, T].
        new: tokens each writes.
    """
    room = ids.shape[-1] + new
    texts = torch.atleast_2d(ids)
    whole, ours = Ours(model(shape)), Ours(packed(shape, bits), clock=asked.clock)
    check_alike(whole, ours, texts[0], bits)
    made = partial(peer, bits=bits, room=room, rows=len(texts))
    sides: dict[str, Decoder] = {}
    rows = {
        name: Outcome(case=f"{rate} {shape}, {bits} bits", op="suffice", peer=name)
        for name in rivals(asked)
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, row in rows.items():
            try:
                check_installed(name)
                side = made(name, whole.lm, folder=Path(folder))
                check_alike(whole, side, texts[0], bits)
                side.clock, sides[name] = asked.clock, side
            except (Absent, ConfigError, UnsupportedError) as reason:
                rows[name] = row.told(f"absent: {reason}")
            except StateError as error:
                rows[name] = row.told(f"PEER WRONG: {error}")
            except RuntimeError as error:
                rows[name] = row.told(f"absent: {name} stops: {str(error).splitlines()[-1]}")
        speed = Bandwidth(
            sum(read_bytes(ours.lm, Dynamic(), ids.shape[-1] + new // 2)), asked.clock
        )
        limits = {"seconds": asked.seconds, "each_round": speed.measure}
        runs = session([ours, *sides.values()], ids, new, asked.rounds, **limits)
    yield from judged(asked, rate, rows, sides, runs, speed, len(texts))
    del sides, runs, speed
    gc.collect()
    if asked.parts and rate == "decode":
        sizes = {"prompt": PROMPT, "new": new, "rounds": 3}
        print_bench(WIDE, bench(ours.lm, Dynamic(), **sizes), shape, bits, "dynamic")


def judged(
    asked: Asked, rate: str, rows: dict[str, Outcome], sides: dict[str, Decoder],
    runs: dict[str, list[Run]], speed: Bandwidth, texts: int,
) -> Rows:  # fmt: skip
    """Give the rows with their figures, and for decoding one with the share of the bound."""
    widest = library.instructions() == WIDEST
    least = (REACH | REACH_WIDEST if widest else REACH)[rate]
    timed = "prefill" if rate == "prefill" else "decode"

    def told(name: str) -> str:
        number = texts * median(getattr(run, timed) for run in runs[name])
        bound = f", {speed.share(runs[name]):.2f} of bound" if rate == "decode" else ""
        return f"{number:.1f}/s{bound}"

    for name, side in sides.items():
        found = gain(runs["suffice"], runs[name], timed)
        isa = getattr(side, "instructions", "")
        rows[name] = replace(rows[name], peer=f"{name} ({isa})" if isa else name).told(
            asked.judge(found >= least),
            ours=told("suffice"),
            theirs=told(name),
            value=f"{found:.2f}x",
            reach=f"{least:g}x",
        )
    yield from rows.values()
    if rate != "decode":
        return
    bits = int(next(iter(rows.values())).case.split()[-2])
    share, least = speed.share(runs["suffice"]), (BOUND_WIDEST if widest else BOUND)[bits]
    row = Outcome(case=next(iter(rows.values())).case, op="suffice", peer="reading alone")
    yield row.told(
        asked.judge(share >= least),
        ours=told("suffice"),
        theirs=f"{median(speed.rates):.1f}/s, {median(speed.rates) * speed.nbytes / 1e9:.1f} GB/s",
        value=f"{share:.2f}",
        reach=f"{least:g}",
    )


def decode(asked: Asked) -> Rows:
    """New tokens behind a short prompt."""
    for shape, new in NEW.items():
        for bits in BITS:
            if asked.wants(shape, bits):
                ids, length = prompt_of(model(shape), PROMPT), max(2, new // asked.shrink)
                rows = duel(asked, "decode", shape, bits, ids, length)
                yield from asked.remembered(f"decode {shape} {bits}", rows)


def batches(asked: Asked) -> Rows:
    """New tokens of several texts at once."""
    for texts in BATCHES:
        for bits in BITS:
            if asked.wants("110m", bits):
                ids = prompt_of(model("110m"), texts * PROMPT).view(texts, PROMPT)
                rows = duel(asked, "rows", "110m", bits, ids, max(2, 16 // asked.shrink))
                named = (replace(row, case=f"{texts} {row.case}") for row in rows)
                yield from asked.remembered(f"{texts} rows 110m {bits}", named)


def prefill(asked: Asked) -> Rows:
    """A prompt and the token behind it."""
    for shape, length, bits in product(("15m", "110m"), PROMPTS, (32, 8)):
        if asked.wants(shape, bits):
            ids = prompt_of(model(shape), length // asked.shrink)
            rows = duel(asked, "prefill", shape, bits, ids, 2)
            named = (replace(row, case=f"{row.case}, {length}") for row in rows)
            yield from asked.remembered(f"prefill {shape} {bits} {length}", named)


def training(asked: Asked) -> Rows:
    """A training step of nanoGPT's 4 x 128 against a plain GPT."""
    if not asked.wants("4x128", 32):
        return

    def steps() -> Rows:
        for row in language.case("small", asked.rounds, asked.clock):
            mechanism, found = row.case.partition(",")[0], 1 / row.ratio
            yield Outcome(
                case="training step 4x128",
                op=mechanism,
                peer=row.peer,
                ours=f"{1e3 * median(row.ours):.1f} ms",
                theirs=f"{1e3 * median(row.theirs):.1f} ms",
                value=f"{found:.2f}x",
                reach=f"{TRAINING[mechanism]:g}x",
                standing=asked.judge(found >= TRAINING[mechanism]),
            )

    yield from asked.remembered("training 4x128", steps())


def unturned(shape: str) -> LM:
    """Return Efficient Attention with positions at the tokens, whose keys are its values."""
    config, specs = configuration(SHAPES[shape], "efficient")
    config = replace(config, positions="sinusoidal")
    return randomise(config.build([replace(spec, position=NoPosition()) for spec in specs]))


def mechanism(asked: Asked) -> Rows:
    """Efficient against Standard attention of the same sizes, in 8 bits: speed and state."""
    if asked.wants("110m", 8):
        yield from asked.remembered("mechanism", compared(asked, "110m", 8))


def compared(asked: Asked, shape: str, bits: int) -> Rows:
    """Give a row for the speed and one for the state."""
    new = 256 // asked.shrink
    ours = Ours(in_bits(unturned(shape), bits), name="efficient", clock=asked.clock)
    other = Ours(in_bits(shaped(shape), bits), name="standard", clock=asked.clock)
    ids = prompt_of(ours.lm, PROMPT)
    runs = session([ours, other], ids, new, asked.rounds, seconds=asked.seconds)
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


CASES = {
    "decode": decode,
    "rows": batches,
    "prefill": prefill,
    "training": training,
    "mechanism": mechanism,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short texts, nothing is judged")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a case, at most")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--shape", choices=(*NEW, "4x128"))
    parser.add_argument("--bits", type=int, choices=BITS)
    parser.add_argument("--peer", choices=MODULES)
    parser.add_argument("--parts", action="store_true", help="where a token's time goes")
    parser.add_argument("--isa", choices=RESTRICTED, help="as on a processor without more")
    parser.add_argument("--llama", type=Path, help="folder of another build of llama-cpp-python")
    parser.add_argument("--json", type=Path, help="keeps rows, and goes on behind them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="one thread, the time it ran")
    given = parser.parse_args()
    environment = RESTRICTED.get(given.isa, {})
    if any(os.environ.get(name) != value for name, value in environment.items()):
        command = [sys.executable, "-m", "benchmarks.edge", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | environment)  # libraries read it once
    if given.llama:
        sys.path.insert(0, str(given.llama.resolve()))
    torch.set_num_threads(1 if given.busy else given.threads)
    asked = Asked(
        rounds=1 if given.quick else given.rounds,
        seconds=given.seconds,
        shrink=16 if given.quick else 1,
        shape=given.shape,
        bits=given.bits,
        peer=given.peer,
        clock=process_time if given.busy else perf_counter,
        parts=given.parts,
        done=recorded(given.json),
        file=given.json,
    )
    print_machine()
    busy = ", one thread, time it ran" if given.busy else ""
    WIDE.print(f"our kernels: {description()['instructions']}{busy}")
    for name, case in CASES.items():
        if given.case is None or name in given.case:
            print_outcomes(name, case(asked))


if __name__ == "__main__":
    main()
