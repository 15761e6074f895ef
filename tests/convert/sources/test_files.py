"""Files of others are read with care: nothing outside the folder, nothing unpickled, no NaN."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from suffice import preset
from suffice.convert.sources import open_source
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.models import LMConfig, folder
from suffice.models.architectures.hugging_face import read_config
from suffice.models.architectures.weights import load_tensors
from suffice.positions import Rope
from suffice.testing import assert_close, drawn
from suffice.text import BPE, Characters

PIECES = [" once", " upon", " a", "b"]


def two_shards(path, **listed):
    one, two = {"a": torch.ones(2), "b": torch.zeros(3).half()}, {"c": torch.arange(2)}
    save_file(one, path / "x-1.safetensors")
    save_file(two, path / "x-2.safetensors")
    names = {"a": "x-1.safetensors", "b": "x-1.safetensors", "c": "x-2.safetensors"} | listed
    index = {"weight_map": {k: v for k, v in names.items() if v is not None}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards(tmp_path):
    two_shards(tmp_path)
    found = load_tensors(tmp_path)
    assert {name: one.dtype for name, one in found.items()} == {
        "a": torch.float32,
        "b": torch.float32,
        "c": torch.int64,
    }


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"a": "../x-1.safetensors"}, r"names the shard '../x-1.safetensors'; .* Do not use this"),
        ({"a": "sub\\x-1.safetensors"}, "names the shard"),
        ({"a": "x-1.bin"}, "names the shard 'x-1.bin'; a shard is a .safetensors file"),
        ({"a": "x" * 244 + ".safetensors"}, "names the shard"),  # of 256 bytes
        ({"e": "x" * 243 + ".safetensors"}, "does not exist"),
        ({"a": "\0.safetensors"}, "names the shard"),
        ({"d": "x-2.safetensors"}, "x-2.*lacks 'd'"),
        ({"b": None}, "x-1.*holds 'b'"),
        ({"e": "x-3.safetensors"}, "x-3.safetensors does not exist"),
        ({"a": 3}, "has no weight_map of names; save the model again"),
    ],
)
def test_an_index_that_does_not_match_is_refused(listed, message, tmp_path):
    two_shards(tmp_path, **listed)
    with pytest.raises(CheckpointError, match=message):
        load_tensors(tmp_path)


def test_one_file_or_an_index_is_needed(tmp_path):
    with pytest.raises(CheckpointError, match="holds no model.safetensors; save the model as"):
        load_tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pytorch_model.bin is a pickle, which can execute"):
        load_tensors(tmp_path)
    two_shards(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds both model.safetensors and model.safe"):
        load_tensors(tmp_path)


def test_weights_that_hold_nan_are_refused(tmp_path):
    save_file({"a": torch.tensor([1.0, torch.nan])}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds NaN or infinity in 'a'"):
        load_tensors(tmp_path)


def test_a_config_that_is_no_object_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no config.json; give a folder of suffice"):
        read_config(tmp_path)
    for name in ("tok512.bin", "pytorch_model.bin", "small.bin"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"or the file of llama2.c itself: .*small\.bin\."):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read .* give it whole"):
        read_config(tmp_path)


def test_other_paths_are_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match="no such file or folder: .*; give a folder of suffice"
    ):
        open_source(tmp_path / "nothing")
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        open_source(file)


SIZES = {"length": 16, "d_model": 16, "depth": 2, "mlp_width": 24, "positions": "none"}
LIKE = {"activation": "swiglu", "norm": "rms", "bias": False}


def llama2c(path, *, tied=True, change=lambda content: content):
    """Write a checkpoint in the format, and return the model it holds."""
    config = LMConfig(**SIZES, **LIKE, vocabulary_size=259 + len(PIECES), tied=tied)
    spec = preset("gqa", 16, 4, num_kv_heads=2, causal=True, bias=False)
    spec = replace(spec, position=Rope(layout="interleaved"))
    lm = drawn(config.build(spec), seed=4).eval()
    sign = 1 if tied else -1
    content = struct.pack("<7i", 16, 24, 2, 4, 2, sign * config.vocabulary_size, 16)
    blocks, stacks = lm.blocks, []
    stacks.append([b.attention_norm for b in blocks])
    stacks += [[getattr(b.attention, f"{n}_proj") for b in blocks] for n in "qkvo"]
    stacks.append([b.mlp_norm for b in blocks])
    stacks += [[getattr(b.mlp, n) for b in blocks] for n in ("gate", "down", "up")]
    parts = [lm.embedding.tokens.weight]
    parts += [one.weight for stack in stacks for one in stack] + [lm.norm.weight]
    parts += [torch.zeros(16, 2), torch.zeros(16, 2)]
    parts += [] if tied else [lm.head.weight]
    content += b"".join(part.detach().numpy().astype("<f4").tobytes() for part in parts)
    path.write_bytes(change(content))
    return lm


def tokenizer_file(path):
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    content = struct.pack("<i", max(map(len, pieces)))
    for number, piece in enumerate(pieces):
        content += struct.pack("<fi", -float(number), len(piece.encode())) + piece.encode()
    path.write_bytes(content)


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c(tied, tmp_path):
    lm = llama2c(tmp_path / "small.bin", tied=tied)
    alone = open_source(tmp_path / "small.bin")
    assert (alone.tokenizer, alone.kind) == (None, "llama2.c")
    tokenizer_file(tmp_path / "tok.bin")
    found = open_source(tmp_path / "small.bin")
    assert found.tokenizer.vocabulary_size == 259 + len(PIECES)
    assert found.model.config == lm.config
    tokens = torch.randint(200, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close(found.model(tokens), lm(tokens))
    tokenizer_file(tmp_path / "tok2.bin")
    with pytest.raises(DataError, match=r"tok.bin, tok2.bin"):
        open_source(tmp_path / "small.bin")
    named = open_source(tmp_path / "small.bin", tokenizer=tmp_path / "tok2.bin")
    assert named.tokenizer.fingerprint == found.tokenizer.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:20], r"20 bytes"),
        (lambda content: content[:-4], "sizes ask for"),
        (lambda content: bytes(28) + content[28:], "not sizes of a model"),
        (lambda content: content[:28] + b"\xff" * 4 + content[32:], "in 'embedding.tokens'"),
        (
            lambda _: struct.pack("<7i", 12, 4, 1, 4, 4, 5, 4) + bytes(5000),
            "features rotate in pairs",
        ),
    ],
)
def test_a_damaged_llama2c_file_is_refused(change, message, tmp_path):
    llama2c(tmp_path / "small.bin", change=change)
    with pytest.raises(CheckpointError, match=message):
        open_source(tmp_path / "small.bin")


def test_an_unreadable_llama2c_file_is_refused(tmp_path, monkeypatch):
    llama2c(tmp_path / "small.bin")

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=r"cannot read .* \(Permission denied\); check its"):
        open_source(tmp_path / "small.bin")


def test_a_folder_of_this_library(tmp_path):
    tokenizer = Characters.of(["abc"])
    config = LMConfig(**{**SIZES, "positions": "learned"}, vocabulary_size=3)
    lm = drawn(config.build(preset("efficient", 16, 4, causal=True)), seed=0).eval()
    folder.save(tmp_path / "run", lm, tokenizer, corpus="stdlib")
    found = open_source(tmp_path / "run")
    assert (found.kind, found.facts) == ("suffice", {"corpus": "stdlib"})
    assert found.tokenizer.fingerprint == tokenizer.fingerprint
    assert found.model.specs == lm.specs
    Characters.of(["abcd"]).save(tmp_path / "other")
    with pytest.raises(
        ConfigError, match="the tokenizer has 4 tokens and .* 3; give the tokenizer"
    ):
        open_source(tmp_path / "run", tokenizer=tmp_path / "other")
    lm.norm.weight.data[0] = torch.inf
    folder.save(tmp_path / "run", lm, tokenizer)
    with pytest.raises(CheckpointError, match="norm.weight in model.safetensors holds NaN or Inf"):
        open_source(tmp_path / "run")


def test_a_tokenizer_beside_weights(tmp_path):
    pytest.importorskip("transformers")
    from benchmarks.released import cases

    kind, config = cases()["gpt2"]
    config.eos_token_id, config.vocab_size = [256], 300
    drawn(kind(config), seed=0).save_pretrained(tmp_path)
    assert open_source(tmp_path).tokenizer is None
    made = BPE.train(["low lower lowest"] * 2, 261)
    made.save(tmp_path)
    config_file = tmp_path / "config.json"
    entries = json.loads(config_file.read_text())
    entries |= {"bos_token_id": None, "eos_token_id": [made.end]}
    config_file.write_text(json.dumps(entries))
    found = open_source(tmp_path).tokenizer
    assert (found.begin, found.end, found.vocabulary_size) == (None, made.end, 261)
    assert found.encode("low") == made.encode("low")
    config_file.write_text(json.dumps(entries | {"bos_token_id": [[]], "eos_token_id": {}}))
    odd = open_source(tmp_path).tokenizer
    assert (odd.begin, odd.end) == (None, None)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(DataError, match=r"tokenizer.json has no vocabulary of a byte-pair"):
        open_source(tmp_path)
