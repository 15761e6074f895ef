"""The inputs of one call of a layer: checked, and placed at positions.

Positions count the real tokens of a document from its first one, so padding may be left, right or
inside a row, and a packed document stands where it would stand alone.

Letters: B batch, T queries, S keys, M model width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers.positions import UNMASKED, UNPADDED, StepPositions, positions
from suffice.memory import CachedTensors, Dynamic, Memory, Slot
from suffice.memory.quantised import QuantisedStore
from suffice.mixing import RowLayout
from suffice.ops.attend import restriction
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.patterns import Pattern
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import check, check_mask

if TYPE_CHECKING:
    from suffice.utils.protocols import LayerLike

A = TypeVar("A")


class KVView(NamedTuple):
    """Keys and values that a call attends to, with its pattern and masks."""

    cached: tuple[Tensor, ...]  # [B, heads, S, width] each
    masks: MaskInputs
    pattern: Pattern
    pairwise: bool  # whether the masks name single pairs
    step: StepPositions | None = None  # of a call that continues a state
    kind: int = 0  # layers of one kind share what they compute in `step`
    plans: dict[Hashable, AttentionCall] = {}  # noqa: RUF012 - a default, never filled

    def cut(self, queries: int, keys: int) -> KVView:
        """Return the first `keys` keys and values, for the `queries` that end there."""
        masks = self.masks.cut(queries, keys, self.cached[0].shape[2])
        cached = tuple(x[:, :, :keys] for x in self.cached)
        return self._replace(cached=cached, masks=masks, pairwise=not masks.plain)


@dataclass(eq=False)
class SharedKV:
    """Keys and values that one layer writes and later layers whose `shares` names it read."""

    cached: CachedTensors | None = None  # so far, the new ones last
    # a quantised cache that native kernels read instead of `cached`
    codes: tuple[QuantisedStore, Slot] | None = None

    def tensors(self) -> CachedTensors:
        """Return keys and values, dequantised; ConfigError if no layer has put any."""
        if self.codes is not None:
            return self.codes[0].cached()
        if self.cached is None:
            raise ConfigError(
                "the layer whose keys and values are shared has not been called before; call the "
                "layers in order, as the model does, and give both the same SharedKV()."
            )
        return self.cached


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The inputs of a call on whole sequences."""

    x: Tensor  # [B, T, M], gives the queries
    source: Tensor  # [B, S, M'], gives keys and values; 0 at padding
    masks: MaskInputs
    rows: RowLayout  # layout of the source's tokens

    @property
    def positions(self) -> Tensor:
        """Positions of the source's tokens, int [B or 1, S]."""
        if self.rows.positions is not None:
            return self.rows.positions
        return torch.arange(self.source.shape[1], device=self.source.device)[None]

    def once(self, key: Hashable, make: Callable[[], A]) -> A:  # noqa: ARG002 - nothing to share
        """Return `make()`; a step of a state shares the result between layers."""
        return make()

    def read(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...], shared: SharedKV | None
    ) -> Tensor:
        """Return [B, H, T, E] for q [B, H, T, D]; a layer writes to `shared`, or reads it."""
        if layer.recurrence is not None:
            return layer.recur(q, cached, self.x, self.rows)[0]
        view = self.view(layer, cached, shared)
        if shared is not None and layer.spec.shares is None:
            shared.cached = CachedTensors(view.cached, 0)
        return layer.attend(q, view)

    def view(
        self, layer: LayerLike, cached: tuple[Tensor, ...], shared: SharedKV | None = None
    ) -> KVView:
        """Return the keys and values, mixed."""
        if layer.spec.shares is not None:
            cached = shared.tensors().tensors
            check_shared(layer.spec, cached, self.x)
        elif "mixing" in layer.spec.beyond_pairs:
            cached = layer.mixing(cached[0], cached[-1], self.rows)
        return KVView(cached, self.masks, layer.spec.pattern, self.masks.pairwise)

    def recall(self, past: nn.Module, unrotated: tuple[Tensor, ...], local: Tensor) -> Tensor:
        """Return the outputs [B, H, T, E] with what earlier segments add to them."""
        if self.rows.valid is None:
            return past(*unrotated, local)
        order = self.rows.order()
        by_position = (x.transpose(1, 2) for x in (*unrotated, local))
        real_first = (self.rows.gather(x, order).transpose(1, 2) for x in by_position)
        return self.rows.scatter(past(*real_first).transpose(1, 2), order).transpose(1, 2)


def place(
    spec: AttentionSpec,
    x: Tensor,
    source: Tensor | None,
    valid: Tensor | None,
    segments: Tensor | None,
    source_segments: Tensor | None,
    mask: Tensor | None,
) -> Inputs:
    """Return the checked inputs of a call on whole sequences; as `Attention.forward`."""
    _check_tensors(spec, x, source)
    _check_masks(spec, source, segments, source_segments, mask)
    self_attention = source is None
    source = x if source is None else source
    if valid is None and segments is None and mask is None:
        return Inputs(x=x, source=source, masks=UNMASKED, rows=UNPADDED)
    documents = None
    if segments is not None:
        documents = (segments, segments if self_attention else source_segments)
    sizes = (x.shape[0], spec.query_heads, x.shape[1], source.shape[1])
    masks = restriction(*sizes, valid=valid, segments=documents, mask=mask)
    if valid is not None:
        source = source.masked_fill(~valid[..., None], 0.0)
        x = source if self_attention else x
    rows = UNPADDED
    if valid is not None or masks.k_segments is not None:
        masks, rows = _place_tokens(masks, self_attention)
    if not spec.mixing.keeps_keys:
        masks = MaskInputs(q_valid=masks.q_valid)
    return Inputs(x=x, source=source, masks=masks, rows=rows)


def _place_tokens(masks: MaskInputs, self_attention: bool) -> tuple[MaskInputs, RowLayout]:
    at = positions(masks.valid, masks.k_segments)
    documents = None if masks.k_segments is None else runs(masks.k_segments)
    if self_attention:
        masks = replace(masks, q_positions=at, k_positions=at, q_valid=masks.valid)
        if documents is not None:
            masks = replace(masks, q_segments=documents, k_segments=documents)
    return masks, RowLayout(valid=masks.valid, positions=at, documents=documents)


def runs(segments: Tensor) -> Tensor:
    """Number the runs of equal segments [B, S], each one document: 7 7 3 3 7 gives 0 0 1 1 2."""
    changes = segments[:, 1:] != segments[:, :-1]
    return torch.nn.functional.pad(changes.long().cumsum(dim=1), (1, 0))


def _check_tensors(spec: AttentionSpec, x: Tensor, source: Tensor | None) -> None:
    check("x", x, (None, None, spec.d_model), hint="Give [B, T, d_model], batch first.")
    if source is None:
        if spec.widths.d_source != spec.d_model:
            raise ShapeError(
                f"this layer reads a source {spec.widths.d_source} wide; call layer(x, source)."
            )
        return
    check("source", source, (x.shape[0], None, spec.widths.d_source))
    if reasons := spec.refuses_source():
        raise ConfigError(f"cross-attention has two sequences, but {' '.join(reasons)}")


def _check_masks(
    spec: AttentionSpec,
    source: Tensor | None,
    segments: Tensor | None,
    source_segments: Tensor | None,
    mask: Tensor | None,
) -> None:
    if (source_segments is None) != (segments is None or source is None):
        raise ConfigError(
            "segments and source_segments go together with source: give both, one for the "
            "queries and one for the source; without source give segments alone."
        )
    if mask is not None and "mixing" in spec.beyond_pairs:
        raise ConfigError(
            f"{type(spec.mixing).__name__} mixes values before any mask applies, so a mask "
            "would not keep what it hides; use a pattern, valid= or segments=."
        )
    if mask is not None and spec.lane != "pairs":
        raise ConfigError(
            f"{type(spec.kernel).__name__} sums over keys without looking at pairs, so a mask "
            "of pairs cannot apply; use a causal pattern, valid= or segments=, or Softmax."
        )
    if "past" in spec.beyond_pairs and (segments is not None or mask is not None):
        raise ConfigError(
            f"{type(spec.past).__name__} sums keys of earlier segments, so neither documents nor a "
            "mask could be kept apart in its sums; give one document per row, and valid=."
        )
    if segments is not None and not spec.mixing.keeps_keys:
        raise ConfigError(
            f"{type(spec.mixing).__name__} sums the keys of a whole row, so documents would "
            "meet in its keys; give one document per row."
        )
    if segments is not None and spec.encoder.sums_tokens:
        raise ConfigError(
            f"{type(spec.encoder).__name__} sums gates along a whole row, so documents would meet "
            "in its sums; give one document per row."
        )


def check_step(
    spec: AttentionSpec,
    x: Tensor,
    valid: Tensor | None,
    **refused: Tensor | None,
) -> None:
    """Raise for arguments that a call with a state does not take; all of `refused` must be None."""
    check("x", x, (None, None, spec.d_model), hint="Give [B, T, d_model], batch first.")
    if valid is not None:
        check_mask("valid", valid)
        check("valid", valid, tuple(x.shape[:2]), hint="One entry for each new token.")
    names = [name for name, value in refused.items() if value is not None]
    if names:
        raise ConfigError(
            f"{' and '.join(names)} with state: a state continues one document a row; leave "
            f"{'it' if len(names) == 1 else 'them'} out, and give each document its state."
        )


def check_shared(spec: AttentionSpec, cached: tuple[Tensor, ...], x: Tensor) -> None:
    """Raise unless shared keys and values are of a layer like this one and of the same rows."""
    keys = (x.shape[0], spec.key_heads, x.shape[1], spec.head_width)
    values = (x.shape[0], spec.kv_heads, x.shape[1], spec.value_width)
    check("the shared keys", cached[0], keys)
    check("the shared values", cached[-1], keys if len(cached) == 1 else values)


def check_memory(spec: AttentionSpec, memory: Memory) -> None:
    """Raise for layers that cannot stream, and memories that would forget what a layer reads."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"memory={memory!r} is not a KV cache; give, for example, Dynamic().")
    if not spec.pattern.causal:
        raise ConfigError(
            f"pattern={spec.pattern!r} looks ahead, so no token is final before the last one is "
            "read; stream with a causal pattern, such as Causal()."
        )
    if spec.lane != "pairs" and memory != Dynamic():
        raise ConfigError(
            f"{type(spec.kernel).__name__} keeps sums of one size, so memory={memory!r} has "
            "nothing to keep; leave it out."
        )
    if reason := spec.encoder.refuses_memory(memory):
        raise ConfigError(f"memory={memory!r}: encoder={spec.encoder!r} {reason}.")
    if memory.window is not None and "mixing" in spec.beyond_pairs and spec.mixing.history is None:
        raise ConfigError(
            f"{type(spec.mixing).__name__} reads every earlier value at every position, so "
            f"{memory!r} would forget what it needs; use Dynamic(), or a banded, toeplitz or block "
            "alignment."
        )


def check_rows(
    name: str, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None
) -> None:
    """Raise unless tokens are a batch [B, T], and valid and segments have its shape."""
    check(name, tokens, (None, None))
    if valid is not None:
        check_mask("valid", valid)
    for label, marks in (("valid", valid), ("segments", segments)):
        if marks is not None:
            check(label, marks, tuple(tokens.shape), hint=f"One entry for each of {name}.")
