"""Peers compute what we compute, or are refused with a sentence; absent ones are skipped."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from suffice.errors import ConfigError, StateError, UnsupportedError
from suffice.measure.edge import peers
from suffice.measure.edge.peers import llama_cpp, named, names, peer
from suffice.measure.edge.peers.gguf_file import paired
from suffice.measure.edge.peers.greedy import Greedy
from suffice.measure.edge.peers.hugging_face import llama
from suffice.measure.edge.run import TOLERANCES, Ours, apart, check_alike
from suffice.measure.edge.shapes import in_bits, prompt_of
from suffice.positions import NoPosition, Rope
from tests.measure.edge import tiny

ROOM = 64


def made(name, lm, folder, bits=32):
    try:
        named(name)
    except ConfigError as absent:
        pytest.skip(str(absent))
    return peer(name, lm, bits=bits, room=ROOM, folder=folder)


@pytest.mark.parametrize("given", [{}, {"tied": False}, {"mechanism": "gqa", "num_kv_heads": 2}])
@pytest.mark.parametrize("name", peers.MODULES)
def test_logits_and_tokens_are_ours(name, given, tmp_path):
    lm = tiny.llama(**given)
    ids = prompt_of(lm, 40)
    side, ours = made(name, lm, tmp_path), Ours(lm)
    check_alike(ours, side, ids)
    exact = 2e-3 if name == "llama.cpp" else 1e-5  # its state has 16 bits
    assert apart(ours, side, ids) < exact
    run = side.write(ids, 12)
    assert run.tokens == ours.write(ids, 12).tokens
    assert side.write(ids, 12).tokens == run.tokens
    assert (run.prompt, len(run.token_seconds)) == (40, 11)
    assert run.prefill > 0.0


@pytest.mark.parametrize(
    ("name", "bits"),
    [("llama.cpp", 16), ("llama.cpp", 8), ("llama.cpp", 4), ("onnxruntime", 8), ("onnxruntime", 4)],
)
def test_rounded_weights_are_near(name, bits, tmp_path):
    lm = tiny.llama()
    try:
        side = made(name, lm, tmp_path, bits)
    except StateError as dead:
        pytest.skip(str(dead))
    error = apart(Ours(lm), side, prompt_of(lm, 40))
    least = {16: 1e-5, 8: 1e-3, 4: 1e-2}[bits]
    assert least < error < TOLERANCES[bits]


def test_a_peer_has_no_other_bits(tmp_path):
    with pytest.raises(UnsupportedError, match="transformers has no weights of 8 bits on a CPU; a"):
        peer("transformers", tiny.llama(), bits=8, room=ROOM, folder=tmp_path)


def test_names():
    assert named("") == []
    with pytest.raises(ConfigError, match="unknown peer 'llama'; did you mean 'llama.cpp'"):
        named("llama")


def test_a_peer_that_is_absent_names_its_package(monkeypatch):
    for module in ("transformers", "gguf", "onnx_ir"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in peers.MODULES:
        with pytest.raises(ConfigError, match=r"is not installed \(.*\); pip install 'suffice\[b"):
            named(name)
    with pytest.raises(ConfigError, match="gguf is not installed"):
        peers.package("gguf", "gguf")


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({"mechanism": "efficient"}, "standard causal attention with"),
        ({"position": NoPosition()}, "standard causal attention with"),
        ({"position": Rope(theta=5e5)}, "standard causal attention with"),
        ({"window": 8}, "standard causal attention with"),
        ({"activation": "gelu"}, "SwiGLU"),
        ({"norm": "layer"}, "RMS norms"),
        ({"bias": True}, "no biases"),
        ({"positions": "learned"}, "no positions beside"),
    ],
)
def test_models_that_are_no_llamas_are_refused(given, lacks, tmp_path):
    with pytest.raises(ConfigError, match=f"plain Llamas, which have .*{lacks}.*; this model has"):
        peer("transformers", tiny.llama(**given), bits=32, room=ROOM, folder=tmp_path)


def test_a_model_of_fewer_bits_is_refused(tmp_path):
    for lm in (tiny.llama().half(), in_bits(tiny.llama(), 8)):
        with pytest.raises(ConfigError, match="weights of 32 bits; this model has not"):
            peer("transformers", lm, bits=32, room=ROOM, folder=tmp_path)


def test_weights_by_name():
    lm = tiny.llama(tied=False)
    first, second = names.layers(lm)
    assert set(first) == {*"qkvo", "gate", "up", "down", "attention_norm", "mlp_norm"}
    assert torch.equal(second["k"], lm.blocks[1].attention.k_proj.weight)
    assert torch.equal(names.head(lm), lm.head.weight)
    assert torch.equal(names.head(tiny.llama()), tiny.llama().embedding.tokens.weight)
    assert sum(p.numel() for p in llama(lm).parameters()) == sum(p.numel() for p in lm.parameters())


def test_features_that_turn_together_lie_together():
    """Pairs (2i, 2i + 1) of the result turn as pairs (i, i + D / 2) of the map did."""
    weight, x = torch.randn(8, 5), torch.randn(1, 1, 3, 5)
    at = torch.arange(3)
    halves = Rope().rotate(x @ weight.T, at)
    pairs = Rope(layout="interleaved").rotate(x @ paired(weight, heads=1).T, at)
    torch.testing.assert_close(paired(halves[0, 0].T, heads=1).T, pairs[0, 0])


class Counting(Greedy):
    """Gives the token after the last one; a text begins anew."""

    name = "counting"

    def begin(self):
        self.read_ids = []

    def read(self, ids):
        self.read_ids.append(ids.tolist())
        return np.eye(9, dtype=np.float32)[(ids[-1] + 1) % 9]


def test_greedy_choice_reads_each_token_once():
    side = Counting()
    assert side.write(torch.tensor([3, 5]), 4).tokens == (6, 7, 8, 0)
    assert side.read_ids == [[3, 5], [6], [7], [8]]
    logits = side.logits(torch.tensor([3, 5]), torch.tensor([1, 2]))
    assert logits.argmax(1).tolist() == [6, 2, 3]
    assert side.read_ids == [[3, 5], [1], [2]]


def test_what_kills_llama_cpp_does_not_kill_us(monkeypatch, tmp_path):
    monkeypatch.setattr(llama_cpp, "TRIAL", "import sys; sys.exit(len(sys.argv[1]) == 0)")
    llama_cpp.check_lives(tmp_path, 8)
    monkeypatch.setattr(llama_cpp, "TRIAL", "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(StateError, match=r"dies of weights of 8 bits here \(signal 11\)\. Its"):
        llama_cpp.check_lives(tmp_path, 8)


def api(model, code=0):
    """Return what llama.cpp's interface would be, with this model and code of a refusal."""
    quiet = {
        name: lambda *_: None
        for name in (
            "llama_log_callback", "llama_log_set", "llama_backend_init", "llama_free",
            "llama_model_free", "llama_model_default_params", "llama_batch_get_one",
        )
    }  # fmt: skip
    return SimpleNamespace(
        **quiet,
        llama_token=np.ctypeslib.ctypes.c_int32,
        llama_model_load_from_file=lambda *_: model,
        llama_context_default_params=lambda: SimpleNamespace(n_batch=4),
        llama_init_from_model=lambda *_: "context",
        llama_decode=lambda *_: code,
    )


def test_what_llama_cpp_refuses(monkeypatch, tmp_path):
    monkeypatch.setattr(llama_cpp, "package", lambda *_: api(model=None))
    with pytest.raises(StateError, match="cannot load .*x.gguf; try another llama-cpp-python"):
        llama_cpp.LlamaCpp(tmp_path / "x.gguf", vocabulary=9, room=8)
    monkeypatch.setattr(llama_cpp, "package", lambda *_: api(model="model", code=3))
    side = llama_cpp.LlamaCpp(tmp_path / "x.gguf", vocabulary=9, room=8)
    with pytest.raises(StateError, match=r"llama.cpp refused 4 tokens with code 3\."):
        side.read(np.arange(6))
