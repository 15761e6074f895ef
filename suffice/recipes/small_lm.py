"""A language model of a few thousand weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from suffice.models import LM, LMConfig
from suffice.models.lm import START
from suffice.models.sizes import check_positive
from suffice.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class SmallLMConfig(LMConfig):
    """The sizes of a language model whose weights start larger than those of a large one.

    The usual 0.02 suits a width of many hundreds. At a width of 64 it leaves every score near 0,
    and a model stays for thousands of steps at guessing among what a row holds.

    Args:
        start: standard deviation of the weights of maps and embeddings before training; those
            that end a residual branch have their usual share of it.

    Raises:
        ConfigError: as `LMConfig`, or if start is not above 0.
    """

    start: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "start")

    def build(
        self,
        spec: AttentionSpec | Sequence[AttentionSpec],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> LM:
        """Return a model of these sizes with the given attention."""
        model = super().build(spec, device=device, dtype=dtype)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    module.weight *= self.start / START
        return model
