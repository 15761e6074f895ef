"""How many numbers a model learns, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.studio.calculator.composition import Composition
from suffice.studio.calculator.kept import counted


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Learned numbers.

    Args:
        attention: of all attention layers.
        mlp: of all MLPs.
        norms: of all norms.
        embedding: rows of tokens and positions.
        head: of a head that is not tied.
    """

    attention: int
    mlp: int
    norms: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.mlp + self.norms + self.embedding + self.head


def weights_of(model: Composition) -> Weights:
    """Count what a model learns; the attention's numbers are its specs' own.

    Example:
        >>> weights_of(Composition(d_model=64, num_heads=4, layers=2, norms=0)).attention
        32768
    """
    most, full = (counted(model.spec(full)).parameters for full in (False, True))
    fulls = model.layers // model.full_every if model.full_every else 0
    return Weights(
        attention=(model.layers - fulls) * most + fulls * full,
        mlp=model.layers * _mlp(model),
        norms=_norms(model),
        embedding=(model.vocabulary + model.positions) * model.d_model,
        head=0 if model.tied else model.vocabulary * model.d_model,
    )


def _mlp(model: Composition) -> int:
    """Count the MLP of a block."""
    if not model.mlp_width:
        return 0
    maps = 3 if model.gated else 2
    biases = (maps - 1) * model.mlp_width + model.d_model
    return maps * model.d_model * model.mlp_width + model.mlp_bias * biases


def _norms(model: Composition) -> int:
    """Count the norms of all blocks and the last one."""
    last = min(model.norms, 1)
    plain = (model.layers * model.norms + last) * model.d_model * (1 + model.norm_bias)
    return plain + model.layers * model.qk_norm * 2 * model.spec().head_width
