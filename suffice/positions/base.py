"""The protocol of position encodings, ALiBi's bias, and none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ShapeError
from suffice.utils.records import Axis


class Position(Axis, family="position"):
    """Base of the positions that act inside a layer: on queries and keys, not on values."""

    absolute: bool = True
    """True if the result depends on positions at all."""

    rotates: bool = False
    """True if queries and keys are rotated by their positions."""

    biases: bool = False
    """True if the position adds something to the products of queries and keys."""

    relative: bool = False
    """True if the bias depends on the distance of query and key only."""

    max_length: int | None = None
    """The longest text whose positions are known, in tokens; None if unlimited."""

    def refuses_source(self) -> str | None:
        """Return why keys cannot come from another sequence; None without positions."""
        return "counts positions of one sequence: use NoPosition()" if self.absolute else None

    def check_length(self, tokens: int) -> None:
        """Raise ShapeError for a text longer than `max_length`."""
        if self.max_length is not None and tokens > self.max_length:
            raise ShapeError(
                f"a text of {tokens} tokens; {type(self).__name__} places at most "
                f"{self.max_length}, as longer texts rotate by other frequencies, which are not "
                "computed here; cut the text."
            )

    def conflicts(self, head_dim: int) -> list[str]:  # noqa: ARG002 - most values fit any width
        """Return what is wrong with this head width, a sentence each."""
        return []

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys [B, H, T, D] rotated by their positions ([T] or [B, T])."""
        return self.rotate_by(x, self.cos_sin(positions, x.shape[-1], x.dtype))

    def cos_sin(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the factors of `rotate_by`, which all layers of a model can share."""
        raise NotImplementedError(f"{type(self).__name__} rotates nothing.")

    def rotate_by(self, x: Tensor, cos_sin: tuple[Tensor, ...]) -> Tensor:
        """Return queries or keys [B, H, T, D] rotated by the factors of `cos_sin`."""
        raise NotImplementedError(f"{type(self).__name__} rotates nothing.")

    def bias(self, num_heads: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what is added to the scaled products [..., H, T, S], float32 or better.

        Called only where `biases`. The positions broadcast to [..., 1, T, S], as [..., 1, T, 1]
        and [..., 1, 1, S].
        """
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the products.")


@dataclass(frozen=True)
class NoPosition(Position):
    """Leaves queries and keys unchanged; the model adds positions to x, or needs none.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. No difference.
    """

    absolute = False


@dataclass(frozen=True)
class Alibi(Position):
    """Add -m_h * |q - k| to the scaled product of a query at q and a key at k in head h.

    With H = 2^n heads m_h = 2^(-8h/H), h = 1..H. Other numbers of heads take the slopes of the
    next lower power of two, P, and then every second slope of 2 P heads from the first.

    Choose it for language models that are to read further than they were trained: what is far is
    weighed less, and nothing is learned. Softmax only, self-attention only.

    Cost: no parameters; one addition for each pair and head.
    Example:
        >>> Alibi().bias(2, torch.tensor([[2]]), torch.tensor([[0, 1, 2]]))[0]
        tensor([[-0.1250, -0.0625, -0.0000]], dtype=torch.float64)

    Source: Press et al. 2021, arXiv:2108.12409, section 3. Differs: the paper's language models
    only look back; a key ahead counts by its distance too.
    """

    biases = True
    relative = True

    def bias(self, num_heads: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return -m_h * |q - k|, float64: [..., H, T, S]."""
        slopes = torch.tensor(_slopes(num_heads), dtype=torch.float64, device=q_positions.device)
        return -slopes[:, None, None] * (q_positions - k_positions).abs()


def _slopes(num_heads: int) -> list[float]:
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: num_heads - power]
