"""Models written as .gguf compute the same when read back, and in llama.cpp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from suffice.convert.sources import open_source
from suffice.encoders import Standard
from suffice.errors import CheckpointError, ConfigError
from suffice.export import export_gguf
from suffice.export.gguf import packed_codes, rows_of, write_model
from suffice.layers.packed import Packed
from suffice.models import folder
from suffice.models.gguf import read_gguf
from suffice.models.gguf_format import open_gguf
from suffice.models.packed import unpack
from suffice.ops.native.matrix import in_panels
from suffice.presets import share
from suffice.quantise import quantise
from suffice.text import Characters

from .models import NEAR, ROTARY, SPEC, TEXT, TURNING, language, saved
from .test_architecture import MODELS, OUT, WHOLE

UNTURNED = replace(SPEC, bias=False)
TOKENIZER = Characters.of([TEXT])
WRITTEN = {
    "efficient": "gpt2",
    "latent, no positions": "gpt2",
    "layers that differ": "deci",
    "linear": "llama",
    "the usual order": "llama",
    "ntk": "llama",
    "llama3": "llama",
    "window": "granite_swa",
    "windows of some, wide heads": "granite_swa",
    "no turns": "llama",
    "normalised": "qwen3",
    "layer norms": "stablelm",
    "layer norms, turning whole": "stablelm",
}
OTHERS = {
    "turning partly, no window": ("phi3", language(MODELS["layer norms"][1].specs[0], **ROTARY)),
    "each fourth unturned": (
        "smollm3",
        language([TURNING, TURNING, TURNING, UNTURNED], **ROTARY | {"depth": 4}),
    ),
    "biased maps": ("llama", language(replace(TURNING, num_kv_heads=2, bias=True), **ROTARY)),
    "heads by layer": (
        "deci",
        language([replace(TURNING, num_kv_heads=n) for n in (1, 2, 4)], **ROTARY | {"depth": 3}),
    ),
    "windows and unturned by layer": (
        "granite_swa",
        language([replace(TURNING, pattern=NEAR), TURNING, UNTURNED], **ROTARY | {"depth": 3}),
    ),
    "normalised whole, unbiased": (
        "olmo2",
        language(replace(WHOLE, bias=False), **OUT),
    ),
    "one unturned": ("granite_swa", language([UNTURNED, TURNING], **ROTARY)),
}
CASES = {name: (kind, MODELS[name][1]) for name, kind in WRITTEN.items()} | OTHERS
SHARED = language(share([replace(TURNING, num_kv_heads=2)] * 2, 2), **ROTARY)
REFUSED = {
    "shared heads, own scale": "ReLU",
    "yarn": "yarn",
    "turning partly": "no windows",
    "layer norms, parallel": "parallel residuals",
    "turning gelu": "gpt_neox is not written",
    "normalised, windows of some": "no windows",
    "layer norms, each head normalised": "layer norms of queries and keys",
    "caps": "gemma2 is not written",
    "normalised whole": "no biases, and heads that divide",
    "normalised whole, wide heads": "no biases, and heads that divide",
    "shared": "layer 1 has shares=0",
}


def tokens(length=40):
    return torch.randint(19, (2, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", CASES)
def test_a_model_comes_back(name, tmp_path):
    kind, lm = CASES[name]
    assert write_model(tmp_path / "m.gguf", lm, TOKENIZER, kind="f32") == kind
    found, tokenizer, facts = read_gguf(tmp_path / "m.gguf")
    close = 2e-4 if lm.config.activation == "gelu" else 2e-6  # llama.cpp's GELU is by tanh
    torch.testing.assert_close(found(tokens()), lm(tokens()), atol=close, rtol=0)
    assert tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT)
    assert facts == {"source": f"gguf {kind}"}
    assert [s.kv_heads for s in found.specs] == [
        s.kv_heads if kind == "deci" else max(t.kv_heads for t in lm.specs) for s in lm.specs
    ] or kind == "gpt2"  # which shares none


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_does_not_compute_is_refused(name, tmp_path):
    lm = SHARED if name == "shared" else MODELS[name][1]
    with pytest.raises(ConfigError, match=REFUSED[name]):
        write_model(tmp_path / "m.gguf", lm, TOKENIZER, kind="f32")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "near"), [("f16", 2e-3), ("q8_0", 3e-2), ("q4_0", 5e-1)], ids=str)
@pytest.mark.parametrize("name", ["the usual order", "heads by layer", "normalised"])
def test_rounded_matrices_stay_near(name, kind, near, tmp_path):
    lm = CASES[name][1]
    write_model(tmp_path / "m.gguf", lm, TOKENIZER, kind=kind)
    found = read_gguf(tmp_path / "m.gguf")[0]
    assert any(isinstance(module, Packed) for module in found.modules())
    unpack(found)
    difference = (found(tokens()) - lm(tokens())).abs().max()
    assert 0 < difference < near * lm(tokens()).abs().max()


def save_packed(path, bits):
    sizes = {"vocabulary_size": TOKENIZER.vocabulary_size, "mlp_width": 64}
    lm = language(replace(TURNING, encoder=Standard()), **ROTARY, **sizes)
    quantise(lm, bits, 32)
    folder.save(path, lm, TOKENIZER)


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_that_were_chosen_are_kept(bits, tmp_path):
    save_packed(tmp_path / "q", bits)
    kind = {8: "q8_0", 4: "q4_0"}[bits]
    export_gguf(tmp_path / "q", tmp_path / "q.gguf", kind=kind)
    packed, found = folder.load(tmp_path / "q")[0], read_gguf(tmp_path / "q.gguf")[0]
    kept = 0
    for (name, ours), theirs in zip(
        packed.named_modules(), dict(found.named_modules()).values(), strict=True
    ):
        if isinstance(ours, Packed) and ours.scheme.bits == bits:
            assert torch.equal(ours.dequantised(), theirs.dequantised()), name
            kept += 1
    assert kept == 2 * 7 + 1


def test_rows_of_a_packed_matrix_are_its_codes():
    codes = torch.randint(256, (40, 64), generator=torch.Generator().manual_seed(0))
    scales = torch.rand(40, 2).half()
    found = rows_of(in_panels(codes.to(torch.uint8), scales, 8))
    assert torch.equal(found[0], codes.to(torch.uint8))
    assert torch.equal(found[1], scales)


def test_packed_matrices_of_other_bits_are_rounded_anew(tmp_path):
    save_packed(tmp_path / "q", 8)
    assert packed_codes(folder.load(tmp_path / "q")[0], "q8_0")
    assert not packed_codes(folder.load(tmp_path / "q")[0], "q4_0")


def test_a_file_is_a_model_for_other_formats(tmp_path):
    lm = saved(tmp_path / "m")
    export_gguf(tmp_path / "m", tmp_path / "m.gguf", kind="f32")
    opened = open_source(tmp_path / "m.gguf")
    torch.testing.assert_close(opened.model(tokens(9) % 15), lm(tokens(9) % 15))
    export_gguf(tmp_path / "m.gguf", tmp_path / "again.gguf", kind="f32")
    first, again = (open_gguf(tmp_path / f"{name}.gguf") for name in ("m", "again"))
    assert {**first.metadata, "general.name": 0} == {**again.metadata, "general.name": 0}
    for name in first.tensors:
        assert np.array_equal(first.blocks(name), again.blocks(name)), name


def test_wrong_names_and_models_are_refused(tmp_path):
    saved(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"ends in \.gguf"):
        export_gguf(tmp_path / "m", tmp_path / "m.bin")
    with pytest.raises(ConfigError, match="q5_0.*Legal: f16, f32, q4_0, q8_0"):
        export_gguf(tmp_path / "m", tmp_path / "m.gguf", kind="q5_0")
    assert not list(tmp_path.glob("*.gguf"))


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    saved(tmp_path / "m")
    wrong = language(TURNING, **ROTARY, depth=1, seed=5, vocabulary_size=TOKENIZER.vocabulary_size)
    monkeypatch.setattr(
        "suffice.export.gguf.read_gguf", lambda _: (wrong, TOKENIZER, {}), raising=True
    )
    with pytest.raises(CheckpointError, match="does not compute the same"):
        export_gguf(tmp_path / "m", tmp_path / "m.gguf", kind="f32")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("sink", [-20.0, 0.0, 3.0])
def test_sinks_that_take_a_share_are_refused(sink, tmp_path, monkeypatch):
    """Ours say that there is none; those of other programs are logits."""
    monkeypatch.setattr("suffice.export.gguf.NO_SINK", sink)
    write_model(tmp_path / "m.gguf", OTHERS["one unturned"][1], TOKENIZER, kind="f32")
    with pytest.raises(ConfigError, match="attention sinks"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_computes_the_same(name, tmp_path):
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="pip install llama-cpp-python to compare with llama.cpp"
    )
    lm = CASES[name][1]
    write_model(tmp_path / "m.gguf", lm, TOKENIZER, kind="f32")
    theirs = llama_cpp.Llama(
        model_path=str(tmp_path / "m.gguf"),
        n_ctx=256,
        logits_all=True,
        verbose=False,
        type_k=0,
        type_v=0,
    )
    text = tokens()[0]
    theirs.eval(text.tolist())
    found = torch.tensor(np.array(theirs.scores[: len(text)]))
    torch.testing.assert_close(found, lm(text[None])[0], atol=1e-3, rtol=0)


def by_the_gguf_package(path, lm, kind):
    """Write a model with the gguf package, its matrices in a kind; return all numbers exactly."""
    gguf = pytest.importorskip("gguf", reason="pip install gguf to read what it writes")
    kind, plain = gguf.GGMLQuantizationType[kind], path.with_suffix(".plain")
    write_model(plain, lm, TOKENIZER, kind="f32")
    ours, exact = open_gguf(plain), {}
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in ours.metadata.items():
        if name != "general.architecture":
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    for name, one in ours.tensors.items():
        rows = ours.blocks(name).view(np.float32).reshape(one.shape)
        stored = gguf.quantize(rows, kind) if rows.ndim > 1 else rows
        writer.add_tensor(name, stored, raw_dtype=kind if rows.ndim > 1 else None)
        exact[name] = gguf.dequantize(stored, kind) if rows.ndim > 1 else rows
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain.unlink()
    return exact


THEIR_NAMES = {
    "embedding.tokens": "token_embd",
    "norm": "output_norm",
    **{
        f"blocks.{n}.{ours}": f"blk.{n}.{theirs}"
        for n in range(2)
        for ours, theirs in {
            "attention_norm": "attn_norm",
            "mlp_norm": "ffn_norm",
            **{f"attention.{name}_proj": f"attn_{name}" for name in "qkv"},
            "attention.o_proj": "attn_output",
            "mlp.gate": "ffn_gate",
            "mlp.up": "ffn_up",
            "mlp.down": "ffn_down",
        }.items()
    },
}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_1", "F16"])
def test_a_file_of_the_gguf_package_is_unpacked_to_its_very_numbers(tmp_path, kind):
    lm = language(replace(TURNING, num_kv_heads=2), **ROTARY | {"mlp_width": 64})
    exact = by_the_gguf_package(tmp_path / "theirs.gguf", lm, kind)
    opened = open_source(tmp_path / "theirs.gguf", packed=False)
    assert opened.tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT)
    state = opened.model.state_dict()
    assert {name.removesuffix(".weight") for name in state} == THEIR_NAMES.keys()
    for ours, theirs in THEIR_NAMES.items():
        numbers = torch.tensor(exact[f"{theirs}.weight"])
        assert torch.equal(state[f"{ours}.weight"], numbers), ours
    assert opened.unpacked == 4 * sum(numbers.size for numbers in exact.values())
    assert open_source(tmp_path / "theirs.gguf").unpacked == 0


def test_a_packed_folder_is_unpacked_to_its_very_numbers(tmp_path):
    save_packed(tmp_path / "q", 4)
    packed, opened = folder.load(tmp_path / "q")[0], open_source(tmp_path / "q", packed=False)
    state = opened.model.state_dict()
    for name, module in packed.named_modules():
        if isinstance(module, Packed):
            assert torch.equal(state[f"{name}.weight"], module.dequantised())
    assert opened.unpacked == 4 * sum(weight.numel() for weight in state.values())


@pytest.mark.parametrize("stored", ["file", "folder"])
def test_a_model_that_does_not_fit_twice_is_refused_before_it_is_unpacked(
    stored, tmp_path, monkeypatch
):
    save_packed(tmp_path / "folder", 8)
    export_gguf(tmp_path / "folder", tmp_path / "file.gguf", kind="q8_0")
    path = tmp_path / {"file": "file.gguf", "folder": "folder"}[stored]
    size = open_source(path, packed=False).unpacked
    memory = {"memory_bytes": 2 * size}
    monkeypatch.setattr("suffice.convert.sources.machine_facts", lambda: memory)
    assert open_source(path, packed=False).unpacked == size
    memory["memory_bytes"] -= 1
    for place in ("suffice.models.gguf._fill", "suffice.convert.sources.unpack"):
        monkeypatch.setattr(place, None)
    with pytest.raises(ConfigError, match=rf"{path.name} takes [\d.]+ kB.* has [\d.]+ kB"):
        open_source(path, packed=False)
