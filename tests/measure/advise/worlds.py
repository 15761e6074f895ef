"""A machine whose times are known, and small models."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.measure.advise import Base
from suffice.measure.advise.evidence import Evidence
from suffice.measure.advise.request import Candidate
from suffice.measure.advise.timing import TimedSample
from suffice.models import LMConfig, TranslatorConfig
from suffice.positions import NoPosition


def evidence(verdict: str, difference: str = "-0.10 points", **fields) -> Evidence:
    values = {"own": True, "data": "a data set", **fields}
    return Evidence(
        source="x.json",
        title="a task",
        num_heads=4,
        seeds=5,
        difference=difference,
        margin=0.01,
        verdict=verdict,
        **values,
    )


@dataclass
class World:
    """Candidates take fixed seconds; a sample takes as long as its wall."""

    each: dict[str, float]
    wall: float = 0.1
    usual: float = 1.0
    first: dict[str, float] = field(default_factory=dict)
    noise: dict[str, list[float]] = field(default_factory=dict)
    now: float = 0.0
    taken: list[tuple[str, int]] = field(default_factory=list)
    stop_after: int | None = None
    reads: bool = True

    def clock(self) -> float:
        return self.now

    def measure(self, one: Candidate, length: int) -> TimedSample:
        if self.stop_after is not None and len(self.taken) >= self.stop_after:
            raise KeyboardInterrupt
        self.taken.append((one.name, length))
        self.now += self.wall
        factors = self.noise.get(one.name, [1.0])
        factor = factors[len(self.taken) % len(factors)]
        seconds = self.each.get(one.name, self.usual) * factor
        first = self.first.get(one.name, 1.0) if self.reads else None
        return TimedSample(each=seconds, first=first)


SIZES = {"d_model": 16, "mlp_width": 32}


def lm_base(length: int = 64, heads: int = 4, depth: int = 2) -> Base:
    config = LMConfig(vocabulary_size=11, length=length + 16, depth=depth, **SIZES)
    named = {"task": "lm", "name": "small", "length": length}
    return Base(config=config, num_heads=heads, position=NoPosition(), **named)


def translator_base(length: int = 32) -> Base:
    sizes = {"source_vocabulary_size": 11, "target_vocabulary_size": 13}
    config = TranslatorConfig(length=length + 16, **SIZES, **sizes)
    named = {"task": "translate", "name": "small", "length": length}
    return Base(config=config, num_heads=4, position=NoPosition(), **named)
