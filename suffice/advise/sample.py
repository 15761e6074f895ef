"""One timing of one candidate.

Letters: B rows, T tokens of an input, n new ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from suffice.advise.base import Base
from suffice.advise.built import Models
from suffice.advise.candidates import Candidate
from suffice.measure.edge.ours import Ours
from suffice.models import LMConfig, TranslatorConfig, ViTConfig

NEW = 9  # tokens written behind an input; the first one ends the reading
SHORTEST = 5e-3  # seconds that a sample of short calls lasts


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Seconds of one candidate, measured once.

    Args:
        each: of a token that is written, or of an input where none is.
        first: of reading the input before the first token; None where nothing is written.
    """

    each: float
    first: float | None = None


class Sampler:
    """Times candidates on random inputs, one at a time.

    Args:
        base: the sizes.
        device: where models run.
    """

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.models = Models(base, device)
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, one: Candidate, length: int) -> Sample:
        """Return the times of a candidate behind an input of a length, or for it."""
        model = self.models.of(one, length)
        with torch.inference_mode():
            return self._sample(model, one, length)

    def _sample(self, model: Any, one: Candidate, length: int) -> Sample:
        config = model.config
        if isinstance(config, LMConfig):
            run = Ours(model, one.memory).write(self._ids(config.vocabulary_size, length), NEW)
            return Sample(each=statistics.median(run.token_seconds), first=run.prompt_seconds)
        if isinstance(config, TranslatorConfig):
            return self._translated(model, one, length)
        if isinstance(config, ViTConfig):
            side = config.image_size
            given = torch.randn(1, config.channels, side, side, generator=self.generator)
            given = given.to(self.device)
        else:
            given = self._ids(config.vocabulary_size, length)[None]
        return Sample(each=self._seconds(lambda: model(given)))

    def _translated(self, model: Any, one: Candidate, length: int) -> Sample:
        """Return the times of a translator's greedy steps behind a target as long as the source."""
        config = model.config
        source = self._ids(config.source_vocabulary_size, length)[None]
        target = self._ids(config.target_vocabulary_size, length)[None]
        ticks = [self._now()]
        state = model.state(model.encode(source), memory=one.memory)
        features = model.features(target, state=state)
        for _ in range(NEW):
            token = model.logits(features[:, -1]).argmax(dim=-1)
            ticks.append(self._now())
            features = model.features(token[:, None], state=state)
        first, *each = (after - before for before, after in pairwise(ticks))
        return Sample(each=statistics.median(each), first=first)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, of so many that the sample is not too short."""
        start = self._now()
        call()
        once = self._now() - start
        times = ceil(SHORTEST / max(once, 1e-9)) - 1
        if times < 1:
            return once
        start = self._now()
        for _ in range(times):
            call()
        return (self._now() - start) / times

    def _ids(self, vocabulary: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (length,), generator=self.generator).to(self.device)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()
