"""How fast a language model writes."""

from __future__ import annotations

import statistics
import time

from suffice.errors import ConfigError
from suffice.generate import generate
from suffice.models import LM

FIRST = 4  # tokens not counted


def tokens_per_second(lm: LM, tokens: int = 64) -> float:
    """Return the median rate of new tokens of one text, which `generate` writes greedily.

    Args:
        lm: the model.
        tokens: to write; fewer where the model reads no more.

    Raises:
        ConfigError: if the model's texts are too short to measure.
    """
    tokens = min(tokens, lm.config.length - 1)
    if tokens <= FIRST:
        raise ConfigError(f"a model of length={lm.config.length} writes too little to time it.")
    at: list[float] = []
    generate(lm, [[0]], max_new_tokens=tokens, on_token=lambda _ids: at.append(time.perf_counter()))
    took = [after - before for before, after in zip(at, at[1:], strict=False)]
    return 1.0 / statistics.median(took[FIRST - 1 :])
