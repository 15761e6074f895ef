"""Speed, latency, memory and bandwidth of one model, as `suffice bench` reports them.

Letters: T tokens, n new tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from suffice.errors import ConfigError, check_known
from suffice.generate import Rates, Stopwatch, generate
from suffice.generate.decoding import OnToken, choose_backend
from suffice.memory import Dynamic, Memory
from suffice.models import LM, configuration
from suffice.models.native_decoder import NativeDecoder
from suffice.ops.native import library
from suffice.ops.native.matrix import structure_of
from suffice.utils.timing import Call, Clock, interleave

WARM_UP = 8  # tokens written before anything is timed


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Speed and memory of one model, medians over the rounds; rates are tokens per second."""

    parameters: int
    prompt: int
    tokens: int  # new ones
    threads: int  # of a product
    rounds: int  # texts that were written
    prefill: float
    decode: float
    latency_p50: float  # seconds of a token, over all rounds
    latency_p90: float
    latency_p99: float
    weight_bytes: int
    state_bytes: int  # after the last token, spare room included
    peak_bytes: int | None  # growth since before the model was made; None: not reported here
    read_bytes: int  # least that a token in the middle of the text reads, weights and state
    bandwidth: float  # bytes per second of a buffer of this size; again where a part read faster
    bound: float  # if reading these bytes took all the time
    share: float  # of the bound that was reached
    steps: str  # backend that computed a token: "native (avx512)", or "torch" and why
    parts: tuple[Part, ...]  # of a token after the prompt, in a native step


def bench(
    lm: LM, memory: Memory, *, prompt: int, new: int, rounds: int, before: int | None = None
) -> Bench:
    """Measure a model on the CPU that reads a prompt and writes `new` tokens, at least 2.

    `before` are the resident bytes before the model was made; None: now.
    """
    before = resident() if before is None else before
    ids, writer = prompt_of(lm, prompt), Writer(lm, memory)
    reset_peak()
    writer.write(ids, min(new, WARM_UP))
    options = {"max_new_tokens": new, "memory": memory, "keep_state": True}
    generated = generate(lm, ids[None], **options)
    peak = resident("peak")
    nbytes = sum(read_bytes(lm, memory, prompt + new // 2))
    buffer = ReadBandwidth(nbytes)
    runs, bandwidths = [], []
    for _ in range(rounds):
        bandwidths.append(buffer.measure())
        runs.append(writer.write(ids, new))
    token_seconds = [seconds for run in runs for seconds in run.token_seconds]
    p50, p90, p99 = np.percentile(token_seconds, (50, 90, 99)).tolist()
    unpacked = lm.config.build(lm.specs, device="meta")  # packed weights are not parameters
    measured = tuple(parts(lm, memory, ids, p50)) if generated.steps.startswith("native") else ()
    if any(part.share(statistics.median(bandwidths)) > 1.0 for part in measured):
        again = max(buffer.measure() for _ in range(rounds))
        bandwidths = [max(bandwidth, again) for bandwidth in bandwidths]
    bounds = [bandwidth / nbytes for bandwidth in bandwidths]
    return Bench(
        parameters=sum(p.numel() for p in unpacked.parameters()),
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
        state_bytes=generated.state.nbytes,
        peak_bytes=None if None in (before, peak) else peak - before,
        read_bytes=nbytes,
        bandwidth=statistics.median(bandwidths),
        bound=statistics.median(bounds),
        share=statistics.median(r.decode / b for r, b in zip(runs, bounds, strict=True)),
        steps=generated.steps,
        parts=measured,
    )


# Memory of the process.

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FIELDS = {"now": "VmRSS", "peak": "VmHWM"}


def resident(field: str = "now", status: Path = STATUS) -> int | None:
    """Return the resident bytes "now", or their "peak"; None if the system does not report them."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith(f"{FIELDS[field]}:")]
    return 1024 * int(kibibytes[0]) if kibibytes else None


def reset_peak(clear: Path = CLEAR) -> bool:
    """Reset the peak to what is resident now; return whether the system did."""
    try:
        clear.write_text("5")
    except OSError:
        return False
    return True


# Bandwidth of the machine.

MIN_BYTES = 1 << 20  # below, starting threads takes longer than reading
COLUMNS = 1024


class ReadBandwidth:
    """The rate at which this machine reads a buffer again and again.

    The buffer is summed by torch and multiplied by the native kernels where there are any; the
    faster one counts, since a bound must hold for both.
    """

    def __init__(self, nbytes: int, clock: Clock | None = None) -> None:
        self.clock = clock
        rows = max(nbytes, MIN_BYTES) // (4 * COLUMNS)
        self.buffer = torch.ones(rows, COLUMNS)
        self.readers: dict[str, Call] = {"sum": self.buffer.sum}
        if library.available():
            self.x, self.y = torch.ones(COLUMNS), torch.empty(rows)
            self.matrix = structure_of(self.buffer, None)
            self.readers["product"] = self._multiply

    def _multiply(self) -> None:
        x, y = self.x.data_ptr(), self.y.data_ptr()
        library.library().suffice_multiply(self.matrix, x, 1, y, torch.get_num_threads())

    def measure(self, passes: int = 5) -> float:
        """Return bytes per second, of the fastest of these passes."""
        once = {"warmup": 1, "min_seconds_per_sample": 1e-9}  # a sample is one call
        taken = interleave(self.readers, rounds=passes, clock=self.clock, **once)
        seconds = {name: min(times) for name, times in taken.items()}
        fastest = min(seconds, key=lambda name: seconds[name])
        self.readers = {fastest: self.readers[fastest]}
        return self.buffer.nbytes / seconds[fastest]


# Parts of a token.

MAPS = {
    "queries, keys, values": ("q", "k", "v"),
    "output map": ("o",),
    "MLP": ("gate", "up", "down"),
}
ROUNDS = 15
EMPTY_SIZE = 16  # rows and columns of a product that takes next to no time
NUMBER_BITS = {library.F32: 32, library.F16: 16, library.BF16: 16, library.INT8: 8, library.INT4: 4}


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    nbytes: int  # that it reads
    flops: int
    seconds: float  # median

    def share(self, bandwidth: float) -> float:
        """Return the rate at which it reads as a share of a bandwidth; 0 if it was not measured."""
        return self.nbytes / self.seconds / bandwidth if self.seconds > 0 else 0.0


def parts(lm: LM, memory: Memory, prompt: Tensor, token_seconds: float) -> list[Part]:
    """Measure the parts of the token after a prompt [T], in a model that native code can decode."""
    late, early = (_Step(lm, memory, ids) for ids in (prompt, prompt[:1]))
    products = _Products(late.decoder)
    for _ in range(ROUNDS):
        late.run()
        early.run()
        products.run()
    length, step = len(prompt), late.median()
    attention = Part(
        name="attention",
        nbytes=read_bytes(lm, memory, length)[1],
        flops=sum(
            4 * spec.num_heads * spec.head_width * spec.attended_positions(length, memory)
            for spec in lm.specs
        ),
        seconds=step - early.median(),
    )
    first, *others = products.parts()
    measured = [first, attention, *others]
    rest = step - sum(part.seconds for part in measured)
    return [
        *measured,
        Part(name="embedding, norms, turns", nbytes=0, flops=0, seconds=rest),
        Part(name="around the step", nbytes=0, flops=0, seconds=token_seconds - step),
    ]


class _Step:
    """Times the step after a text; the token is dropped from the cache again."""

    def __init__(self, lm: LM, memory: Memory, ids: Tensor) -> None:
        self.decoder, self.state = NativeDecoder(lm, memory), lm.state(memory)
        with torch.inference_mode():
            lm.features(ids[None], state=self.state)
        self.token, self.seconds = torch.zeros(1, dtype=torch.int64), []
        self.run()  # makes room
        self.seconds.clear()

    def run(self) -> None:
        start = perf_counter()
        with torch.inference_mode():
            self.decoder.step(self.token, self.state)
        self.seconds.append(perf_counter() - start)
        if self.state.can_drop(1):
            self.state.drop_last(1)

    def median(self) -> float:
        return statistics.median(self.seconds)


class _Products:
    def __init__(self, decoder: NativeDecoder) -> None:
        self.call, self.threads = decoder.library.suffice_multiply, torch.get_num_threads()
        self.matrices = list(_matrices(decoder))
        widest = max(max(matrix.rows, matrix.columns) for _, matrix in self.matrices)
        self.x, self.y = torch.randn(widest), torch.empty(widest)
        self.seconds: dict[str, list[float]] = {name: [] for name, _ in self.matrices}
        self.zeros = torch.zeros(EMPTY_SIZE, EMPTY_SIZE)
        self.empty_seconds: list[float] = []

    def run(self) -> None:
        empty = structure_of(self.zeros, None)
        self._time(empty)  # wakes the threads
        for seconds in self.seconds.values():
            seconds.append(0.0)
        for name, weights in self.matrices:
            self.empty_seconds.append(self._time(empty))
            self.seconds[name][-1] += self._time(weights)

    def _time(self, matrix: library.Matrix) -> float:
        start = perf_counter()
        self.call(matrix, self.x.data_ptr(), 1, self.y.data_ptr(), self.threads)
        return perf_counter() - start

    def parts(self) -> list[Part]:
        overhead, products = statistics.median(self.empty_seconds), []
        for name, seconds in self.seconds.items():
            matrices = [matrix for part, matrix in self.matrices if part == name]
            products.append(
                Part(
                    name=name,
                    nbytes=sum(map(_matrix_bytes, matrices)),
                    flops=sum(2 * matrix.rows * matrix.columns for matrix in matrices),
                    seconds=statistics.median(seconds) - len(matrices) * overhead,
                )
            )
        return products


def _matrices(decoder: NativeDecoder) -> Iterator[tuple[str, library.Matrix]]:
    for layer in decoder.layers:
        for part, names in MAPS.items():
            for matrix in (getattr(layer, name) for name in names):
                if matrix.kind != library.ABSENT:
                    yield part, matrix
    yield "head", decoder.model.head


def _matrix_bytes(matrix: library.Matrix) -> int:
    numbers = matrix.rows * matrix.columns
    scales = 2 * numbers // matrix.group if matrix.group else 0
    return numbers * NUMBER_BITS[matrix.kind] // 8 + scales


class Writer:
    """A model that writes greedily and measures how long each token takes."""

    def __init__(self, lm: LM, memory: Memory | None = None, clock: Clock | None = None) -> None:
        self.lm, self.memory, self.clock = lm, memory or Dynamic(), clock or perf_counter
        self.decoder, _ = choose_backend(lm, self.memory, "auto")  # rates are without its set-up

    def write(self, prompt: Tensor, new: int, on_token: OnToken | None = None) -> Rates:
        """Write the n likeliest tokens after a prompt [T] or prompts [B, T]."""
        rows, watch = torch.atleast_2d(prompt), Stopwatch(on_token, clock=self.clock)
        generate(self.decoder, rows, max_new_tokens=new, memory=self.memory, on_token=watch)
        return watch.rates(rows.shape[1])


SHAPES = {"15m": "llama_15m", "110m": "llama_110m"}
BITS = (32, 16, 8, 4)


def shaped(shape: str, mechanism: str = "standard") -> LM:
    """Return a model with random weights of 32 bits.

    Weights have the standard deviation inputs^-1/2, so that every part changes the logits.
    """
    check_known("shape", shape, SHAPES)
    config, specs = configuration(SHAPES[shape], mechanism)
    return randomise(config.build(specs))


def randomise(lm: LM) -> LM:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in lm.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
    return lm.eval()


def in_bits(lm: LM, bits: int) -> LM:
    """Return the model with its weights packed in place into `bits` bits; 32: not packed."""
    if bits not in BITS:
        raise ConfigError(f"bits={bits}: give {', '.join(map(str, BITS))}.")
    from suffice.quantise import quantise, unpack

    if bits == BITS[0]:
        unpack(lm)
    else:
        quantise(lm, bits=bits)
    return lm


def prompt_of(lm: LM, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(lm.config.vocabulary_size, (length,), generator=generator)


def weight_bytes(lm: LM) -> int:
    """Return the bytes of all stored tensors, shared ones counted once."""
    by_address = {t.data_ptr(): t.nbytes for t in lm.state_dict().values() if isinstance(t, Tensor)}
    return sum(by_address.values())


def read_bytes(lm: LM, memory: Memory, positions: int) -> tuple[int, int]:
    """Return the bytes of weights and of state that one token after `positions` others reads.

    An embedding that is not the head's is read by one row, which is not counted.
    """
    weights = weight_bytes(lm)
    if lm.head is not None:
        weights -= sum(t.nbytes for t in lm.embedding.tokens.state_dict().values())
    makers = (spec if spec.shares is None else lm.specs[spec.shares] for spec in lm.specs)
    return weights, sum(
        maker.state_bytes(spec.attended_positions(positions, memory), memory)
        for maker, spec in zip(makers, lm.specs, strict=True)
    )
