"""What a call of a layer was given, checked: where keys and values come from, what restricts them.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from suffice.layers.arguments import check_inputs, check_restrictions
from suffice.layers.place import positions, runs
from suffice.mixing import RowLayout
from suffice.ops.attend import restriction
from suffice.ops.call import MaskInputs
from suffice.spec import AttentionSpec

PLAIN, ALL_REAL = MaskInputs(), RowLayout()


def given(
    spec: AttentionSpec,
    x: Tensor,
    memory: Tensor | None,
    valid: Tensor | None,
    segments: Tensor | None,
    source_segments: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, MaskInputs, RowLayout]:
    """Check the arguments; return x, where keys and values come from, what restricts them.

    Args:
        spec: of the layer.
        x: [B, T, d_model].
        memory: [B, S, d_source] or None.
        valid: bool [B, S] or None.
        segments: int [B, T] or None.
        source_segments: int [B, S] or None.
        mask: bool [B or 1, H or 1, T, S] or None.

    Raises:
        ShapeError: if shapes do not fit.
        MaskError: if valid or mask is not boolean.
        ConfigError: if the spec cannot honour an argument.
    """
    check_inputs(spec, x, memory)
    check_restrictions(spec, memory, segments, source_segments, mask)
    source = x if memory is None else memory
    if valid is None and segments is None and mask is None:
        return x, source, PLAIN, ALL_REAL
    own = memory is None
    documents = None if segments is None else (segments, segments if own else source_segments)
    where = restriction(
        x.shape[0],
        spec.num_heads,
        x.shape[1],
        source.shape[1],
        valid=valid,
        segments=documents,
        mask=mask,
    )
    if valid is not None:
        source = source.masked_fill(~valid[..., None], 0.0)
    rows = ALL_REAL
    if valid is not None or where.k_segments is not None:
        where, rows = _place(where, own)
    if not spec.mixing.keeps_keys:
        where = MaskInputs(q_valid=where.q_valid)
    return (source if own else x), source, where, rows


def _place(where: MaskInputs, own: bool) -> tuple[MaskInputs, RowLayout]:
    """Give each token its position, and documents the numbers of their runs."""
    at = positions(where.valid, where.k_segments)
    documents = None if where.k_segments is None else runs(where.k_segments)
    if own:
        where = replace(where, q_positions=at, k_positions=at, q_valid=where.valid)
    if own and documents is not None:
        where = replace(where, q_segments=documents, k_segments=documents)
    return where, RowLayout(valid=where.valid, positions=at, documents=documents)
