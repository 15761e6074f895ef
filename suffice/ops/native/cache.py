"""What a layer holds of the past, told to the kernels.

Letters: B batch, G key/value heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory import BufferView, Memory, Quantised, Slot
from suffice.mixing.value_map import ValueMap
from suffice.ops.native import library as of
from suffice.ops.native.matrix import BITS, KINDS


def why_not(memory: Memory, width: int) -> str:
    """Return why the kernels cannot read what a memory keeps of heads of a width, or ""."""
    if not isinstance(memory, Quantised):
        return ""
    odd = width % 2 or min(memory.group, width) % 2
    if memory.bits == 4 and odd:  # noqa: PLR2004
        return f"two 4-bit codes share a byte, which heads of {width} features would cut"
    if memory.sinks > memory.block:
        return f"{memory.sinks} sinks are more than a block of {memory.block}"
    return ""


def why_not_sinks(memory: Memory, window: int | None, sinks: int) -> str:
    """Return why the kernels cannot show first positions beside a window, or "".

    Args:
        memory: of the layer.
        window: last positions that the layer's pattern sees.
        sinks: first positions that it sees beside them.
    """
    kept = memory.window is None or (memory.window >= (window or 0) and memory.sinks >= sinks)
    if not sinks or (kept and not isinstance(memory, Quantised)):
        return ""
    return (
        f"the pattern sees {sinks} first positions, of which {memory!r} may have lost or coded some"
    )


class Holding:
    """The structure of one layer, kept true from one position to the next.

    Args:
        held: what is filled in.
        memory: of the layer.
        window: positions that the layer's pattern sees; None = all.
        width: features of a value's head.
        sinks: first positions that the pattern sees beside its window, see `why_not_sinks`.
    """

    def __init__(
        self, held: of.Held, memory: Memory, window: int | None, width: int, sinks: int = 0
    ) -> None:
        self.held = held
        limits = [size for size in (window, memory.window) if size is not None]
        self.window = min(limits, default=None)
        # without a limit of the memory, or with one beyond the pattern's, sinks are not needed
        needed = memory.window is not None and (window is None or window > memory.window)
        self.sinks = sinks or (memory.sinks if needed else 0)
        self.reach = None if sinks else window
        self.told: dict[str, tuple] = {}
        self.block = 1
        if isinstance(memory, Quantised):
            self.block = held.block = memory.block
            held.group = min(memory.group, width)
            self.coded = BITS[memory.bits]

    def take(self, slot: Slot, queries: int = 1) -> int:
        """Tell of reserved positions and those before them; return the most that a span reads."""
        held, near, blocks = self.held, slot.recent, slot.encoded
        shift = near.first - near.start
        after = near.end + shift  # positions of the text so far
        oldest = 0 if self.window is None else max(after - self.window - (queries - 1), 0)
        self._tell("near", near.tensors)
        held.near.first, held.near.end = max(near.start, oldest - shift), near.end
        held.near.shift = shift
        longest = near.end - held.near.first
        held.coded.first = held.coded.end = held.sinks.first = held.sinks.end = 0
        if blocks is not None:
            longest = max(longest, self._take_coded(blocks, oldest))
        if self.sinks and oldest:
            held.sinks.end = min(self.sinks, oldest)
            if self.reach is not None:  # sinks are no more than what the pattern lets be seen
                held.sinks.first = min(max(after - self.reach, 0), held.sinks.end)
            self._tell_sinks(near, blocks)
            longest = max(longest, held.sinks.end)
        return longest

    def _take_coded(self, blocks: BufferView, oldest: int) -> int:
        coded, block = self.held.coded, self.block
        self._tell("coded", blocks.tensors)
        coded.shift = (blocks.first - blocks.start) * block
        coded.end = blocks.end * block
        coded.first = min(max(blocks.start * block, oldest - coded.shift), coded.end)
        return coded.end - coded.first

    def _tell_sinks(self, near: BufferView, blocks: BufferView | None) -> None:
        """Tell where the beginning of the text lies: apart, or still where all the others do."""
        sinks = self.held.sinks
        sinks.shift = 0
        if blocks is not None:
            self._tell("sinks", blocks.sinks)
        elif near.sinks:
            self._tell("sinks", near.sinks)
        else:
            self._tell("sinks", near.tensors)

    def _tell(self, name: str, parts: tuple[torch.Tensor, ...]) -> None:
        """Tell pointers and strides, if they are others than before."""
        told = self.told.get(name)
        if told is not None and len(told) == len(parts) and all(map(_is, told, parts)):
            return
        self.told[name] = parts
        span = getattr(self.held, name)
        if parts[0].dtype is torch.uint8:
            span.kind = self.coded
            keys, key_ranges, values, value_ranges = parts if len(parts) > 2 else parts * 2  # noqa: PLR2004
            _point(span, "key_range", key_ranges)
            _point(span, "value_range", value_ranges)
        else:
            span.kind = KINDS[parts[0].dtype]
            keys, values = parts[0], parts[-1]
            span.key_step, span.value_step = keys.stride(2), values.stride(2)
        _point(span, "key", keys)
        _point(span, "value", values)


def _is(one: object, other: object) -> bool:
    return one is other


def _point(span: of.Span, name: str, tensor: torch.Tensor) -> None:
    """Tell one tensor [B, G, n, W], whose positions follow each other."""
    if tensor.device.type != "cpu" or tensor.stride(2) != tensor.shape[3] or tensor.stride(3) != 1:
        raise ConfigError(
            f"positions on {tensor.device} with strides {tensor.stride()}: the kernels read those "
            "of the CPU that follow each other."
        )
    setattr(span, f"{name}s", tensor.data_ptr())
    setattr(span, f"{name}_row", tensor.stride(0))
    setattr(span, f"{name}_head", tensor.stride(1))


class Mixing:
    """The structure of one layer, kept true from one position to the next.

    Args:
        mix: what is filled in.
        mixing: of the layer.
        weight: its weights in float32 in one piece.
        bias: likewise, or None.
    """

    def __init__(self, mix: of.Mix, mixing: ValueMap, weight: Tensor, bias: Tensor | None) -> None:
        self.mix, self.mixing = mix, mixing
        mix.weights = weight.data_ptr()
        mix.map = weight[0].numel() if len(weight) > 1 else 0
        if bias is not None:
            mix.bias = bias.data_ptr()
            mix.bias_map = bias[0].numel() if len(bias) > 1 else 0
        self.kept = weight, bias
        self.numbers = torch.empty(0, dtype=torch.int64)

    def place(self, places: list[int]) -> None:
        """Tell where the next position stands in each row, B of them.

        Raises:
            ShapeError: if the mixing does not reach it; nothing has changed then.
        """
        numbers = torch.tensor([self.mixing.reads(place) for place in places])
        self.numbers = numbers.t().contiguous()
        pointers = (row.data_ptr() for row in self.numbers)
        self.mix.first, self.mix.count, self.mix.offset = pointers

    def take(self, raw: BufferView) -> None:
        """Tell of values as they were, the next position's room at the end."""
        mix, values = self.mix, raw.tensors[0]
        mix.raw, mix.at = values.data_ptr(), raw.end - 1
        mix.row, mix.head = values.stride(0), values.stride(1)
