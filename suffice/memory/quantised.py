"""A KV cache quantised to 8 or 4 bits per number, keys and values each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory.base import CachedTensors, Memory, Slot, Store
from suffice.memory.dynamic import Dynamic, GrowingStore
from suffice.utils.records import derived

BITS = (4, 8)
RANGE_BYTES = 8  # a minimum and a step in float32


@dataclass(frozen=True)
class Quantised(Memory):
    """Keeps what another memory keeps in 8 or 4 bits per number; the latest positions are exact.

    Blocks of positions that are old enough are quantised once: the first tensor of a layer (keys,
    or keys and values in one) with a range per channel of a block, the others with a range per
    position and group of channels. A range is its minimum and its step, float32; two codes of 4
    bits share a byte. Native kernels read the codes in place when a few queries attend; otherwise
    they are dequantised first, which saves memory, not time.

    Args:
        inner: cache policy that decides which positions are kept.
        bits: bits per code, 8 or 4.
        value_bits: bits per code of the values; None takes `bits`. Values that are the keys, as of
            latent attention, have the bits of the keys.
        block: positions quantised together, even.
        recent: latest positions that are never quantised.
        group: channels of a position that share a range.

    Raises:
        ConfigError: for other bits, sizes below 1, an odd block, or an inner memory that rounds.

    Cost: bits / 8 bytes a number of keys, value_bits / 8 of values; 8 / block for keys and
        8 / group for values in ranges.
    Source: Liu et al. 2024, arXiv:2402.02750, section 3 (per-channel keys, per-token values, a
        window in full precision). Differs: 8 and 4 bits, ranges in float32.
    """

    lossy = True

    inner: Memory = Dynamic()
    bits: int = 8
    block: int = 64
    recent: int = 64
    group: int = 64
    value_bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Memory) or self.inner.lossy:
            raise ConfigError(
                f"Quantised(inner={self.inner!r}): give a memory that keeps numbers as they are, "
                "such as Dynamic() or Rolling(256)."
            )
        for name, bits in (("bits", self.bits), ("value_bits", self.value_bits)):
            if bits not in BITS and (name, bits) != ("value_bits", None):
                raise ConfigError(f"Quantised({name}={bits}): give 8 or 4.")
        if self.block < 2 or self.block % 2 or self.recent < 0 or self.group < 1:  # noqa: PLR2004
            raise ConfigError(
                f"{self!r}: give an even block of at least 2, recent of at least 0 and a group of "
                "at least 1."
            )

    window = derived(lambda self: self.inner.window)
    sinks = derived(lambda self: self.inner.sinks)
    spare = derived(lambda self: self.inner.spare)
    capacity = derived(lambda self: self.inner.capacity)
    grain = derived(lambda self: 2 * self.block + self.recent)

    def bits_of(self, tensor: int) -> int:
        """Return the bits per code of a layer's tensor: 0 is the keys, others are values."""
        return self.bits if tensor == 0 or self.value_bits is None else self.value_bits

    def widened(self, window: int) -> Quantised:
        """Return it with the inner memory widened."""
        return replace(self, inner=self.inner.widened(window))

    def nbytes_of(self, widths: Sequence[tuple[int, int]], tokens: int, itemsize: int) -> int:
        """Return the bytes of codes, of their ranges and of the positions not quantised yet."""
        encoded = max(tokens - self.recent, 0) // self.block * self.block
        blocks = self.inner.entries(encoded, self.block)
        total = 0
        for i, (heads, width) in enumerate(widths):
            group = min(self.group, width)
            groups = ceil(width / group)
            numbers = self.block * (width if i == 0 else groups * group)
            ranges = width if i == 0 else self.block * groups
            block_bytes = numbers * self.bits_of(i) // 8 + RANGE_BYTES * ranges
            total += heads * (blocks * block_bytes + (tokens - encoded) * width * itemsize)
        return total

    def build(self, unit: int = 1) -> Store:  # noqa: ARG002 - it is never the inner memory
        """Return an empty store."""
        return QuantisedStore(self)

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return small blocks, so that short tests meet them."""
        halves = cls(bits=4, block=2, recent=0), cls(value_bits=4, block=2, recent=0)
        return (cls(block=2, recent=1, group=3), *halves)


class QuantisedStore(Store):
    """Quantised blocks in a store of the inner memory, then the latest positions unquantised."""

    def __init__(self, memory: Quantised) -> None:
        super().__init__()
        self.memory = memory
        self.blocks = memory.inner.build(memory.block)
        self.tail = GrowingStore(memory.block)

    def append(self, *tensors: Tensor) -> CachedTensors:
        """Append positions; return earlier ones dequantised and the new ones unchanged."""
        self.check_room(tensors[0].shape[2])
        self.encode_tail()  # what native steps have left
        self.tail.append(*tensors)
        cached = self.cached()
        self.length += tensors[0].shape[2]
        self.encode_tail()
        return cached

    def append_encoded(self, *tensors: Tensor) -> Slot:
        """Append positions like `append`, and return the location of the codes and the tail."""
        self.check_room(tensors[0].shape[2])
        self.encode_tail()
        self.tail.append(*tensors)
        return self._slot(tensors[0].shape[2])

    def reserve(self, positions: int = 1) -> Slot:
        """Append positions that the caller writes."""
        self.check_room(positions)
        self.encode_tail()  # the positions reserved last are written by now
        self.tail.reserve(positions)
        return self._slot(positions)

    def _slot(self, positions: int) -> Slot:
        self.length += positions
        encoded = self.blocks.view() if self.blocks.length else None
        return Slot(self.tail.view()._replace(first=self.length - self.tail.length), encoded)

    def cached(self) -> CachedTensors:
        """Return all that is kept, dequantised."""
        tail = self.tail.latest(self.tail.length)
        if not self.blocks.length:
            return CachedTensors(tail, 0)
        nothing = tuple(x[:, :, :0] for x in tail)
        blocks = self.blocks.append(*self._encode(nothing))
        decoded = (
            self._decode(*blocks.tensors[2 * i : 2 * i + 2], like=x, tensor=i)
            for i, x in enumerate(tail)
        )
        joined = tuple(torch.cat(pair, dim=2) for pair in zip(decoded, tail, strict=True))
        block = self.memory.block
        return CachedTensors(joined, blocks.first * block, blocks.sinks * block)

    def check_room(self, positions: int) -> None:
        """Check that positions fit the inner memory's capacity."""
        self._check_capacity(positions, self.memory.capacity, self.memory.inner)

    def encode_tail(self) -> None:
        """Move whole blocks that are old enough from the tail to the quantised blocks."""
        block, length = self.memory.block, self.tail.length
        old = max(length - self.memory.recent, 0) // block * block
        if old:
            tail, self.tail = self.tail.latest(length), GrowingStore(block)
            self.blocks.append(*self._encode(tuple(x[:, :, :old] for x in tail)))
            self.tail.append(*(x[:, :, old:] for x in tail))

    def _encode(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """Return codes and ranges [B, G, blocks, *] of each tensor [B, G, n, W] of whole blocks."""
        encoded = []
        for i, tensor in enumerate(tensors):
            bits = self.memory.bits_of(i)
            x = tensor.float().unflatten(2, (-1, self.memory.block))
            axis = -2
            if i > 0:  # a range per position and group of channels
                x, axis = self._in_groups(x), -1
            low, high = x.amin(dim=axis, keepdim=True), x.amax(dim=axis, keepdim=True)
            step = (high - low) / (2**bits - 1)
            codes = ((x - low) / step.masked_fill(step == 0.0, 1.0)).round_()
            codes = _pack(codes.to(torch.uint8).flatten(3), bits)
            encoded += [codes, torch.stack([low, step], dim=3).flatten(3)]
        return encoded

    def _in_groups(self, x: Tensor) -> Tensor:
        group = min(self.memory.group, x.shape[-1])
        if missing := -x.shape[-1] % group:
            x = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], missing)], dim=-1)
        return x.unflatten(-1, (-1, group))

    def _decode(self, codes: Tensor, ranges: Tensor, *, like: Tensor, tensor: int) -> Tensor:
        """Return the numbers of some blocks, [B, G, n, W] in the width and dtype of `like`."""
        width, block = like.shape[3], self.memory.block
        codes = _unpack(codes, self.memory.bits_of(tensor)).float()
        low, step = ranges.unflatten(3, (2, -1)).unbind(3)
        if tensor > 0:
            group = min(self.memory.group, width)
            groups = ceil(width / group)
            codes, shape = codes.unflatten(3, (block, groups, group)), (block, groups, 1)
        else:
            codes, shape = codes.unflatten(3, (block, width)), (1, width)
        numbers = codes * step.unflatten(3, shape) + low.unflatten(3, shape)
        numbers = numbers.flatten(4)[..., :width]
        return numbers.flatten(2, 3).to(like.dtype)

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions, dequantised."""
        return tuple(x[:, :, x.shape[2] - positions :] for x in self.cached().tensors)

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions are not quantised yet."""
        return 0 <= positions <= self.tail.length

    def _drop_limit(self) -> str:
        return f", of which the last {self.tail.length} are not quantised"

    def _drop(self, positions: int) -> None:
        self.tail.drop_last(positions)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.blocks.select(rows)
        self.tail.select(rows)

    def reset(self) -> None:
        """Forget everything."""
        self.blocks.reset()
        self.tail.reset()
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of codes, ranges and the tail, room to grow included."""
        return self.blocks.nbytes + self.tail.nbytes


def _pack(codes: Tensor, bits: int) -> Tensor:
    if bits == 4:  # noqa: PLR2004
        return codes[..., ::2] | (codes[..., 1::2] << 4)
    return codes


def _unpack(codes: Tensor, bits: int) -> Tensor:
    if bits == 4:  # noqa: PLR2004
        return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return codes
