"""Models with packed maps: in folders, in native decoding, and malformed files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from suffice.errors import CheckpointError, ConfigError
from suffice.generate import generate
from suffice.layers.packed import Packed, Scheme
from suffice.memory import Dynamic
from suffice.models import configuration, folder, packed
from suffice.models.native_decoder import NativeDecoder
from suffice.quantise import quantise
from suffice.testing import assert_close
from suffice.text import Characters
from tests.models.test_folder import changed, model
from tests.ops.native.codings import needs_kernels

TOKENIZER = Characters("abcdefgh")
BITS = (16, 8, 4)


def small(bits, **changes):
    config, specs = configuration("nanogpt_char_cpu", "efficient", vocabulary_size=8, length=16)
    lm = replace(config, **changes).build(specs).eval()
    quantise(lm, bits)
    return lm


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", BITS)
def test_bit_for_bit_there_and_back(tmp_path, bits, tied):
    lm = small(bits, tied=tied)
    folder.save(tmp_path, lm, TOKENIZER, recipe="mine")
    again, _, facts = folder.load(tmp_path)
    assert facts == {"recipe": "mine"}
    want = lm.state_dict()
    assert again.state_dict().keys() == want.keys()
    for name, tensor in again.state_dict().items():
        assert_close(tensor, want[name], "exact")
    tokens = torch.randint(8, (2, 16))
    with torch.no_grad():
        assert_close(again(tokens), lm(tokens), "exact")
    assert packed.schemes_of(again) == packed.schemes_of(lm)
    folder.load(tmp_path, dtype=torch.float32)


@pytest.mark.parametrize("bits", BITS)
def test_a_machine_without_kernels_reads_it_too(tmp_path, no_kernels, bits):
    folder.save(tmp_path, small(bits), TOKENIZER)
    lm, _, _ = folder.load(tmp_path)
    packed_text = generate(lm, [[1, 2]], max_new_tokens=8)
    tokens = torch.randint(8, (2, 16))
    with torch.no_grad():
        before = lm(tokens)
        packed.unpack(lm)
        assert not packed.schemes_of(lm)
        assert_close(lm(tokens), before, n=256)
    assert_close(generate(lm, [[1, 2]], max_new_tokens=8).tokens, packed_text.tokens, "exact")
    folder.save(tmp_path / "unpacked", lm, TOKENIZER)
    assert "packed" not in json.loads((tmp_path / "unpacked" / "config.json").read_text())


@needs_kernels
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", BITS)
def test_native_decoding_gives_what_the_modules_give(bits, tied):
    lm = small(bits, tied=tied, bias=True)
    tokens = torch.randint(8, (3, 9))
    with torch.inference_mode():
        one, other = lm.state(), lm.state()
        for state in (one, other):
            lm(tokens[:, :8], state=state)
        got = NativeDecoder(lm, Dynamic()).step(tokens[:, 8], other)
        want = lm(tokens[:, 8:], state=one)[:, 0]
    gap = (got - want).abs().max() / want.abs().max()
    assert gap < (1e-5 if bits == 16 else 1e-2)  # codes of inputs may fall to either side


def test_gradients_flow_through_packed_maps():
    lm = small(8)
    lm(torch.randint(8, (2, 16))).square().mean().backward()
    assert all(p.grad is not None for p in lm.parameters())


@pytest.fixture
def saved(tmp_path):
    folder.save(tmp_path, small(8), TOKENIZER)
    return tmp_path


def test_packed_weights_have_no_other_dtype(saved):
    with pytest.raises(ConfigError, match=r"holds packed weights, which compute in float32"):
        folder.load(saved, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="'packed' is a reserved entry"):
        folder.save(saved, model(), TOKENIZER, packed={})


@pytest.mark.parametrize(
    ("schemes", "match"),
    [
        ([], "does not describe a model of kind 'language model'"),
        ({"head": {"bits": 8, "group": 32}}, "'head' is not a linear map"),
        ({"norm": {"bits": 16}}, "'norm' is not a linear map"),
        ({"embedding.tokens": {"bits": 8, "group": 48}}, "group=48 for 128 inputs"),
        ({"embedding.tokens": {"bits": 8, "group": True}}, "group=True is not a whole number"),
        ({"embedding.tokens": {"bits": 2, "group": 32}}, "bits=2: give 16, 8 or 4"),
        ({"embedding.tokens": "int8"}, "not a scheme"),
        ({"embedding.tokens": {"bits": 8, "group": 32}}, "does not fit"),
        ({}, "holds weights of 2 dtypes"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(saved, schemes, match):
    changed(saved, packed=schemes)
    with pytest.raises(CheckpointError, match=match):
        folder.load(saved)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_scales_that_are_not_finite_are_refused(saved, odd):
    path = saved / "model.safetensors"
    tensors = load_file(path)
    tensors["blocks.1.mlp.up.scales"][0, 0, 0] = odd
    save_file(tensors, path)
    with pytest.raises(
        CheckpointError, match=r"blocks.1.mlp.up.scales in model.safetensors holds NaN"
    ):
        folder.load(saved)


def test_a_module_of_another_kind_is_refused():
    lm = model()
    with pytest.raises(ConfigError, match="'blocks.0' is not a linear map"):
        packed.make_room(lm, {"blocks.0": Scheme(bits=16)})
    packed.make_room(lm, {"blocks.0.mlp.up": Scheme(bits=16)})
    lm.blocks[0].mlp.up.weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="blocks.0.mlp.up: weight holds NaN"):
        packed.check(lm)
    assert isinstance(lm.blocks[0].mlp.up, Packed)
