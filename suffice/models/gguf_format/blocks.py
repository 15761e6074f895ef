"""How GGUF files store numbers: in full, or in blocks of codes that share scales.

Letters: R rows of a matrix, C blocks of a row, K numbers of a row.

Source: the reference quantisation of the ggml project; Q8_0, Q4_0 and Q5_0 are (code - zero) x
scale in groups of 32, the kinds "_K" have blocks of 256 with scales of their own in few bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
GROUP = 32  # numbers that share a scale in Q8_0, Q4_0 and Q5_0


@dataclass(frozen=True, kw_only=True)
class BlockKind:
    """A kind of block.

    Args:
        name: name in llama.cpp.
        number: number of the kind in files.
        size: numbers in a block.
        bytes_: bytes of a block.
        decode: function from bytes [R, C, bytes_] to float32 [R, C, size].
        zero: code of zero, for kinds with one scale for each group of 32; None for others.
    """

    name: str
    number: int
    size: int
    bytes_: int
    decode: Callable[[Bytes], Floats]
    zero: int | None = None

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` numbers, a multiple of `size`."""
        return count // self.size * self.bytes_


def decode(kind: BlockKind, blocks: Bytes) -> Floats:
    """Return the numbers of rows: float32 [R, K] of bytes [R, bytes of a row]."""
    rows = len(blocks)
    with np.errstate(invalid="ignore", over="ignore"):  # whoever reads refuses what is not finite
        return kind.decode(blocks.reshape(rows, -1, kind.bytes_)).reshape(rows, -1)


def codes_of(kind: BlockKind, blocks: Bytes) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the codes [R, K] and scales [R, C] of a kind that has `zero`."""
    rows = len(blocks)
    scales, codes = _CODES[kind.name](blocks.reshape(rows, -1, kind.bytes_))
    return codes.reshape(rows, -1), scales.reshape(rows, -1)


def encode(kind: BlockKind, codes: NDArray[np.uint8], scales: NDArray[np.float16]) -> Bytes:
    """Return the bytes of codes [R, K] and scales [R, C] in Q8_0 or Q4_0."""
    rows, groups = scales.shape
    parts = codes.reshape(rows, groups, GROUP)
    eights = kind is KINDS["Q8_0"]  # from 128 + n to the two's complement of n
    packed = parts ^ 128 if eights else parts[..., :16] | (parts[..., 16:] << 4)
    heads = np.ascontiguousarray(scales, "<f2")[..., None].view(np.uint8)
    return np.concatenate([heads, packed], axis=-1).reshape(rows, -1)


def plain(kind: BlockKind, numbers: Floats) -> Bytes:
    """Return the bytes of numbers [R, K] in F32 or F16."""
    stored = np.ascontiguousarray(numbers, "<f4" if kind is KINDS["F32"] else "<f2")
    return stored.view(np.uint8).reshape(len(numbers), -1)


def _halves(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """Return the half-precision numbers [R, C, 1] at a place of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low halves of some bytes, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Return bit n of four bytes [R, C, 4] for n of 0 to 31, as 16 or 0."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q8_0(blocks: Bytes) -> tuple[NDArray[np.float16], Bytes]:
    return _halves(blocks, 0), blocks[..., 2:] ^ 128


def _q4_0(blocks: Bytes) -> tuple[NDArray[np.float16], Bytes]:
    return _halves(blocks, 0), _nibbles(blocks[..., 2:])


def _q5_0(blocks: Bytes) -> tuple[NDArray[np.float16], Bytes]:
    """Codes of five bits, moved by 112 so that their zero is that of eight bits."""
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _halves(blocks, 0), codes + np.uint8(112)


_CODES = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q5_0": _q5_0}


def _scaled(name: str, zero: int) -> Callable[[Bytes], Floats]:
    def numbers(blocks: Bytes) -> Floats:
        scales, codes = _CODES[name](blocks)
        return (codes.astype(np.float32) - zero) * scales.astype(np.float32)

    return numbers


def _q4_1(blocks: Bytes) -> Floats:
    scale, least = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return _nibbles(blocks[..., 4:]) * scale + least


def _q5_1(blocks: Bytes) -> Floats:
    scale, least = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return (_nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])) * scale + least


def _pairs(blocks: Bytes, shifts: tuple[int, ...]) -> Bytes:
    """Return the two bits at each shift of bytes [..., n]: [..., shifts, n]."""
    return np.stack([(blocks >> shift) & 3 for shift in shifts], axis=-2)


def _sixes(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the scales and the minima [..., 8], six bits each, of 12 bytes."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = [first & 63, (third & 15) | (first >> 6 << 4)]
    minima = [second & 63, (third >> 4) | (second >> 6 << 4)]
    return np.concatenate(scales, axis=-1), np.concatenate(minima, axis=-1)


def _of_eight(blocks: Bytes, codes: Bytes) -> Floats:
    """Return codes [R, C, 8, 32] with the scales and minima of Q4_K and Q5_K."""
    scale, least = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    scales, minima = _sixes(blocks[..., 4:16])
    numbers = codes * (scale * scales)[..., None] - (least * minima)[..., None]
    return numbers.reshape(*blocks.shape[:2], -1)


def _q4_k(blocks: Bytes) -> Floats:
    packed = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    return _of_eight(blocks, _nibbles(packed).reshape(*blocks.shape[:2], 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    packed = blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)
    low = _nibbles(packed).reshape(*blocks.shape[:2], 8, 32)
    high = np.stack([(blocks[..., 16:48] >> bit) & 1 for bit in range(8)], axis=-2)
    return _of_eight(blocks, low | (high << 4))


def _q6_k(blocks: Bytes) -> Floats:
    shape = blocks.shape[:2]
    low = blocks[..., :128].reshape(*shape, 2, 2, 32)
    high = _pairs(blocks[..., 128:192].reshape(*shape, 2, 32), (0, 2, 4, 6))
    codes = np.concatenate([low & 15, low >> 4], axis=-2) | (high << 4)  # [R, C, 2, 4, 32]
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(*shape, 2, 4, 2, 1)
    signed = codes.reshape(*shape, 2, 4, 2, 16).astype(np.float32) - 32
    factor = _halves(blocks, 208).astype(np.float32)
    return (signed * scales).reshape(*shape, -1) * factor


def _q2_k(blocks: Bytes) -> Floats:
    shape = blocks.shape[:2]
    codes = _pairs(blocks[..., 16:80].reshape(*shape, 2, 32), (0, 2, 4, 6))  # [R, C, 2, 4, 32]
    scale, least = (_halves(blocks, at).astype(np.float32) for at in (80, 82))
    scales, minima = scale * (blocks[..., :16] & 15), least * (blocks[..., :16] >> 4)
    return (codes.reshape(*shape, 16, 16) * scales[..., None] - minima[..., None]).reshape(
        *shape, -1
    )


def _q3_k(blocks: Bytes) -> Floats:
    shape = blocks.shape[:2]
    low = _pairs(blocks[..., 32:96].reshape(*shape, 2, 32), (0, 2, 4, 6)).reshape(*shape, 8, 32)
    high = np.stack([(blocks[..., :32] >> bit) & 1 for bit in range(8)], axis=-2)
    signed = (low | (high << 2)).astype(np.float32) - 4
    packed = blocks[..., 96:108]
    halves = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    upper = _pairs(packed[..., 8:], (0, 2, 4, 6)).reshape(*shape, 16)
    scales = (halves | (upper << 4)).astype(np.float32) - 32
    factor = _halves(blocks, 108).astype(np.float32)
    return (signed.reshape(*shape, 16, 16) * (factor * scales)[..., None]).reshape(*shape, -1)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    halves = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (halves << 16).view(np.float32)


KINDS = {
    kind.name: kind
    for kind in (
        BlockKind(name="F32", number=0, size=1, bytes_=4, decode=_f32),
        BlockKind(name="F16", number=1, size=1, bytes_=2, decode=_f16),
        BlockKind(name="BF16", number=30, size=1, bytes_=2, decode=_bf16),
        BlockKind(name="Q8_0", number=8, size=32, bytes_=34, decode=_scaled("Q8_0", 128), zero=128),
        BlockKind(name="Q4_0", number=2, size=32, bytes_=18, decode=_scaled("Q4_0", 8), zero=8),
        BlockKind(name="Q5_0", number=6, size=32, bytes_=22, decode=_scaled("Q5_0", 128), zero=128),
        BlockKind(name="Q4_1", number=3, size=32, bytes_=20, decode=_q4_1),
        BlockKind(name="Q5_1", number=7, size=32, bytes_=24, decode=_q5_1),
        BlockKind(name="Q2_K", number=10, size=256, bytes_=84, decode=_q2_k),
        BlockKind(name="Q3_K", number=11, size=256, bytes_=110, decode=_q3_k),
        BlockKind(name="Q4_K", number=12, size=256, bytes_=144, decode=_q4_k),
        BlockKind(name="Q5_K", number=13, size=256, bytes_=176, decode=_q5_k),
        BlockKind(name="Q6_K", number=14, size=256, bytes_=210, decode=_q6_k),
    )
}
"""The kinds that are read, by name."""
UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of other kinds in llama.cpp, by number."""
