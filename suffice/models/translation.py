"""What a translator keeps while it writes: the source, and the target so far.

Letters: B batch, S tokens of the source, T tokens of the target, M d_model.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from suffice.errors import ShapeError
from suffice.layers import CrossBlock
from suffice.layers.source import Source, Sources
from suffice.layers.state import LayerState
from suffice.memory import Dynamic, Memory
from suffice.models.embedding import check_rows
from suffice.models.state import ModelState

EVERYTHING = Dynamic()


class TranslatorState(ModelState):
    """The states of all self-attention layers, and what cross-attention reads of the source.

    Made by `Translator.state`. Keys and values of the source are worked out once; layers that learn
    none share what was encoded. Rows are moved in both; tokens that are dropped, and `reset`, are
    of the target, and the source stays.

    Args:
        layers: of the self-attention, in order.
        sources: what the cross-attention reads.
    """

    def __init__(self, layers: list[LayerState], sources: Sources) -> None:
        super().__init__(layers)
        self.sources = sources

    @classmethod
    def begun(
        cls,
        blocks: Sequence[CrossBlock],
        encoded: Tensor,
        valid: Tensor | None,
        memory: Memory,
    ) -> TranslatorState:
        """Return the state of a decoder before its first token.

        Args:
            blocks: of the decoder.
            encoded: features of the source, [B, S, M].
            valid: bool [B, S], True = a real token of the source; None = all are.
            memory: what each self-attention keeps.

        Raises:
            ShapeError: if the shape of valid does not fit.
            MaskError: if it is not boolean.
            ConfigError: if a layer cannot stream, or not with this memory.
        """
        if valid is not None:
            check_rows("encoded", encoded[..., 0], valid, None)
            encoded = encoded.masked_fill(~valid[..., None], 0.0)
        attentions = [block.attention for block in blocks]
        layers = [
            one.state(memory if one.spec.kernel.weighs_pairs else EVERYTHING) for one in attentions
        ]
        return cls(layers, Sources([Source.of(block.cross, encoded, valid) for block in blocks]))

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept; what layers read together is counted once."""
        return super().nbytes + self.sources.nbytes

    def places(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Return where the next tokens [B, T] stand: int [B or 1, T].

        Raises:
            ShapeError: for another number of rows than the source has.
        """
        if len(tokens) != self.sources.batch:
            raise ShapeError(
                f"{len(tokens)} rows of a target for a source of {self.sources.batch}; give as "
                "many, or select rows of the state."
            )
        return super().places(tokens, valid)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times.

        Raises:
            StateError: if no target was read yet.
            ShapeError: if rows are not numbers of rows there are.
        """
        super().select(rows)
        self.sources.select(rows)
