"""Checkpoints of transformers become models with equal logits, and their tensors come back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import suffice
from suffice.convert.sources import ARCHITECTURES, open_source, tensors_for
from suffice.errors import CheckpointError, ConfigError
from suffice.models.architectures.architecture import ConfigReader
from suffice.models.architectures.hugging_face import READ
from suffice.models.architectures.rope import read_rope
from suffice.patterns import Causal, Window
from suffice.positions import Rope
from suffice.testing import assert_close, drawn

pytest.importorskip("transformers")

from benchmarks.released import (  # noqa: E402 - they need transformers
    answer,
    cases,
    inputs,
    saved,
    written_back,
)

CASES = cases()
NORM = "model.norm.weight"


@pytest.mark.parametrize("name", CASES)
def test_logits_are_equal_both_ways(name, tmp_path):
    theirs, x = saved(name, tmp_path), inputs(name)
    ours = open_source(tmp_path)
    assert ours.kind == theirs.config.model_type
    assert not ours.model.training
    with torch.no_grad():
        wanted = answer(theirs, x)
        assert (ours.model(x) - wanted).abs().max() < 1e-4
        again = written_back(ours.model, theirs, tmp_path)
        assert (ours.model(x) - answer(again, x)).abs().max() < 1e-4
        assert (answer(again, x) - wanted).abs().max() > 1e-2


def test_every_architecture_has_a_case():
    assert {kind.__name__ for kind, _ in CASES.values()} >= {one.class_name for one in READ}


def test_a_decoder_is_described_in_one_file():
    sources = [path.read_text("utf-8") for path in Path(suffice.__file__).parent.rglob("*.py")]
    for name in (one.class_name for one in READ if one.class_name.endswith("ForCausalLM")):
        assert sum(name in text for text in sources) == 1, name


def test_a_sentence_encoder_pools_as_its_folder_says(tmp_path):
    theirs, x = saved("bert-bare", tmp_path), inputs("bert")
    (tmp_path / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with torch.no_grad():
        wanted = theirs(x).last_hidden_state[:, 0]
        assert (open_source(tmp_path).model(x) - wanted).abs().max() < 1e-4
    both = dict.fromkeys(modes, True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(both))
    with pytest.raises(CheckpointError, match="pooling_mode_cls_token and pooling_mode_mean_tok"):
        open_source(tmp_path)


def test_an_older_file_counts_its_classes_beside_the_names_of_two(tmp_path):
    theirs, x = saved("bert", tmp_path), inputs("bert")
    changed(tmp_path, num_labels=3, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    with torch.no_grad():
        wanted = type(theirs).from_pretrained(tmp_path).eval()(x).logits
        assert wanted.shape == (2, 3)
        assert (open_source(tmp_path).model(x) - wanted).abs().max() < 1e-4


def test_a_model_without_a_head_must_tie_it(tmp_path):
    saved("gpt2-bare", tmp_path)
    changed(tmp_path, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="holds a GPT2Model; of gpt2 only GPT2LMHeadModel is"):
        open_source(tmp_path)


def test_shards_are_read(tmp_path):
    theirs, x = saved("llama", tmp_path, max_shard_size="20KB"), inputs("llama")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.no_grad():
        assert (open_source(tmp_path).model(x) - theirs(x).logits).abs().max() < 1e-4


def changed(folder, **entries):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not Ellipsis}))


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_weights_without_a_head_are_read(tmp_path):
    theirs, x = saved("gpt2", tmp_path), inputs("gpt2")

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)

    rewritten(tmp_path, strip)
    with torch.no_grad():
        assert (open_source(tmp_path).model(x) - theirs(x).logits).abs().max() < 1e-4


def test_a_saved_head_must_equal_the_embedding_it_is_tied_to(tmp_path):
    saved("gpt2", tmp_path)

    def add(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()

    rewritten(tmp_path, add)
    assert open_source(tmp_path).model.head is None

    def differ(tensors):
        tensors["lm_head.weight"][0, 0] += 1

    rewritten(tmp_path, differ)
    with pytest.raises(CheckpointError, match="ties the head to the embedding and their weights"):
        open_source(tmp_path)


def test_older_words_for_rotary_positions():
    older = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    found = read_rope(ConfigReader({**older, "partial_rotary_factor": 0.5}, "f"), 8)
    assert (found.theta, found.features, found.scaling.factor) == (500.0, 4, 2.0)
    assert read_rope(ConfigReader({"rope_scaling": None}, "f"), 8) == Rope()
    yarn = {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5, "truncate": False}
    made = read_rope(ConfigReader({"rope_parameters": yarn, "max_position_embeddings": 32}, "f"), 8)
    assert (made.scaling.length, made.scaling.attention_factor) == (32, 1.5)


BAD = [  # a case, its entries, and what the error names where that is not the first entry
    ("llama", {"model_type": "mamba"}, "'mamba'"),
    ("bert", {"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
    ("llama", {"hidden_act": "relu2"}),
    ("stablelm", {"use_parallel_residual": "x"}),
    ("llama", {"is_causal": False}),
    ("phi", {"is_causal": False}),
    ("cohere", {"use_qk_norm": 2}),
    ("gpt_neox", {"head_dim": 16}),
    ("phi", {"qk_layernorm": True}),
    ("phi", {"tie_word_embeddings": True}),
    ("cohere", {"logit_scale": -1.0}),
    ("granite_swa", {"layer_rope_theta": [0, 1]}),
    ("llama", {"hidden_size": 0}),
    ("llama", {"rms_norm_eps": "x"}),
    ("llama", {"num_attention_heads": 5, "head_dim": None}),
    ("gpt2", {"n_head": 5}),
    ("bert", {"num_attention_heads": 5}),
    ("vit", {"num_attention_heads": 5}),
    ("qwen2-windows", {"layer_types": ["full_attention", "chunked"]}),
    (
        "smollm3",
        {
            "use_sliding_window": False,
            "sliding_window": 3,
            "layer_types": ["sliding_attention"] * 2,
        },
    ),
    (
        "stablelm",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
        "partial_rotary_factor=0.4",
    ),
    ("llama", {"attn_implementation": "suffice_w8"}, "suffice_w8"),
    ("smollm3", {"no_rope_layers": [1]}),
    ("llama", {"rope_parameters": {"rope_type": "odd", "factor": 2.0}}, "'odd'"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, "x"]}},
        "short_factor=",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
        "1 factors for 4",
    ),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
    ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("gemma3", {"attn_logit_softcapping": 2.0}),
    ("gemma2", {"final_logit_softcapping": 0.0}, "logit_cap=0.0"),
    ("gemma2", {"query_pre_attn_scalar": 0}),
    ("gemma2", {"use_bidirectional_attention": True}),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
        "mscale=0.7",
    ),
    ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ("gpt_oss", {"num_experts_per_tok": 9}, "top_k=9"),
    ("gpt_oss", {"swiglu_limit": -1.0}, "limit=-1.0"),
    ("gpt_oss", {"num_local_experts": 4}, r"router.weight.*\[5, 32\].*\[4, 32\]"),
    ("qwen3_moe", {"mlp_only_layers": ["x"]}),
    ("deepseek_v3", {"first_k_dense_replace": -1}),
    ("deepseek_v3", {"n_group": 2}, "groups=2"),
    ("deepseek_v3", {"num_key_value_heads": 2}),
    ("deepseek_v3", {"scoring_func": "softmax"}),
    ("qwen3_5", {"layer_types": ["linear_attention"]}),
    ("llama", {"layer_types": ["x"] * 3}),
    ("qwen3_moe", {"mlp_layer_types": 7}),
    ("qwen3_next-dense", {"mlp_only_layers": [0, 2]}, "layer 1"),
    ("qwen3_next-dense", {"mlp_only_layers": 4}),
    ("qwen3_5", {"linear_num_value_heads": 3}),
    ("qwen3_5", {"linear_value_head_dim": 8}),
    ("qwen3_moe", {"mlp_only_layers": [0, 1]}, "no block with experts"),
    ("llama", {"intermediate_size": 47}, "48.*47"),
    ("llama", {"num_hidden_layers": 1}, "layers.1.input_layernorm.weight.* 5 more"),
    ("gpt2", {"layer_norm_epsilon": 10**400}),
    (
        "phi3",
        {"rope_parameters": {"partial_rotary_factor": float("nan")}},
        "partial_rotary_factor=nan",
    ),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "rope_parameters=.*rope_scaling=",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "attention_factor": "x"}},
        "attention_factor='x'",
    ),
    ("llama", {"attention_bias": "no"}),
    ("bert", {"layer_norm_eps": -1.0}, "eps=-1.0"),
    ("vit", {"layer_norm_eps": 0}, "eps=0.0"),
    ("qwen2", {"max_window_layers": "x"}),
    ("qwen2", {"layer_types": [[], {}]}),
    ("llama", {"architectures": 5}),
    ("llama", {"architectures": {"a": 1}}),
    ("bert", {"type_vocab_size": 1}, r"token_type_embeddings.weight.*\[2, 32\].*\[1, 32\]"),
    ("gpt2", {"n_layer": 1 << 62}),
    ("llama", {"vocab_size": 1 << 62}, "sizes"),
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function that returns the folder of a case, which is made once and must not be changed."""
    folders = {}

    def folder(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            saved(name, folders[name])
        return folders[name]

    return folder


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0]}-{','.join(case[1])}")
def test_unsupported_configurations_are_refused(case, folder_of, tmp_path):
    name, entries, *named = case
    shutil.copytree(folder_of(name), tmp_path, dirs_exist_ok=True)
    changed(tmp_path, **{k: ... if v is None else v for k, v in entries.items()})
    with pytest.raises(
        (CheckpointError, ConfigError), match=(*named, f"{next(iter(entries))}=")[0]
    ):
        open_source(tmp_path)


ACTIVATIONS = {"hidden_act", "hidden_activation", "activation_function", "activation"}


@pytest.mark.parametrize("name", {kind: name for name, (kind, _) in CASES.items()}.values())
def test_another_activation_is_refused(name, tmp_path):
    keys = ACTIVATIONS & saved(name, tmp_path).config.to_dict().keys()
    changed(tmp_path, **dict.fromkeys(keys, "prelu"))
    with pytest.raises((CheckpointError, ConfigError), match="'prelu'"):
        open_source(tmp_path)


ABSENT = {
    "share": ("stablelm", ["rope_parameters"], {}),
    "theta-helium": ("helium", ["rope_parameters"], {}),
    "theta-smollm3": ("smollm3", ["rope_parameters"], {}),
    "granite_swa": ("granite_swa", ["layer_rope_theta", "layer_types", "sliding_window"], {}),
    "theta-cohere": ("cohere", ["rope_parameters", "logit_scale"], {}),
    "cohere2": ("cohere2", ["rope_parameters", "layer_types"], {}),
    "cohere2-regular": ("cohere2", ["layer_types"], {"sliding_window_pattern": 2}),
    "gpt_neox": (
        "gpt_neox",
        ["rope_parameters", "use_parallel_residual", "attention_bias", "layer_norm_eps"],
        {},
    ),
    "gpt_neox-older": (
        "gpt_neox",
        ["rope_parameters", "hidden_act", "tie_word_embeddings"],
        {"rotary_pct": 0.5, "rotary_emb_base": 50.0},
    ),
    "share-phi": ("phi", ["rope_parameters", "layer_norm_eps", "hidden_act"], {}),
    "turns": ("smollm3", ["no_rope_layers", "layer_types"], {"no_rope_layer_interval": 2}),
    "windows-unturned": (
        "smollm3",
        ["layer_types"],
        {"use_sliding_window": True, "sliding_window": 5},
    ),
    "late-windows": (
        "qwen2",
        ["layer_types", "max_window_layers"],
        {"use_sliding_window": True, "sliding_window": 5},
    ),
    "windows-from-a-layer": ("qwen2-windows", ["layer_types"], {}),
    "gpt_oss": (
        "gpt_oss-defaults",
        ["rope_parameters", "attention_bias", "layer_types", "sliding_window", "swiglu_limit"]
        + ["swiglu_alpha", "num_experts_per_tok"],
        {},
    ),
    "older-gpt_oss": (
        "gpt_oss-defaults",
        ["rope_parameters"],
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "truncate": False,
                "original_max_position_embeddings": 16,
            },
            "rope_theta": 150_000,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        ["rope_parameters", "rope_interleave", "norm_topk_prob", "routed_scaling_factor"]
        + ["n_shared_experts", "attention_bias", "rms_norm_eps", "num_nextn_predict_layers"],
        {},
    ),
    "older-qwen3_moe": (
        "qwen3_moe",
        ["num_local_experts", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"],
        {"num_experts": 4},
    ),
    "unused-windows": ("qwen2", ["use_sliding_window"], {"sliding_window": 5}),
    "no-windows": ("llama", [], {"sliding_window": 5, "use_sliding_window": True}),
    "equal-windows": ("mistral", [], {"sliding_window": 5, "use_sliding_window": False}),
    "every-token": ("mistral", [], {"sliding_window": None}),
}


# their defaults follow from other entries
DERIVED = {"head_dim", "num_key_value_heads", "num_labels", "n_inner", "q_lora_rank"}
DERIVED |= {"original_max_position_embeddings", "sliding_window", "layer_types", "embedding_size"}
DERIVED |= {"attention_bias", "use_parallel_residual"}  # filled in before, see "gpt_neox" above


@pytest.mark.parametrize("name", {kind: name for name, (kind, _) in CASES.items()}.values())
def test_defaults_are_those_of_the_class(name, tmp_path, monkeypatch):
    usual, read = type(saved(name, tmp_path).config)(), {}
    value_of = ConfigReader._value

    def record(self, name, default):
        read.setdefault(name, default)
        return value_of(self, name, default)

    monkeypatch.setattr(ConfigReader, "_value", record)
    open_source(tmp_path)
    ours = {key: value for key, value in read.items() if value is not None}
    shared = {key for key in ours.keys() - DERIVED if getattr(usual, key, None) is not None}
    assert {key: ours[key] for key in shared} == {key: getattr(usual, key) for key in shared}


@pytest.mark.parametrize("case", ABSENT)
def test_absent_entries_have_the_defaults_of_their_class(case, tmp_path):
    name, absent, entries = ABSENT[case]
    theirs, x = saved(name, tmp_path), inputs(name)
    with torch.no_grad():
        changed(tmp_path, **dict.fromkeys(absent, ...), **entries)
        wanted = type(theirs).from_pretrained(tmp_path).eval()(x).logits
        assert (open_source(tmp_path).model(x) - wanted).abs().max() < 1e-4


def test_a_mistral_without_an_entry_has_its_default_window(tmp_path):
    saved("mistral", tmp_path)
    changed(tmp_path, sliding_window=...)
    assert {str(spec.pattern) for spec in open_source(tmp_path).model.specs} == {
        str(Window(4096) & Causal())
    }


def test_weights_that_are_no_floating_point(tmp_path):
    saved("llama", tmp_path)
    rewritten(tmp_path, lambda held: held.update({NORM: held[NORM].long()}))
    with pytest.raises(CheckpointError, match="'model.norm.weight' holds torch.int64, and weights"):
        open_source(tmp_path)


def test_weights_too_large_for_float32(tmp_path):
    saved("llama", tmp_path)
    rewritten(tmp_path, lambda held: held.update({NORM: held[NORM].double() + 1e300}))
    with pytest.raises(CheckpointError, match="holds NaN or infinity in 'model.norm.weight'"):
        open_source(tmp_path)


def test_a_missing_tensor_is_named(tmp_path):
    saved("llama", tmp_path)
    rewritten(tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match="'model.norm.weight' is missing"):
        open_source(tmp_path)


def test_a_model_of_another_architecture_is_not_written(tmp_path):
    saved("gpt2", tmp_path / "gpt2")
    saved("vit-unbiased", tmp_path / "vit")
    old = open_source(tmp_path / "gpt2").model
    with pytest.raises(ConfigError, match="not the llama"):
        tensors_for(old, {**CASES["llama"][1].to_dict(), "model_type": "llama"})
    with pytest.raises(CheckpointError, match="the architecture None is not read"):
        tensors_for(old, {})
    picture = drawn(open_source(tmp_path / "vit").model, seed=1)
    torch.nn.init.ones_(picture.blocks[0].attention.k_proj.bias)
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"blocks.0.attention.\w_proj.bias"):
        tensors_for(picture, config)


def test_blocks_that_draft_are_not_read(tmp_path):
    theirs, x = saved("deepseek_v3", tmp_path), inputs("deepseek_v3")

    def add(tensors):
        tensors |= {
            name.replace(".2.", ".3."): tensor + 1.0
            for name, tensor in tensors.items()
            if name.startswith("model.layers.2.")
        }
        tensors["model.layers.3.eh_proj.weight"] = torch.ones(32, 64)

    rewritten(tmp_path, add)
    with torch.no_grad():
        assert (open_source(tmp_path).model(x) - theirs(x).logits).abs().max() < 1e-4
    changed(tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match="'model.layers.3.eh_proj.weight' is not expected"):
        open_source(tmp_path)


def test_layers_with_windows_need_their_size(tmp_path):
    saved("gemma2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sliding_window": None}))
    with pytest.raises(ConfigError, match="sliding_window=None"):
        open_source(tmp_path)


def test_bases_of_an_older_gemma3(tmp_path):
    theirs, x = saved("gemma3", tmp_path), inputs("gemma3")
    older = {"rope_theta": 300.0, "rope_local_base_freq": 20.0}
    older |= {"rope_scaling": {"type": "linear", "factor": 4.0}}
    changed(tmp_path, rope_parameters=..., layer_types=..., sliding_window_pattern=6, **older)
    windows = [5] * 5 + [None] + [5]
    ours = open_source(tmp_path).model
    assert ours.specs[5].pattern == Causal()
    for spec, window in zip(ours.specs, windows, strict=True):
        assert spec.position.theta == (300.0 if window is None else 20.0)
    with torch.no_grad():
        assert (ours(x) - theirs(x).logits).abs().max() < 1e-4


@pytest.mark.parametrize(
    "name",
    ["gemma2", "gemma3", "cohere-normed", "cohere2", "gpt_neox", "gpt_oss", "mixtral", "olmo2"]
    + ["phi", "qwen3_moe", "deepseek_v3", "qwen3_5-biased-tied", "qwen3_next-dense"],
)
def test_what_is_read_streams_as_it_reads_whole(name, tmp_path):
    saved(name, tmp_path)
    ours, x = open_source(tmp_path).model, inputs(name)
    with torch.no_grad():
        state = ours.state()
        parts = [ours(part, state=state) for part in x.split([7, 1, 1, 11], dim=1)]
        assert (torch.cat(parts, dim=1) - ours(x)).abs().max() < 1e-5


@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "smollm3",
        "granite",
        "granite_swa",
        "gemma",
        "gemma2",
        "gemma3_text",
        "helium",
        "phi3",
        "stablelm",
        "olmo2",
        "cohere",
        "cohere2",
        "gpt_oss",
        "mixtral",
        "qwen3_moe",
    ],
)
def test_a_missing_number_of_key_value_heads_is_that_of_their_class(kind):
    sizes = {
        "vocab_size": 9,
        "hidden_size": 1280,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 160,
        "head_dim": 8,
        **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos")},
    }
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(kind, **sizes)
    config = theirs.to_dict()
    del config["num_key_value_heads"]
    ours = ARCHITECTURES[kind].build(ConfigReader(config, "config.json"))
    assert ours.specs[0].kv_heads == theirs.num_key_value_heads
    null = config | {"num_key_value_heads": None}
    assert ARCHITECTURES[kind].build(ConfigReader(null, "config.json")).specs[0].kv_heads == 160


@torch.no_grad()
def test_positions_of_roberta_count_what_the_mask_names(tmp_path):
    """transformers skips its padding token; they agree wherever the mask names it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.RobertaConfig(**sizes, num_attention_heads=4, num_labels=3)
    theirs = drawn(transformers.RobertaForSequenceClassification(config), seed=1).eval()
    theirs.save_pretrained(tmp_path)
    ours, tokens = open_source(tmp_path).model.eval(), torch.randint(3, 40, (2, 9))
    tokens[0, 6:] = config.pad_token_id
    valid = tokens != config.pad_token_id
    assert_close(ours(tokens, valid), theirs(tokens, attention_mask=valid.long()).logits, n=64)
    read_as_text = (ours(tokens) - theirs(tokens).logits).abs().amax(dim=1)
    assert read_as_text[0] > 1e-5
    assert read_as_text[1] < 1e-5
