"""A machine whose times are known, and small models."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.choose import Base, Request, advise
from suffice.choose.candidates import Candidate
from suffice.choose.evidence import Evidence
from suffice.choose.timing import Sample
from suffice.models import LMConfig, TranslatorConfig
from suffice.positions import NoPosition


def evidence(verdict: str, difference: str = "-0.10 points", **fields) -> Evidence:
    values = {"task": "lm", "tokens": 64, "parameters": 800_000, "recalls": False, "own": True}
    values |= {"source": "x.json", "title": "a task", "mechanism": "mqa", "margin": 0.01}
    values |= {"num_heads": 4, "seeds": 5, **fields}
    return Evidence(difference=difference, verdict=verdict, **values)


@dataclass
class World:
    """Candidates take fixed seconds; a sample takes as long as its wall."""

    each: dict[str, float | None]  # None: it cannot be built
    wall: float = 0.1
    first: dict[str, float] = field(default_factory=dict)
    noise: dict[str, list[float]] = field(default_factory=dict)
    now: float = 0.0
    taken: list[str] = field(default_factory=list)
    stop_after: int | None = None
    reads: bool = True

    def clock(self) -> float:
        return self.now

    def prepare(self, one: Candidate):
        return lambda: self.sample(one.name)

    def sample(self, name: str) -> Sample:
        if self.stop_after is not None and len(self.taken) >= self.stop_after:
            raise KeyboardInterrupt
        self.taken.append(name)
        self.now += self.wall
        factors = self.noise.get(name, [1.0])
        factor = factors[self.taken.count(name) % len(factors)]
        first = self.first.get(name, 1.0) if self.reads else None
        return Sample(each=self.each.get(name, 1.0) * factor, first=first)

    def step_seconds(self, one: Candidate, rows: int) -> float:
        return 0.03 * self.each.get(one.name, 1.0) * rows

    def advise(self, request: Request, **options):
        return advise(request, clock=self.clock, timer=lambda *_: self, **options)


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
