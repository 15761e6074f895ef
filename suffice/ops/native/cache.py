"""Descriptors of a layer's KV cache, and of the mixing of its values, for the C kernels.

Letters: B batch, G key/value heads.
"""

from __future__ import annotations

from operator import is_

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory import BufferView, Memory, Quantised, Slot
from suffice.mixing.value_map import ValueMap
from suffice.ops.native import library as native
from suffice.ops.native.matrix import BITS, KINDS

WIDEST_CODED = 512  # features of a head, whose sums of codes fit into 32 bits


def why_not(memory: Memory, width: int, value_width: int) -> str:
    """Return why the kernels cannot read what a memory keeps of heads of two widths, or ""."""
    if type(memory) is not Quantised:
        return ""
    if value_width != width or width > WIDEST_CODED:
        return (
            f"codes are read of heads of one width of at most {WIDEST_CODED}, not keys of {width} "
            f"and values of {value_width} features"
        )
    odd = width % 2 or min(memory.group, width) % 2
    if 4 in (memory.bits, memory.value_bits) and odd:  # noqa: PLR2004
        return f"two 4-bit codes share a byte, which heads of {width} features would cut"
    if memory.sinks > memory.block:
        return f"{memory.sinks} sinks are more than a block of {memory.block}"
    return ""


def why_not_sinks(memory: Memory, window: int | None, sinks: int) -> str:
    """Return why the kernels cannot read `sinks` first positions with a window, or ""."""
    complete = memory.window is None or (memory.window >= (window or 0) and memory.sinks >= sinks)
    if not sinks or (complete and type(memory) is not Quantised):
        return ""
    return (
        f"the pattern sees {sinks} first positions, of which {memory!r} may have lost or coded some"
    )


class CacheDescriptor:
    """The structure of one layer's cache, updated from one position to the next."""

    def __init__(
        self,
        kv_cache: native.KVCache,
        memory: Memory,
        window: int | None,
        width: int,
        sinks: int = 0,
    ) -> None:
        self.kv_cache, self.near = kv_cache, kv_cache.near
        limits = [size for size in (window, memory.window) if size is not None]
        self.window = min(limits, default=None)
        # a memory that keeps all that the pattern sees needs no sinks
        needed = memory.window is not None and (window is None or window > memory.window)
        self.sinks = sinks or (memory.sinks if needed else 0)
        self.reach = None if sinks else window
        self.tensors: dict[str, tuple[Tensor, ...]] = {}  # that each span points at
        self.block = 1
        self.coded: tuple[int, ...] = ()  # kinds of the codes of keys and of values
        if type(memory) is Quantised:
            self.block = kv_cache.block = memory.block
            kv_cache.group = min(memory.group, width)
            self.coded = BITS[memory.bits_of(0)], BITS[memory.bits_of(1)]

    def update(self, slot: Slot, queries: int = 1) -> int:
        """Describe reserved positions and those before them; return the most a span reads."""
        recent, blocks, near = slot.recent, slot.encoded, self.near
        shift = recent.first - recent.start
        after = recent.end + shift  # positions of the text so far
        oldest = 0 if self.window is None else max(after - self.window - (queries - 1), 0)
        self._point("near", recent.tensors)
        first = near.first = max(recent.start, oldest - shift)
        near.end, near.shift = recent.end, shift
        longest = recent.end - first
        if self.coded:
            coded = self.kv_cache.coded
            coded.first = coded.end = 0
            if blocks is not None:
                longest = max(longest, self._update_coded(blocks, oldest))
        if self.sinks:
            longest = max(longest, self._update_sinks(recent, blocks, oldest, after))
        return longest

    def _update_sinks(
        self, recent: BufferView, blocks: BufferView | None, oldest: int, after: int
    ) -> int:
        sinks = self.kv_cache.sinks
        sinks.first = sinks.end = sinks.shift = 0
        if oldest:
            sinks.end = min(self.sinks, oldest)
            if self.reach is not None:  # sinks are no more than what the pattern lets be seen
                sinks.first = min(max(after - self.reach, 0), sinks.end)
            apart = recent.sinks if blocks is None else blocks.sinks
            self._point("sinks", apart or recent.tensors)  # apart, or still where all others are
        return sinks.end

    def _update_coded(self, blocks: BufferView, oldest: int) -> int:
        coded, block = self.kv_cache.coded, self.block
        self._point("coded", blocks.tensors)
        coded.shift = (blocks.first - blocks.start) * block
        coded.end = blocks.end * block
        coded.first = min(max(blocks.start * block, oldest - coded.shift), coded.end)
        return coded.end - coded.first

    def _point(self, name: str, parts: tuple[Tensor, ...]) -> None:
        before = self.tensors.get(name, ())
        if before is parts or (len(before) == len(parts) and all(map(is_, before, parts))):
            return
        self.tensors[name] = parts
        span = getattr(self.kv_cache, name)
        if parts[0].dtype is torch.uint8:
            span.kind, span.value_kind = self.coded
            keys, key_ranges, values, value_ranges = parts if len(parts) > 2 else parts * 2
            _point_at(span, "key_range", key_ranges)
            _point_at(span, "value_range", value_ranges)
        else:
            span.kind = KINDS[parts[0].dtype]
            keys, values = parts[0], parts[-1]
            span.key_step, span.value_step = keys.stride(2), values.stride(2)
        _point_at(span, "key", keys)
        _point_at(span, "value", values)


def _point_at(span: native.Span, name: str, tensor: Tensor) -> None:
    """Point at one tensor [B, G, n, W], whose positions follow each other."""
    if tensor.device.type != "cpu" or tensor.stride(2) != tensor.shape[3] or tensor.stride(3) != 1:
        raise ConfigError(
            f"positions on {tensor.device} with strides {tensor.stride()}: the kernels read those "
            "of the CPU that follow each other."
        )
    setattr(span, f"{name}s", tensor.data_ptr())
    setattr(span, f"{name}_row", tensor.stride(0))
    setattr(span, f"{name}_head", tensor.stride(1))


class MixingDescriptor:
    """The structure of one layer's mixing with float32 weights, updated at each position."""

    def __init__(
        self, mix: native.Mixing, mixing: ValueMap, weight: Tensor, bias: Tensor | None
    ) -> None:
        self.mix, self.mixing = mix, mixing
        mix.weights = weight.data_ptr()
        mix.map = weight[0].numel() if len(weight) > 1 else 0
        if bias is not None:
            mix.bias = bias.data_ptr()
            mix.bias_map = bias[0].numel() if len(bias) > 1 else 0
        self.alive = weight, bias
        self.rows = torch.empty(0, dtype=torch.int64)

    def set_positions(self, positions: list[int]) -> None:
        """Set the next position of each row, B of them."""
        rows = torch.tensor([self.mixing.span(position) for position in positions])
        self.rows = rows.t().contiguous()
        self.mix.first, self.mix.count, self.mix.offset = (row.data_ptr() for row in self.rows)

    def update(self, unmixed: BufferView) -> None:
        """Describe unmixed values, the next position at the end."""
        mix, values = self.mix, unmixed.tensors[0]
        mix.raw, mix.at = values.data_ptr(), unmixed.end - 1
        mix.row, mix.head = values.stride(0), values.stride(1)
