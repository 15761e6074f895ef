"""Everything that `suffice bench` tells of one model."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from suffice.measure.edge.bandwidth import Reading
from suffice.measure.edge.ours import Ours
from suffice.measure.edge.parts import Part, parts
from suffice.measure.edge.resident import forget_peak, resident
from suffice.measure.edge.run import Run
from suffice.measure.edge.shapes import prompt_of, read_bytes, weight_bytes
from suffice.memory import Memory
from suffice.models import LM

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
