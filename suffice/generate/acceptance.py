"""Which drafted tokens stand, so that what is written is distributed as the model's own.

Letters: N rows, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from suffice.generate.distribution import pick


def accept(
    model: Tensor, draft: Tensor, drafted: Tensor, at: Tensor, again: Tensor
) -> tuple[Tensor, Tensor]:
    """Return tokens distributed as `model`, and whether each one is the drafted one.

    A drafted token x stands with probability min(1, model(x) / draft(x)); else one is drawn from
    max(model - draft, 0), scaled to sum to 1.

    Args:
        model: probabilities [N, V].
        draft: probabilities [N, V] that `drafted` was drawn with.
        drafted: int [N].
        at: float64 [N] in [0, 1), decides.
        again: float64 [N] in [0, 1), draws.

    Returns:
        int [N] and bool [N].

    Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3. No difference.
    """
    wanted, proposed = (p.double().gather(-1, drafted[..., None])[..., 0] for p in (model, draft))
    stands = at * proposed < wanted
    rest = (model.double() - draft.double()).clamp(min=0.0)
    other = pick(rest.where(rest.sum(dim=-1, keepdim=True) > 0, model.double()), again)
    return drafted.where(stands, other), stands
