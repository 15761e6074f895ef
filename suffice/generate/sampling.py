"""How the next token is chosen, as values.

Everything is computed in fp32, in this order: repetition penalty, temperature, top-k, top-p, min-p,
softmax over what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from suffice.errors import ConfigError
from suffice.fields import check_fields


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The token with the highest logit; of equal ones that with the lowest id.

    Args:
        repetition_penalty: see `Sample`.

    Raises:
        ConfigError: if the penalty is not above 0.
    """

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_penalty(self)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A token drawn from softmax(logits), changed and restricted as follows, in this order.

    Args:
        temperature: logits are divided by it.
        top_k: tokens whose logit is at least the k-th highest are left; None = all.
        top_p: the fewest most probable tokens whose probabilities sum to at least this are left;
            of equal ones the lowest ids. 1 = all.
        min_p: tokens at least this share of the highest probability are left; 0 = all.
        repetition_penalty: before all of this, logits of tokens that stand in the row already are
            divided by it where positive and multiplied by it where negative. 1 = no change.
        seed: row i of a call draws numbers of its own, which depend on seed and i alone.

    Raises:
        ConfigError: if a number is outside its range.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751
        (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p); Keskar et al. 2019,
        arXiv:1909.05858, section 4.1 (penalty). Differs: the penalty of a negative logit.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0.0 < self.temperature < math.inf:
            raise ConfigError(
                f"temperature={self.temperature}: give a number above 0; its limit 0 is Greedy(), "
                "on the command line --temperature 0."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: give at least 1, or None for all tokens.")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p={self.top_p}: give a share above 0, at most 1.")
        if not 0.0 <= self.min_p <= 1.0:
            raise ConfigError(f"min_p={self.min_p}: give a share from 0 to 1.")
        _check_penalty(self)


Sampling = Greedy | Sample


def _check_penalty(sampling: Sampling) -> None:
    if not 0.0 < sampling.repetition_penalty < math.inf:
        raise ConfigError(
            f"repetition_penalty={sampling.repetition_penalty}: give a number above 0; 1 changes "
            "nothing."
        )
