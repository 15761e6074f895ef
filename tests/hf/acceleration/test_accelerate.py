"""What `accelerate` says, leaves alone, and works together with."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import torch
import transformers
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.mamba2 import modeling_mamba2

from suffice.errors import ConfigError
from suffice.hf import accelerate
from suffice.hf.acceleration import layers
from suffice.hf.acceleration.attention import NAME
from suffice.hf.acceleration.sequences import FUNCTIONS, LEFT
from suffice.testing import assert_close

from .stock import RECURRENT, gradients, model, tokens

CLOSE = {"n": 100}


def test_explain_groups_layers_and_names_what_was_left():
    text = accelerate(model("mamba2")).explain()
    assert "2 x backbone.layers.*.mixer (Mamba2Mixer): mamba2_chunk_scan\n" in text
    left = text.split("left:")[1]
    assert f"mamba2_split_conv1d_scan_combined, {LEFT['mamba2_split_conv1d_scan_combined']}" in left


def test_attention_without_the_interface_is_left():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.LongformerConfig(num_hidden_layers=2, attention_window=8, **sizes)
    made = transformers.LongformerModel(config)
    report = accelerate(made)
    assert {piece.kind for piece in report.replaced} <= {"Linear"}
    assert {piece.kind for piece in report.left} >= {"LongformerAttention"}
    assert made.config._attn_implementation != NAME


def test_another_device_is_left_alone():
    with torch.device("meta"):
        made = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1)
        )
    report = accelerate(made)
    assert not report.replaced
    assert "meta" in report.left[0].reason
    assert made.config._attn_implementation == "sdpa"


def test_a_class_from_elsewhere_is_left_alone():
    made = model("qwen3_5")
    made.__class__ = types.new_class("Remote", (type(made),))
    type(made).__module__ = "transformers_modules.somebody"
    report = accelerate(made)
    assert not report.replaced
    assert "transformers_modules.somebody" in report.left[0].reason


def test_a_module_without_a_model_of_transformers_is_refused():
    with pytest.raises(ConfigError, match="Linear"):
        accelerate(torch.nn.Linear(2, 2))


def test_a_forward_that_something_else_replaced_is_left():
    made = model("mamba2")
    mixer = made.backbone.layers[0].mixer
    mixer.forward = lambda x, **_: x
    report = accelerate(made)
    assert {piece.module for piece in report.left if "replaced its" in piece.reason} == {
        "backbone.layers.0.mixer"
    }
    mixers = {piece.module for piece in report.replaced if piece.kind == "Mamba2Mixer"}
    assert mixers == {"backbone.layers.1.mixer"}


def test_a_function_with_a_new_argument_is_left_and_named(monkeypatch):
    plain = modeling_mamba2.mamba2_chunk_scan

    def newer(*args, another=None, **kwargs):
        return plain(*args, **kwargs)

    newer.__code__ = newer.__code__.replace(co_qualname=plain.__code__.co_qualname)
    monkeypatch.setattr(modeling_mamba2, "mamba2_chunk_scan", newer)
    made, x = model("mamba2"), tokens()
    report = accelerate(made)
    left = {piece.reason for piece in report.left if piece.function == "mamba2_chunk_scan"}
    assert len(left) == 1
    assert "another" in left.pop()
    assert made(x).logits.isfinite().all()


def test_a_saved_model_is_stock(tmp_path):
    made, x = model("qwen3_5"), tokens()
    with torch.no_grad():
        want = made(x).logits
    accelerate(made)
    made.save_pretrained(tmp_path)
    assert "suffice" not in (tmp_path / "config.json").read_text()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    with torch.no_grad():
        assert_close(again(x).logits, want)


def test_checkpointed_layers_have_the_gradients_of_stock():
    stock, ours, x = model("qwen3_5").train(), model("qwen3_5").train(), tokens()
    accelerate(ours)
    enable = getattr(ours, "activation_checkpointing_enable", None)
    (enable or ours.gradient_checkpointing_enable)()
    for m in (stock, ours):
        m(x, labels=x, use_cache=False).loss.backward()
    got, want = (gradients(m) for m in (ours, stock))
    assert_close(got / want.abs().max(), want / want.abs().max(), **CLOSE)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_adapters_train_as_on_stock():
    peft = pytest.importorskip("peft")
    results, x = [], tokens()
    for wanted in (False, True):
        torch.manual_seed(0)
        settings = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights="gaussian")
        made = peft.get_peft_model(model("qwen3_5"), settings)
        if wanted:
            assert accelerate(made).replaced
        made(input_ids=x, labels=x).loss.backward()
        results.append(gradients(made))
    want, got = results
    assert_close(got / want.abs().max(), want / want.abs().max(), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ACT2FN)
def test_a_gated_mlp_keeps_its_activation_at_gates_of_any_size(name):
    sizes = {"hidden_size": 1, "num_attention_heads": 1, "intermediate_size": 999}
    mlp = LlamaMLP(transformers.LlamaConfig(hidden_act=name, **sizes))
    gates = torch.linspace(-300.0, 300.0, 999)[:, None]
    mlp.gate_proj.weight.copy_(gates)
    mlp.up_proj.weight.fill_(1.0)
    mlp.down_proj = torch.nn.Identity()
    forward = layers.forward_of(mlp)
    if isinstance(forward, str):
        assert type(mlp.act_fn).__name__ in forward
        forward = mlp.forward
    assert_close(forward(torch.ones(1, 1)), mlp.act_fn(gates.T))


@pytest.mark.parametrize("name", RECURRENT)
def test_packed_rows_of_recurrences_are_kept_apart_where_explain_says_so(name):
    """transformers refuses them without packages for CUDA."""
    made, x = model(name), tokens(rows=1)
    dropped = "does not pass them on" in accelerate(made).explain()
    assert dropped is (name == "mamba2")
    places = torch.cat([torch.arange(30), torch.arange(40)])
    boundaries = {
        "position_ids": places[None],
        "seq_idx": (torch.arange(70) >= 30).int()[None],
        "cu_seq_lens_q": torch.tensor([0, 30, 70]),
    }
    with torch.no_grad():
        packed = made(x, **boundaries, use_cache=False).logits
        alone = torch.cat([made(x[:, :30]).logits, made(x[:, 30:]).logits], dim=1)
        assert torch.allclose(packed, alone, atol=1e-3) is not dropped
        if dropped:
            packed = made.lm_head(made.backbone(x, **boundaries, use_cache=False)[0])
    assert_close(packed, alone, **CLOSE)


def test_the_installed_version_has_the_functions_that_are_known():
    folder = Path(transformers.__file__).parent / "models"
    names = set()
    for path in folder.glob("*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        names |= set(
            re.findall(r"@use_kernel_func_from_hub_with_fallback\([^)]*\)\ndef (\w+)", text)
        )
    assert names == FUNCTIONS.keys() | LEFT.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba2", "gemma3"])
def test_a_compiled_model_computes_as_stock(name):
    stock, ours, x = model(name), model(name), tokens()
    accelerate(ours)
    with torch.no_grad():
        want = stock(x, use_cache=False).logits
        assert_close(torch.compile(ours)(x, use_cache=False).logits, want, **CLOSE)


def test_linear_maps_of_few_rows_read_the_weights_as_they_are(monkeypatch):
    monkeypatch.setattr(layers, "threads_of_few_rows", lambda _: 1)
    made, x = model("llama", attention_bias=True), tokens(rows=1, length=3)
    report = accelerate(made)
    assert {piece.function for piece in report.replaced if piece.kind == "Linear"} == {
        layers.LINEAR
    }
    with torch.no_grad():
        for factor in (1.0, 0.5):
            for parameter in made.parameters():
                parameter.mul_(factor)
            got = made(x).logits
            report.undo()
            assert_close(got, made(x).logits, **CLOSE)
            report = accelerate(made)


@pytest.mark.parametrize(("kinds", "reason"), [
    ({"Linear"}, "torch is as fast on this machine"),
    ({"LlamaMLP"}, "its activation, ReLU, is neither SiLU nor GELU"),
    ({"Linear", "LlamaRMSNorm"}, "its weights are bfloat16, not float32"),
    ({"LlamaRMSNorm"}, "it computes something else than RMSNorm"),
    ({"Linear"}, "its weight is not contiguous"),
])  # fmt: skip
def test_a_layer_is_left_for_one_reason(monkeypatch, kinds, reason):
    monkeypatch.setattr(layers, "threads_of_few_rows", lambda _: int("fast" not in reason))
    made = model("llama", hidden_act="relu" if "ReLU" in reason else "silu")
    if "bfloat16" in reason:
        made.bfloat16()
    if "RMSNorm" in reason:
        monkeypatch.setattr(LlamaRMSNorm, "forward", lambda _, hidden_states: 2 * hidden_states)
    if "contiguous" in reason:
        for linear in (m for m in made.modules() if isinstance(m, torch.nn.Linear)):
            linear.weight = torch.nn.Parameter(linear.weight.t().contiguous().t())
    report = accelerate(made)
    assert {(piece.kind, piece.reason) for piece in report.left} == {(k, reason) for k in kinds}
    assert repr(report) == report.explain()
