"""Everything that `suffice bench` tells of one model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from suffice.measure.edge.run import Ours, Run
from suffice.measure.edge.shapes import prompt_of, read_bytes, seen, weight_bytes
from suffice.memory import Memory
from suffice.models import LM
from suffice.models.native_decoder import NativeDecoder
from suffice.ops.native import library, matrix
from suffice.ops.native import library as of
from suffice.ops.native.matrix import structure_of

LEAST = 1 << 20  # bytes; below, starting threads takes longer than reading
COLUMNS = 1024


class Reading:
    """A buffer that is read again and again.

    It is summed by torch and multiplied by the native kernels where there are any; the faster one
    counts, as a bound must be one for both.

    Args:
        nbytes: of the buffer: as many as what is held against it reads, for caches serve both.
    """

    def __init__(self, nbytes: int) -> None:
        rows = max(nbytes, LEAST) // (4 * COLUMNS)
        self.buffer = torch.ones(rows, COLUMNS)
        self.ways: list[Callable[[], object]] = [self.buffer.sum]
        if library.available():
            self.x, self.y = torch.ones(COLUMNS), torch.empty(rows)
            self.matrix = matrix.structure_of(self.buffer, None)
            self.ways.append(self._multiply)
        self.fastest: Callable[[], object] | None = None

    def _multiply(self) -> None:
        x, y = self.x.data_ptr(), self.y.data_ptr()
        library.library().suffice_multiply(self.matrix, x, 1, y, torch.get_num_threads())

    def speed(self, passes: int = 5) -> float:
        """Return bytes a second, of the fastest pass of these."""
        if self.fastest is None:
            self.fastest = min(self.ways, key=lambda way: self._seconds(way, passes))
        return self.buffer.nbytes / self._seconds(self.fastest, passes)

    @staticmethod
    def _seconds(way: Callable[[], object], passes: int) -> float:
        taken = []
        for _ in range(passes + 1):  # the first one wakes threads
            start = perf_counter()
            way()
            taken.append(perf_counter() - start)
        return min(taken[1:])


MAPS = {
    "queries, keys, values": ("q", "k", "v"),
    "output map": ("o",),
    "MLP": ("gate", "up", "down"),
}
ROUNDS = 15
PARTS_LEAST = 16  # rows and columns of a product that takes next to nothing
NUMBERS = {of.F32: 32, of.F16: 16, of.BF16: 16, of.INT8: 8, of.INT4: 4}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a token.

    Args:
        name: of it.
        nbytes: that it reads.
        flops: that it computes.
        seconds: median.
    """

    name: str
    nbytes: int
    flops: int
    seconds: float


def parts(lm: LM, memory: Memory, prompt: Tensor, token_seconds: float) -> list[Part]:
    """Measure the parts of the token behind a prompt.

    Args:
        lm: the model, which native code can step through.
        memory: what is kept of the text.
        prompt: ids [T].
        token_seconds: of one token of `generate`.
    """
    far, near = (_Behind(lm, memory, ids) for ids in (prompt, prompt[:1]))
    alone = _Products(far.fused)
    for _ in range(ROUNDS):
        far.step()
        near.step()
        alone.multiply()
    products = alone.parts()
    step = far.median()
    attention = step - near.median()
    length = len(prompt)
    flops = sum(4 * s.num_heads * s.head_width * seen(s, memory, length) for s in lm.specs)
    nbytes = read_bytes(lm, memory, length)[1]
    products.insert(1, Part(name="attention", nbytes=nbytes, flops=flops, seconds=attention))
    rest = step - sum(part.seconds for part in products)
    around = token_seconds - step
    return [
        *products,
        Part(name="embedding, norms, turns", nbytes=0, flops=0, seconds=rest),
        Part(name="around the step", nbytes=0, flops=0, seconds=around),
    ]


class _Behind:
    """Steps behind a text, each taken back."""

    def __init__(self, lm: LM, memory: Memory, ids: Tensor) -> None:
        self.decoder, self.state = NativeDecoder(lm, memory), lm.state(memory)
        with torch.inference_mode():
            lm.features(ids[None], state=self.state)
        self.token, self.seconds = torch.zeros(1, dtype=torch.int64), []
        self.step()  # makes room
        self.seconds.clear()

    def step(self) -> None:
        start = perf_counter()
        with torch.inference_mode():
            self.decoder.step(self.token, self.state)
        self.seconds.append(perf_counter() - start)
        if self.state.can_drop(1):
            self.state.drop_last(1)

    def median(self) -> float:
        return statistics.median(self.seconds)


class _Products:
    """The products of a step, one after another."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.call, self.threads = decoder.library.suffice_multiply, torch.get_num_threads()
        self.matrices = list(_matrices(decoder))
        widest = max(max(matrix.rows, matrix.columns) for _, matrix in self.matrices)
        self.x, self.y = torch.randn(widest), torch.empty(widest)
        self.seconds: dict[str, list[float]] = {name: [] for name, _ in self.matrices}
        self.least = torch.zeros(PARTS_LEAST, PARTS_LEAST)
        self.empty: list[float] = []

    def multiply(self) -> None:
        empty = structure_of(self.least, None)
        self._time(empty)  # wakes the threads
        for seconds in self.seconds.values():
            seconds.append(0.0)
        for name, weights in self.matrices:
            self.empty.append(self._time(empty))
            self.seconds[name][-1] += self._time(weights)

    def _time(self, matrix: of.Matrix) -> float:
        start = perf_counter()
        self.call(matrix, self.x.data_ptr(), 1, self.y.data_ptr(), self.threads)
        return perf_counter() - start

    def parts(self) -> list[Part]:
        empty, found = statistics.median(self.empty), []
        for name, seconds in self.seconds.items():
            own = [matrix for part, matrix in self.matrices if part == name]
            found.append(
                Part(
                    name=name,
                    nbytes=sum(map(_bytes, own)),
                    flops=sum(2 * matrix.rows * matrix.columns for matrix in own),
                    seconds=statistics.median(seconds) - len(own) * empty,
                )
            )
        return found


def _matrices(decoder: NativeDecoder) -> Iterator[tuple[str, of.Matrix]]:
    """Give every matrix of a step in its order, with the part it belongs to."""
    for layer in decoder.layers:
        for part, names in MAPS.items():
            found = [getattr(layer, name) for name in names]
            yield from ((part, matrix) for matrix in found if matrix.kind != of.ABSENT)
    yield "head", decoder.model.head


def _bytes(matrix: of.Matrix) -> int:
    numbers = matrix.rows * matrix.columns
    scales = 2 * numbers // matrix.group if matrix.group else 0
    return numbers * NUMBERS[matrix.kind] // 8 + scales


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FIELDS = {"now": "VmRSS", "peak": "VmHWM"}


def resident(field: str = "now", status: Path = STATUS) -> int | None:
    """Return the resident bytes "now", or their "peak"; None where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{FIELDS[field]}:")]
    return 1024 * int(found[0]) if found else None


def forget_peak(clear: Path = CLEAR) -> bool:
    """Let the peak start from what is resident now; return whether the system did."""
    try:
        clear.write_text("5")
    except OSError:
        return False
    return True


WARM = 8  # tokens written before anything is timed


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Speed and memory of one model, medians over the rounds.

    Args:
        parameters: numbers of the model.
        prompt: tokens of the prompt.
        tokens: new ones.
        threads: of a product.
        rounds: texts that were written.
        prefill: tokens of the prompt a second.
        decode: new tokens a second.
        latency_p50: seconds of a token, percentiles over all rounds.
        latency_p90: the same.
        latency_p99: the same.
        weight_bytes: of the model.
        state_bytes: kept behind the last token, spare room included.
        peak_bytes: the process grew by at most so much from before the model was made, None where
            the system does not tell.
        read_bytes: of weights and state that a token reads at least, in the middle of the text.
        bandwidth: bytes a second that this machine reads from a buffer of as many bytes.
        bound: tokens a second at which that would be all that takes time.
        share: of the bound that was reached, the median of each round's own.
        steps: how a token went through the model: "native (avx512)", or "torch" and why.
        parts: of a token behind the prompt, in a native step; none without one.
    """

    parameters: int
    prompt: int
    tokens: int
    threads: int
    rounds: int
    prefill: float
    decode: float
    latency_p50: float
    latency_p90: float
    latency_p99: float
    weight_bytes: int
    state_bytes: int
    peak_bytes: int | None
    read_bytes: int
    bandwidth: float
    bound: float
    share: float
    steps: str
    parts: tuple[Part, ...]


def bench(
    lm: LM, memory: Memory, *, prompt: int, new: int, rounds: int, before: int | None = None
) -> Bench:
    """Measure a model.

    Args:
        lm: the model, on the CPU.
        memory: what is kept of the text.
        prompt: tokens that are read first.
        new: tokens that are written, at least 2.
        rounds: texts.
        before: resident bytes before the model was made; None = now.

    Raises:
        ConfigError: for more tokens than the model or its memory can hold, or too few.
    """
    before = resident() if before is None else before
    ids, side = prompt_of(lm, prompt), Ours(lm, memory)
    forget_peak()
    side.write(ids, min(new, WARM))
    written = side.kept(ids, new)
    peak = resident("peak")
    read = sum(read_bytes(lm, memory, prompt + new // 2))
    reading = Reading(read)
    runs, speeds = [], []
    for _ in range(rounds):
        speeds.append(reading.speed())
        runs.append(side.write(ids, new))
    p50, p90, p99 = percentiles(runs)
    whole = lm.config.build(lm.specs, device="meta")  # packed weights are no parameters
    bounds = [speed / read for speed in speeds]
    return Bench(
        parameters=sum(p.numel() for p in whole.parameters()),
        prompt=prompt,
        tokens=new,
        threads=torch.get_num_threads(),
        rounds=rounds,
        prefill=statistics.median(run.prefill for run in runs),
        decode=statistics.median(run.decode for run in runs),
        latency_p50=p50,
        latency_p90=p90,
        latency_p99=p99,
        weight_bytes=weight_bytes(lm),
        state_bytes=written.state.nbytes,
        peak_bytes=None if None in (before, peak) else peak - before,
        read_bytes=read,
        bandwidth=statistics.median(speeds),
        bound=statistics.median(bounds),
        share=statistics.median(r.decode / b for r, b in zip(runs, bounds, strict=True)),
        steps=written.steps,
        parts=tuple(parts(lm, memory, ids, p50)) if written.steps.startswith("native") else (),
    )


def percentiles(runs: list[Run]) -> tuple[float, float, float]:
    """Return the 50th, 90th and 99th percentile of the seconds of a token.

    Example:
        >>> from suffice.measure.edge.run import run_of
        >>> percentiles([run_of(range(102), 1, [0, *range(102)])])
        (1.0, 1.0, 1.0)
    """
    seconds = [second for run in runs for second in run.token_seconds]
    if len(seconds) == 1:
        return seconds[0], seconds[0], seconds[0]
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]
