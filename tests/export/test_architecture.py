"""What is exported for transformers loads there, without this library, with equal logits."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.convert.certificate import Certificate
from suffice.convert.folder import save
from suffice.convert.sources import Source
from suffice.encoders import (
    HeadLayerNorm,
    HeadRMS,
    Latent,
    NoNorm,
    Optimised,
    ProjectionRMS,
    Standard,
)
from suffice.errors import CheckpointError, ConfigError
from suffice.export import config_of, export, stock_model
from suffice.kernels import Softmax
from suffice.layers import Experts
from suffice.models import folder
from suffice.models.architectures.rope import rope_parameters
from suffice.patterns import Block, Causal, Window
from suffice.positions import (
    Alibi,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    PairScaling,
    Rope,
    YarnScaling,
)
from suffice.positions.rope import Scaling
from suffice.presets import share

from .models import (
    NEAR,
    ROTARY,
    SPEC,
    TEXT,
    TURNING,
    bert,
    classifier,
    language,
    modern,
    pictures,
    saved,
)

transformers = pytest.importorskip("transformers")

GROUPED = replace(TURNING, num_kv_heads=2)
NORMED = replace(GROUPED, norm=HeadRMS(1e-5))
ROPE = Rope(layout="interleaved", features=4)
EXPERTS = Experts(num_experts=4, top_k=2, width=48)
MIXED = ROTARY | {"experts": EXPERTS}
PARTLY = replace(TURNING, position=ROPE)


def scaled(scaling):
    return replace(TURNING, position=Rope(500.0, layout="interleaved", scaling=scaling))


exporting = sys.modules["suffice.export.export"]  # the package's name is its function's

GEMMA = ROTARY | {"activation": "geglu_tanh"}
NEWER = GEMMA | {"residual": "both"}
OUT = ROTARY | {"residual": "out"}
COHERE = ROTARY | {"norm": "layer", "residual": "parallel"}
WHOLE = replace(GROUPED, norm=ProjectionRMS(1e-5), bias=True, scale=0.4)
EACH = replace(GROUPED, norm=HeadLayerNorm(1e-5), scale=0.4)
CAPPED = replace(GROUPED, kernel=Softmax(cap=1.5), scale=7**-0.5)
FAR = Rope(300.0, layout="interleaved", scaling=LinearScaling(4.0))
PARALLEL = {"positions": "none", "residual": "parallel"}


def one_norm(lm):
    """Return a model whose MLPs have the norms of the attention beside them."""
    for block in lm.blocks:
        block.mlp_norm.load_state_dict(block.attention_norm.state_dict())
    return lm


MODELS = {
    "efficient": ("gpt2", language()),
    "shared heads, own scale": (
        "gpt2",
        language(
            replace(SPEC, num_kv_heads=2, scale=0.3),
            tied=False,
            bias=False,
            positions="sinusoidal",
            activation="relu",
        ),
    ),
    "latent, no positions": (
        "gpt2",
        language(replace(SPEC, encoder=Latent()), positions="none", activation="gelu_tanh"),
    ),
    "layers that differ": (
        "llama",
        language(
            [replace(GROUPED, bias=True), replace(TURNING, encoder=Standard())],
            **ROTARY | {"bias": True, "tied": False},
        ),
    ),
    "linear": ("llama", language(scaled(LinearScaling(4.0)), **ROTARY)),
    "the usual order": ("llama", language(replace(GROUPED, position=Rope()), **ROTARY)),
    "ntk": ("llama", language(scaled(NTKScaling(4.0)), **ROTARY)),
    "llama3": ("llama", language(scaled(Llama3Scaling(4.0, length=16)), **ROTARY)),
    "yarn": ("llama", language(scaled(YarnScaling(4.0, length=16, fast=4.0)), **ROTARY)),
    "pairs": (
        "llama",
        language(scaled(PairScaling((1.5, 2.0, 3.0, 4.0), attention_factor=1.25)), **ROTARY),
    ),
    "window": ("mistral", language(replace(GROUPED, pattern=NEAR), **ROTARY)),
    "windows of some, wide heads": (
        "smollm3",
        language(
            [
                replace(GROUPED, pattern=NEAR, bias=True, head_dim=12, encoder=Standard()),
                AttentionSpec(d_model=32, num_heads=4, head_dim=12, pattern=Causal()),
            ],
            **ROTARY | {"bias": True},
        ),
    ),
    "no turns": ("smollm3", language(replace(SPEC, bias=False), **ROTARY)),
    "turning partly": ("phi3", language(replace(PARTLY, pattern=NEAR), **ROTARY)),
    "normalised": ("qwen3", language(NORMED, **ROTARY)),
    "normalised, windows of some": (
        "qwen3",
        language(
            [
                replace(NORMED, pattern=NEAR, bias=True, scale=0.4),
                replace(NORMED, num_kv_heads=1, encoder=Optimised()),
            ],
            **ROTARY,
        ),
    ),
    "experts": (
        "mixtral",
        language(replace(GROUPED, encoder=Optimised()), **MIXED, tied=False),
    ),
    "experts, windows": ("mixtral", language(replace(GROUPED, pattern=NEAR), **MIXED)),
    "experts, normalised": (
        "qwen3_moe",
        language(
            replace(NORMED, pattern=NEAR, bias=True),
            **MIXED | {"experts": replace(EXPERTS, width=24, normalised=False, dense=(1,))},
        ),
    ),
    "layer norms": ("stablelm", language(PARTLY, **ROTARY | {"norm": "layer"})),
    "layer norms, turning whole": ("stablelm", language(TURNING, **ROTARY | {"norm": "layer"})),
    "layer norms, parallel": (
        "stablelm",
        one_norm(
            language(PARTLY, **ROTARY | {"norm": "layer", "residual": "parallel", "bias": False})
        ),
    ),
    "gemma": ("gemma", language(replace(GROUPED, scale=0.4, bias=True, head_dim=12), **GEMMA)),
    "caps": (
        "gemma2",
        language(
            [replace(CAPPED, pattern=NEAR), replace(CAPPED, encoder=Optimised(), scale=0.3)],
            **NEWER,
            logit_cap=2.0,
        ),
    ),
    "norms behind": (
        "gemma2",
        language(GROUPED, **NEWER | {"activation": "geglu", "tied": False}),
    ),
    "normalised, norms behind": (
        "gemma3_text",
        language(
            [
                replace(NORMED, pattern=NEAR, scale=0.4, bias=True),
                replace(NORMED, num_kv_heads=1, position=FAR, encoder=Optimised()),
            ],
            **NEWER,
            logit_cap=2.0,
        ),
    ),
    "normalised, norms behind, no windows": ("gemma3_text", language(NORMED, **NEWER)),
    "normalised whole": ("olmo2", language(WHOLE, **OUT)),
    "normalised whole, wide heads": (
        "olmo2",
        language(replace(WHOLE, head_dim=12, encoder=Standard(), position=FAR), **OUT),
    ),
    "layer norms without biases, parallel": (
        "cohere",
        one_norm(language(replace(TURNING, scale=0.4, bias=True), **COHERE, tied=False)),
    ),
    "each head normalised": ("cohere", one_norm(language(EACH, **COHERE))),
    "each head normalised, the usual order": (
        "cohere",
        one_norm(language(replace(EACH, position=Rope(theta=500.0)), **COHERE)),
    ),
    "turning in windows": (
        "cohere2",
        one_norm(
            language(
                [
                    replace(GROUPED, pattern=NEAR, position=Rope(), bias=True),
                    replace(SPEC, bias=False),
                ],
                **COHERE,
            )
        ),
    ),
    "turning nowhere": ("cohere2", one_norm(language(replace(SPEC, bias=False), **COHERE))),
    "layer norms, each head normalised": (
        "stablelm",
        language(replace(EACH, position=ROPE), **ROTARY | {"norm": "layer"}),
    ),
    "turning gelu": ("gpt_neox", language(GROUPED, positions="none", bias=False)),
    "turning gelu, parallel": (
        "gpt_neox",
        language(replace(PARTLY, bias=True), **PARALLEL, activation="gelu_tanh"),
    ),
    "parallel, head with a bias": (
        "phi",
        one_norm(
            language(replace(GROUPED, bias=True, scale=0.4), **PARALLEL, tied=False, head_bias=True)
        ),
    ),
    "classifier": ("bert", bert()),
    "modern classifier": ("modernbert", modern()),
    "modern tokens": ("modernbert tokens", modern(pooling="none", head_activation="relu")),
    "modern masked": ("modernbert masked", modern(num_classes=19, pooling="none", bias=True)),
    "modern, alone": ("modernbert", modern(replace(TURNING, pattern=Window(1), position=Rope()))),
    "pictures": ("vit", pictures()),
    "distilled pictures": ("deit", pictures(pooling="distilled")),
}


def stock(path, kind):
    """Return a model of transformers, loaded from a folder."""
    auto = {
        "bert": transformers.AutoModelForSequenceClassification,
        "vit": transformers.AutoModelForImageClassification,
        "deit": transformers.DeiTForImageClassificationWithTeacher,
        "modernbert": transformers.AutoModelForSequenceClassification,
        "modernbert tokens": transformers.AutoModelForTokenClassification,
        "modernbert masked": transformers.AutoModelForMaskedLM,
    }
    model, problems = auto.get(kind, transformers.AutoModelForCausalLM).from_pretrained(
        path, output_loading_info=True
    )
    assert not any(problems.values()), problems
    return model.eval()


def inputs(model):
    draws = torch.Generator().manual_seed(3)
    if hasattr(model.config, "channels"):
        return torch.randn(2, 3, 8, 8, generator=draws)
    return torch.randint(19, (2, 20), generator=draws)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_equal(name, tmp_path, monkeypatch):
    kind, model = MODELS[name]
    monkeypatch.setattr(
        exporting, "open_model", lambda *_, **__: (Source(model=model, kind="x"), False)
    )
    manifest = export("anything", "hf", tmp_path / "out")
    assert manifest["checked"]["difference"] < 1e-4
    reads = [port["name"] for port in manifest["inputs"]]
    assert reads == (
        ["pixel_values"] if kind in ("vit", "deit") else ["input_ids", "attention_mask"]
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    model_type = kind.partition(" ")[0]
    assert config["model_type"] == model_type
    assert config["architectures"] == [manifest["architecture"]]
    theirs = stock(tmp_path / "out", kind)
    x = inputs(model)
    with torch.no_grad():
        logits = theirs(x).logits
        assert (logits - model(x)).abs().max() < 1e-4
    shape = manifest["outputs"][0]["shape"]
    free = {"batch": 2, "length": 20}
    assert [free.get(size, size) for size in shape] == list(logits.shape)
    if kind == "gpt2":  # which looks positions up, though a model here may compute them
        assert manifest["length"] == model.config.length


READ_BACK = {
    "gemma": {"head_dim": 12},
    "gemma2": {
        "head_dim": 12,
        "sliding_window": 5,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {"head_dim": 12, "sliding_window": 5, "sliding_window_pattern": 2},
    "olmo2": {"attention_bias": True},
    "stablelm": {"qk_layernorm": True, "layer_norm_eps": 1e-2},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.7},
    "cohere2": {"sliding_window": 5, "sliding_window_pattern": 2},
}


@pytest.mark.parametrize("kind", READ_BACK)
def test_what_was_read_is_written_as_its_class(kind, tmp_path):
    sizes = {"vocab_size": 19, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 80}
    marks = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **sizes, **marks, **READ_BACK[kind])
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # gains that differ from their start
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "read")
    manifest = export(tmp_path / "read", "hf", tmp_path / "out")
    assert manifest["architecture"] == type(model).__name__
    x = torch.randint(19, (2, 20))
    with torch.no_grad():
        difference = stock(tmp_path / "out", kind)(x).logits - model(x).logits
    assert difference.abs().max() < 1e-4


def test_it_loads_where_this_library_is_absent(tmp_path, monkeypatch):
    lm = saved(tmp_path / "run")
    export(tmp_path / "run", "hf", tmp_path / "out")
    _, tokenizer, _ = folder.load(tmp_path / "run")
    with monkeypatch.context() as patch, torch.no_grad():
        for name in [name for name in sys.modules if name.split(".")[0] == "suffice"]:
            patch.setitem(sys.modules, name, None)  # importing it fails
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(
            "the question."
        ).input_ids
        logits = model(torch.tensor([ids])).logits
    assert type(model) is transformers.LlamaForCausalLM
    assert ids == tokenizer.encode("the question.")
    assert (logits - lm(torch.tensor([ids]))).abs().max() < 1e-4


def test_a_folder_of_a_classifier_is_opened(tmp_path):
    model = pictures()
    source = Source(model=model, kind="vit")
    save(tmp_path / "run", model, source, Certificate(layers=()))
    manifest = export(tmp_path / "run", "hf", tmp_path / "out")
    assert (manifest["model"], manifest["source"]) == ("image classifier", "image classifier")
    assert manifest["positions"].startswith("patches are read row by row")
    assert "length" not in manifest
    with torch.no_grad():
        found = stock(tmp_path / "out", "vit")(inputs(model)).logits
    assert (found - model(inputs(model))).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["specs"].pop(), "the sizes and specs do not fit each other"),
        (
            lambda c: c.pop("model"),
            "config.json does not describe a model of kind 'image classifier'",
        ),
        (lambda c: c["specs"][0].update(num_heads=1), "was written with another config.json"),
    ],
)
def test_a_folder_of_a_classifier_that_does_not_fit(change, message, tmp_path):
    model = pictures()
    save(tmp_path, model, Source(model=model, kind="vit"), Certificate(layers=()))
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        export(tmp_path, "hf", tmp_path / "out")


NO_CLASS = {
    "features": (language(preset("linear", 32, 4, causal=True)), "layer 0 has kernel=Elu"),
    "alignment": (
        language(preset("super_attention", 32, 4, length=80, causal=True)),
        "layer 0 has mixing=Alignment",
    ),
    "past": (language(preset("infini", 32, 4, segment=8)), "layer 0 has past=Infini"),
    "alibi": (language(replace(SPEC, position=Alibi())), "layer 0 has position=Alibi"),
    "rms": (language(norm="rms"), "norm='rms', not 'layer'"),
    "norms behind": (
        language(residual="both"),
        "residual='both', not 'pre'",
    ),
    "biases beside norms behind": (
        language(GROUPED, **NEWER | {"bias": True}),
        "bias=True, not False",
    ),
    "norms behind, heads": (
        language(
            AttentionSpec(d_model=32, num_heads=3, head_dim=8, pattern=Causal(), position=Rope()),
            **NEWER,
        ),
        "residual='both'",
    ),
    "caps that differ": (
        language([CAPPED, replace(CAPPED, kernel=Softmax())], **NEWER),
        "layer 1 has kernel=Softmax.*cap=1.5",
    ),
    "windows behind": (
        language(replace(WHOLE, pattern=NEAR), **OUT),
        "layer 0 has pattern=.*Window",
    ),
    "keys behind": (
        language([WHOLE, replace(WHOLE, num_kv_heads=1)], **OUT),
        "layer 1 has kv_heads=1, not 2",
    ),
    "parallel": (language(residual="parallel"), "residual='parallel', not 'pre'"),
    "bias of the head": (
        language(tied=False, head_bias=True),
        "head_bias=True, not False",
    ),
    "cap": (language(logit_cap=2.0), "logit_cap=2.0, not None"),
    "window": (language(replace(SPEC, pattern=NEAR)), "layer 0 has pattern=.*Window"),
    "pattern": (
        language(replace(SPEC, pattern=Block(4) & Causal())),
        "layer 0 has pattern=.*Block",
    ),
    "widths": (
        language(replace(SPEC, head_dim=12, encoder=Standard())),
        "layer 0 has head_width=12, not 8",
    ),
    "heads": (
        language([SPEC, replace(SPEC, num_heads=2)]),
        "layer 1 has num_heads=2, not 4",
    ),
    "frequencies": (
        language([TURNING, scaled(None)], **ROTARY),
        "layer 1 has position=Rope.*theta=500.0",
    ),
    "some normalised": (
        language([NORMED, replace(NORMED, norm=NoNorm())], **ROTARY),
        "layer 0 has norm=HeadRMS",
    ),
    "normalised by another eps": (
        language(replace(NORMED, norm=HeadRMS(0.1)), **ROTARY),
        "layer 0 has norm=HeadRMS.*eps=0.1",
    ),
    "normalised partly": (
        language(replace(NORMED, position=Rope(features=4)), **ROTARY),
        "layer 0 has position=Rope.*features=4",
    ),
    "shared": (
        language(share([replace(TURNING, num_kv_heads=2)] * 2, 2), **ROTARY),
        "layer 1 has shares=0",
    ),
    "shared expert": (
        language(GROUPED, **MIXED | {"experts": replace(EXPERTS, shared_width=8)}),
        "experts=Experts.*shared_width=8",
    ),
    "experts, some windows": (
        language([GROUPED, replace(GROUPED, pattern=NEAR)], **MIXED),
        "experts=Experts",
    ),
    "mean": (classifier(), "pooling='mean', not 'first'"),
    "tanh": (bert(activation="tanh"), "activation='tanh'"),
    "turning pictures": (
        pictures(AttentionSpec(d_model=32, num_heads=4, position=Rope())),
        "layer 0 has position=Rope",
    ),
}


@pytest.mark.parametrize("name", NO_CLASS)
def test_models_that_no_class_computes_are_refused(name):
    model, message = NO_CLASS[name]
    with pytest.raises(ConfigError, match=message):
        config_of(model)


def test_biases_that_a_class_lacks_are_refused(tmp_path):
    lm = language(replace(PARTLY, bias=True), **ROTARY | {"norm": "layer"})
    folder.save(tmp_path / "run", lm, *folder_tokenizer())
    with pytest.raises(ConfigError, match="o_proj.bias is not zero"):
        export(tmp_path / "run", "hf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_norms_beside_each_other_that_a_class_has_once_are_refused(tmp_path):
    lm = language(PARTLY, **ROTARY | {"norm": "layer", "residual": "parallel"})
    folder.save(tmp_path / "run", lm, *folder_tokenizer())
    with pytest.raises(ConfigError, match="mlp_norm.weight differs from another tensor"):
        export(tmp_path / "run", "hf", tmp_path / "out")


def folder_tokenizer():
    from suffice.text import Characters

    return (Characters.of([TEXT]),)


def test_a_scaling_of_ones_own_is_refused():
    @dataclass(frozen=True)
    class Own(Scaling):
        def frequencies(self, theta, features):
            return torch.ones(features // 2)

    try:
        with pytest.raises(ConfigError, match="Own"):
            rope_parameters(Rope(scaling=Own()), 8, 32)
    finally:
        del Scaling.table["Own"]


def test_an_export_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    saved(tmp_path / "run")

    def wrong(model, config):
        made = stock_model(model, config)
        made.blocks[0].attention.q_proj.weight.add_(0.1)
        return made

    monkeypatch.setattr(exporting, "stock_model", wrong)
    with pytest.raises(CheckpointError, match="does not compute the same"):
        export(tmp_path / "run", "hf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_unknown_format_is_refused(tmp_path):
    for form, legal in (("gguf", "export_gguf"), ("gguff", "hf, onnx")):
        with pytest.raises(ConfigError, match=f"format '{form}'.*{legal}"):
            export(tmp_path, form, tmp_path / "out")
    assert Path(tmp_path / "out").exists() is False
