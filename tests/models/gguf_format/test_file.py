"""GGUF files: what is written is read, every size is checked, blocks are decoded as specified."""

from __future__ import annotations

import struct
from contextlib import nullcontext

import numpy as np
import pytest

from suffice.errors import CheckpointError
from suffice.models.gguf_format import (
    KINDS,
    Stored,
    codes_of,
    decode,
    encode,
    open_gguf,
    plain,
    write_gguf,
)

METADATA = {
    "general.architecture": "llama",
    "flag": True,
    "whole": 7,
    "negative": -3,
    "real": 0.5,
    "words": ["a", "é"],
    "numbers": [1, 2, 3],
    "reals": [0.5, -1.0],
    "none": [],
}
PACKED = ("Q8_0", "Q4_0", "Q5_0")


def random_blocks(kind, rows=3, columns=512, seed=0):
    draws = np.random.default_rng(seed)
    return draws.integers(0, 256, (rows, columns // kind.size * kind.bytes_), dtype=np.uint8)


def written(path, rows=None):
    rows = np.arange(64, dtype=np.float32).reshape(2, 32) if rows is None else rows
    one = Stored(shape=rows.shape, kind=KINDS["F32"], blocks=plain(KINDS["F32"], rows))
    write_gguf(path, METADATA, [("a", one), ("b", one)])
    return path


def test_what_is_written_is_read(tmp_path):
    file = open_gguf(written(tmp_path / "x.gguf"))
    assert file.metadata == METADATA
    assert list(file.tensors) == ["a", "b"]
    assert file.tensors["b"].shape == (2, 32)
    expected = np.arange(64, dtype=np.float32).reshape(2, 32)
    assert np.array_equal(decode(KINDS["F32"], file.blocks("b")), expected)


ODD = {"x": (3, 5), "y": (2, 3, 1, 7), "z": (1,)}


def odd(path):
    """Write tensors of one to four axes whose bytes are no multiple of the alignment."""
    numbers = {
        name: np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
        for name, shape in ODD.items()
    }
    kind = KINDS["F32"]
    tensors = [
        (name, Stored(shape=x.shape, kind=kind, blocks=plain(kind, x.reshape(-1, x.shape[-1]))))
        for name, x in numbers.items()
    ]
    write_gguf(path, {}, tensors)
    return numbers


def test_tensors_of_any_axes_and_bytes_are_read(tmp_path):
    path = tmp_path / "x.gguf"
    numbers = odd(path)
    file = open_gguf(path)
    for name, x in numbers.items():
        assert file.tensors[name].shape == x.shape
        assert np.array_equal(decode(KINDS["F32"], file.blocks(name)).reshape(x.shape), x)
    path.write_bytes(path.read_bytes()[: -32 + 4])  # the last tensor ends with the file
    assert decode(KINDS["F32"], open_gguf(path).blocks("z")) == numbers["z"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="'z' does not lie within"):
        open_gguf(path)


def test_files_are_read_as_by_the_package_of_llama_cpp(tmp_path):
    gguf = pytest.importorskip("gguf", reason="pip install gguf to compare with its reader")
    path = tmp_path / "x.gguf"
    numbers = odd(path)
    theirs = {one.name: one.data for one in gguf.GGUFReader(path).tensors}
    for name, x in numbers.items():
        assert np.array_equal(theirs[name].reshape(x.shape), x)


@pytest.mark.parametrize("alignment", [8, 64])
def test_a_file_may_name_another_alignment(tmp_path, alignment):
    gguf = pytest.importorskip("gguf", reason="pip install gguf to write with its writer")
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    rows = {name: np.arange(5, dtype=np.float32)[None] + n for n, name in enumerate("abc")}
    for name, row in rows.items():
        writer.add_tensor(name, row)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(path)
    for name, row in rows.items():
        assert np.array_equal(decode(KINDS["F32"], file.blocks(name)), row)


def announced(tensors=0, entries=0, rest=b""):
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + rest


def text(count, letter=b"a"):
    return struct.pack("<Q", count) + letter * count


def test_as_much_as_is_allowed_is_read_and_one_more_refused(tmp_path):
    """Names of 1,024 bytes, 4 axes, 2^20 values of arrays; one more of each is damage."""
    path = tmp_path / "x.gguf"

    def tensor(axes):
        sizes = struct.pack(f"<I{axes}Q", axes, *[1] * axes)
        content = announced(1, rest=text(1) + sizes + struct.pack("<IQ", 0, 0))
        return content + bytes(-len(content) % 32 + 4)

    def array(count):
        items = struct.pack("<IIQ", 9, 0, 1) + b"b"  # one value in an array before
        items += text(1, b"c") + struct.pack("<IIQ", 9, 0, count) + bytes(count)
        return announced(entries=2, rest=text(1) + items)

    def name(count):
        return announced(entries=1, rest=text(count) + struct.pack("<IB", 0, 7))

    for make, most in ((tensor, 4), (array, 2**20 - 1), (name, 1024)):
        path.write_bytes(make(most))
        open_gguf(path)
        path.write_bytes(make(most + 1))
        with pytest.raises(CheckpointError, match="is damaged"):
            open_gguf(path)
    path.write_bytes(tensor(0))
    with pytest.raises(CheckpointError, match="has 0 axes"):
        open_gguf(path)


def test_every_cut_of_a_file_is_refused(tmp_path):
    whole = written(tmp_path / "x.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            open_gguf(path)


@pytest.mark.parametrize(
    ("place", "form", "value"),
    [(8, "<Q", 1 << 40), (16, "<Q", 1 << 62), (24, "<Q", 1 << 60), (4, "<I", 9)],
    ids=["tensors", "entries", "length of a name", "version"],
)
def test_enormous_announcements_are_refused(tmp_path, place, form, value):
    content = bytearray(written(tmp_path / "x.gguf").read_bytes())
    struct.pack_into(form, content, place, value)
    (tmp_path / "y.gguf").write_bytes(content)
    with pytest.raises(CheckpointError):
        open_gguf(tmp_path / "y.gguf")


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" * 20)
    with pytest.raises(CheckpointError, match="not a GGUF"):
        open_gguf(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="cannot read"):
        open_gguf(tmp_path / "absent.gguf")


def by_definition(name, block):
    """One block of a packed kind, number by number."""
    scale = float(np.frombuffer(bytes(block[:2]), "<f2")[0])
    if name == "Q8_0":
        return [scale * int(np.int8(b)) for b in block[2:]]
    if name == "Q4_0":
        codes = [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]
        return [scale * (int(code) - 8) for code in codes]
    bits = int.from_bytes(bytes(block[2:6]), "little")
    codes = [b & 15 for b in block[6:]] + [b >> 4 for b in block[6:]]
    return [scale * ((int(c) | ((bits >> n & 1) << 4)) - 16) for n, c in enumerate(codes)]


@pytest.mark.parametrize("name", PACKED)
def test_packed_blocks_are_decoded_as_defined(name):
    kind = KINDS[name]
    blocks = random_blocks(kind)
    blocks.reshape(3, -1, kind.bytes_)[..., 1] &= 0x3B  # scales below 1
    got = decode(kind, blocks)
    for row, numbers in zip(blocks, got, strict=True):
        wanted = [n for b in row.reshape(-1, kind.bytes_) for n in by_definition(name, b)]
        assert np.array_equal(numbers, np.array(wanted, np.float32))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_codes_are_written_as_they_were(name):
    kind = KINDS[name]
    blocks = random_blocks(kind)
    assert np.array_equal(encode(kind, *codes_of(kind, blocks)), blocks)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0"])
def test_codes_that_a_file_holds_are_not_rounded_again(name):
    kind = KINDS[name]
    blocks = random_blocks(kind)
    blocks.reshape(3, -1, kind.bytes_)[..., 1] &= 0x3B
    assert kind.zero is not None  # without it, models.gguf rounds to codes of its own
    codes, scales = codes_of(kind, blocks)
    again = (codes.astype(np.float32) - kind.zero) * np.repeat(scales.astype(np.float32), 32, 1)
    assert np.array_equal(again, decode(kind, blocks))


def test_codes_of_five_bits_are_those_of_eight():
    kind = KINDS["Q5_0"]
    blocks = random_blocks(kind)
    blocks.reshape(3, -1, kind.bytes_)[..., 1] &= 0x3B
    codes, scales = codes_of(kind, blocks)
    numbers = (codes.astype(np.float32) - 128) * np.repeat(scales.astype(np.float32), 32, axis=1)
    assert np.array_equal(numbers, decode(kind, blocks))


@pytest.mark.parametrize("name", [n for n in KINDS if n != "F32"])
def test_blocks_are_decoded_as_by_the_package_of_llama_cpp(name):
    gguf = pytest.importorskip("gguf", reason="pip install gguf to compare with its decoding")
    blocks = random_blocks(KINDS[name], seed=1)
    theirs = gguf.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(blocks, theirs)
    finite = np.isfinite(wanted)
    assert finite.mean() > 0.5
    assert np.array_equal(decode(KINDS[name], blocks)[finite], wanted[finite])


def test_a_tensor_that_is_not_aligned_is_refused(tmp_path):
    """Its bytes lie within the file, but begin between two multiples of 32."""
    for offset, refused in ((0, False), (32, False), (4, True)):
        head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
        head += struct.pack("<Q1sIQIQ", 1, b"a", 1, 2, 0, offset)
        path = tmp_path / f"{offset}.gguf"
        path.write_bytes(head + bytes(-len(head) % 32) + bytes(64))
        with pytest.raises(CheckpointError, match="'a' does not lie") if refused else nullcontext():
            open_gguf(path)


def test_every_kind_of_llama_cpp_is_read_or_refused_by_its_name(tmp_path):
    gguf = pytest.importorskip("gguf", reason="pip install gguf for the names of its kinds")
    path = written(tmp_path / "x.gguf")
    at = path.read_bytes().index(struct.pack("<QQ", 32, 2)) + 16  # the kind, after the axes
    for kind in set(gguf.GGMLQuantizationType) - {gguf.GGMLQuantizationType[n] for n in KINDS}:
        content = bytearray(path.read_bytes())
        struct.pack_into("<I", content, at, kind.value)
        (tmp_path / "y.gguf").write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"'a' is of type {kind.name}, .*Q8_0"):
            open_gguf(tmp_path / "y.gguf")
