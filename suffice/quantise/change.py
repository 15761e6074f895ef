"""How packed weights change a language model's answers.

Letters: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.quantise.report import Change

TOGETHER = 8  # rows computed at once


@torch.no_grad()
def change(
    lm: LM, packed: Mapping[str, nn.Module], tokens: Tensor, step: Callable[[int, int], None]
) -> Change:
    """Return how answers change when the named modules are replaced; they are put back.

    Args:
        lm: in evaluation.
        packed: what replaces which module.
        tokens: int [B, T]; every token but a row's first is predicted.
        step: told how many rows of how many are done.
    """
    own = {name: lm.get_submodule(name) for name in packed}
    before = after = divergence = 0.0
    for done, rows in enumerate(tokens.to(lm.device).split(TOGETHER)):
        reads, wants = rows[:, :-1], rows[:, 1:].flatten()
        was = _log_probabilities(lm, reads)
        try:
            _put(lm, packed)
            now = _log_probabilities(lm, reads)
        finally:
            _put(lm, own)
        before += float(F.nll_loss(was, wants, reduction="sum"))
        after += float(F.nll_loss(now, wants, reduction="sum"))
        divergence += float(F.kl_div(now, was, reduction="sum", log_target=True))
        step(min((done + 1) * TOGETHER, len(tokens)), len(tokens))
    count = tokens[:, 1:].numel()
    return Change(
        tokens=count,
        divergence=divergence / count,
        perplexity_before=math.exp(min(before / count, 700.0)),
        perplexity_after=math.exp(min(after / count, 700.0)),
    )


def _log_probabilities(lm: LM, tokens: Tensor) -> Tensor:
    return lm(tokens).double().log_softmax(dim=-1).flatten(0, 1)


def _put(lm: LM, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        replace_module(lm, name, module)
