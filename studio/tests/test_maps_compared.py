"""Maps of stock models of transformers, of generated text, and of two models on one input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from studio.tests.models import picture, write_lm, write_vit
from studio.tests.test_attention_maps import numbers
from suffice.convert import convert
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.layers import Attention
from suffice.models import folder
from suffice.models.architectures import hugging_face
from suffice_studio.attention_maps import MapServer, load_model, read_input

transformers = pytest.importorskip("transformers")

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "##s",
    "dog",
)
SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 24}
TEXT = "the cats sat on the mat"
LLAMA = SIZES | {"max_position_embeddings": 32, "pad_token_id": None, "bos_token_id": 2}
LLAMA |= {"eos_token_id": None, "num_key_value_heads": 1}
VIT = {name: size for name, size in SIZES.items() if name != "vocab_size"}
VIT |= {"image_size": 8, "patch_size": 2, "num_channels": 3}
DELTA = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8}
DELTA |= {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}


def write_stock(path, kind, **sizes):
    torch.manual_seed(0)
    kind = getattr(transformers, kind)
    network = kind(kind.config_class(**sizes))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(path)
    if "vocab_size" in sizes:
        (path / "vocab.txt").write_text("\n".join(WORDS))
        transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of stock models, of ours, and of a conversion."""
    root = tmp_path_factory.mktemp("checkpoints")
    write_stock(root / "llama", "LlamaForCausalLM", **LLAMA)
    write_stock(root / "bert", "BertForMaskedLM", **SIZES)
    write_stock(root / "hybrid", "Qwen3_5ForCausalLM", **LLAMA | DELTA)
    vit = write_stock(root / "vit", "ViTForImageClassification", **VIT)
    moments = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}
    (vit / "preprocessor_config.json").write_text(json.dumps(moments))
    write_lm(root / "letters")
    write_lm(root / "window", "sliding_window", window=3)
    write_lm(root / "linear", "linear")
    write_lm(root / "delta", "deltanet")
    write_vit(root / "pictures", channels=3)
    model = hugging_face.read(root / "llama", hugging_face.read_config(root / "llama"))
    folder.save(root / "kept", model)
    folder.save(root / "converted", convert(model, "window:2", naive=True).model)
    return root


@pytest.fixture
def maps(root):
    return MapServer(root)


def eager_maps(path, *inputs):
    kind = getattr(transformers, json.loads((path / "config.json").read_text())["architectures"][0])
    network = kind.from_pretrained(path, attn_implementation="eager")
    with torch.no_grad():
        return network(*inputs, output_attentions=True).attentions


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_stock_models_have_the_maps_of_transformers(maps, name):
    request = {"checkpoint": name, "text": TEXT}
    described = maps.checkpoint(request)
    assert (described["reads"], len(described["layers"])) == ("text", 2)
    assert "of transformers" in described["layers"][0]
    assert described["generates"] == (name == "llama")
    labels = maps.overview(request)["labels"]
    assert labels == ("[CLS]", " the", " cat", "s", " sat", " on", " the", " mat", " [SEP]")
    words = ("[CLS]", "the", "cat", "##s", "sat", "on", "the", "mat", "[SEP]")
    ids = torch.tensor([[WORDS.index(word) for word in words]])
    for layer, weights in enumerate(eager_maps(maps.root / name, ids)):
        for head in range(2):
            shown = numbers(maps.head(request | {"layer": layer, "head": head}))
            assert np.abs(shown - weights[0, head].numpy()).max() <= 1e-6


def test_a_stock_vit_reads_pixels_as_it_was_trained(maps):
    request = {"checkpoint": "vit", "image": picture()}
    described = maps.checkpoint(request)
    assert (described["reads"], described["image_size"], described["trained"]) == ("image", 8, True)
    overview = maps.overview(request)
    assert (overview["grid"], overview["extra"], len(overview["labels"])) == (4, 1, 17)
    assert overview["labels"][:2] == ("class token", "row 0, column 0")
    plain = read_input(load_model(maps.root / "vit"), request | {"scaling": "plain"}).inputs
    mean, std = (torch.tensor(m)[:, None, None] for m in ([0.5, 0.4, 0.3], [0.2, 0.25, 0.5]))
    pixels = ((plain + 1) / 2 - mean) / std
    weights = eager_maps(maps.root / "vit", pixels)[1][0, 1]
    shown = numbers(maps.head(request | {"layer": 1, "head": 1}))
    assert np.abs(shown - weights.numpy()).max() <= 1e-5


@pytest.mark.parametrize("name", ["vit", "pictures"])
def test_a_label_names_the_pixels_of_its_patch(maps, name):
    loaded = load_model(maps.root / name)
    overview = maps.overview({"checkpoint": name, "image": picture()})
    network, tokens = loaded.network, []
    first = next(
        module
        for module in network.modules()
        if isinstance(module, Attention) or type(module).__name__ == "ViTAttention"
    )
    first.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    for row, column in ((0, 0), (1, 2), (3, 1)):
        image = torch.zeros(1, 3, 8, 8)
        network(image)
        image[..., 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 1.0
        network(image)
        black, white = tokens[-2:]
        (changed,) = (black != white).any(dim=2)[0].nonzero().flatten().tolist()
        assert overview["labels"][changed] == f"row {row}, column {column}"


@pytest.mark.parametrize("name", ["llama", "letters", "window"])
def test_generated_tokens_follow_the_prompt(maps, name):
    text = TEXT if name == "llama" else "abc"
    request = {"checkpoint": name, "text": text, "new_tokens": 6}
    prompt = maps.overview(request | {"new_tokens": 0})
    overview = maps.overview(request)
    assert (prompt["generated"], overview["generated"]) == (0, 6)
    assert overview["labels"][:-6] == prompt["labels"]
    loaded, length = load_model(maps.root / name), len(prompt["labels"])
    ids = read_input(loaded, request).inputs
    with torch.no_grad():
        logits = loaded.network(ids)
    logits = logits if torch.is_tensor(logits) else logits.logits
    assert torch.equal(logits[0, length - 1 : -1].argmax(dim=-1), ids[0, length:])
    shown = numbers(maps.head(request | {"layer": 1, "head": 0}))
    assert not np.triu(shown, 1).any()
    assert np.allclose(shown.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "letters", "delta", "pictures"])
def test_a_model_differs_from_itself_by_nothing(maps, name):
    texts = {"llama": TEXT, "letters": "abc, def", "delta": "abc, def"}
    request = {"checkpoint": name, "against": name, "text": texts.get(name), "image": picture()}
    overview = maps.overview(request)
    assert overview["maps"] == ("effective",)
    assert [layer["variation"] for layer in overview["layers"]] == [[0.0, 0.0]] * 2
    head = maps.head(request | {"layer": 1, "head": 0, "which": "effective"})
    assert head["against"]["values"] == head["values"]
    assert not numbers(head["difference"]).any()


def test_a_conversion_that_keeps_the_model_has_its_maps(maps):
    request = {"checkpoint": "llama", "against": "kept", "text": TEXT}
    for layer in maps.overview(request)["layers"]:
        assert max(layer["variation"]) < 1e-6


def test_a_window_moves_the_weight_of_earlier_keys(maps):
    request = {"checkpoint": "llama", "against": "converted", "text": TEXT}
    head = maps.head(request | {"layer": 0, "head": 1, "which": "effective"})
    before, after = numbers(head), numbers(head["against"])
    assert np.allclose(numbers(head["difference"]), before - after, atol=1e-7)
    hidden = (after == 0) & (before > 0)  # by the window, which keeps sinks
    lost = (before * hidden).sum(axis=1)  # the first layer reads the same inputs
    assert (lost[-2:] > 0.01).all()
    variation = np.abs(numbers(head["difference"])).sum(axis=1) / 2
    assert np.allclose(variation, lost, atol=1e-6)
    moved = maps.overview(request)["layers"][0]["variation"][1]
    assert moved == pytest.approx(lost.mean(), abs=1e-6)
    generated = maps.overview(request | {"new_tokens": 3})
    assert generated["generated"] == 3


def test_layers_without_a_softmax(maps):
    request = {"text": "abc, def", "layer": 0, "head": 0}
    linear = maps.head(request | {"checkpoint": "linear"})
    assert np.allclose(linear["sums"], 1.0, atol=1e-6)
    assert "no softmax" not in maps.checkpoint({"checkpoint": "linear"})["layers"][0]
    assert "no softmax" in maps.checkpoint({"checkpoint": "delta"})["layers"][0]
    assert not np.triu(numbers(maps.head(request | {"checkpoint": "delta"})), 1).any()
    hybrid = maps.overview({"checkpoint": "hybrid", "text": TEXT})
    assert [layer["name"] for layer in hybrid["layers"]] == ["model.layers.1.self_attn"]
    assert len(maps.checkpoint({"checkpoint": "hybrid"})["layers"]) == 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"new_tokens": -1}, "-1"),
        ({"new_tokens": True}, "True"),
        ({"new_tokens": 30}, "33 tokens"),
        ({"checkpoint": "bert", "text": TEXT, "new_tokens": 2}, "BertForMaskedLM"),
        ({"checkpoint": "bert", "text": "cat \ud800"}, "surrogate"),
        ({"checkpoint": "pictures", "against": "letters", "image": picture()}, "image_size"),
        ({"against": "llama"}, "vocabulary_size"),
        ({"against": "absent"}, "absent"),
        ({"against": "window", "which": "weights"}, "effective"),
        ({"against": "../letters"}, "../letters"),
    ],
)
def test_wrong_requests_are_refused(maps, changed, named):
    request = {"checkpoint": "letters", "text": "abc", "layer": 0, "head": 0, "which": "effective"}
    with pytest.raises(DataError, match=named):
        maps.head(request | changed)


def test_stock_models_that_have_no_map_are_refused(tmp_path):
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 4}
    write_stock(tmp_path / "mamba", "Mamba2ForCausalLM", **sizes, head_dim=8, n_groups=1)
    with pytest.raises(DataError, match="no layer"):
        MapServer(tmp_path).overview({"checkpoint": "mamba", "text": TEXT})
    write_stock(
        tmp_path / "t5", "T5ForConditionalGeneration", vocab_size=12, d_model=8, num_layers=1
    )
    with pytest.raises(CheckpointError, match="t5"):
        load_model(tmp_path / "t5")


def test_damaged_stock_models_are_refused(tmp_path):
    path = write_stock(tmp_path / "llama", "LlamaForCausalLM", **LLAMA)
    config = json.loads((path / "config.json").read_text())
    for name, value, named in (
        ("architectures", ["NoSuchModel"], "NoSuchModel"),
        ("architectures", ["pipeline"], "pipeline"),
        ("architectures", "LlamaForCausalLM", "LlamaForCausalLM"),
        ("num_hidden_layers", 3, "model.layers.2"),
        ("hidden_size", 24, "mismatch"),
    ):
        (path / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises((CheckpointError, ConfigError), match=named):
            load_model(path)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").rename(path / "other")
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError, match="llama"):
        load_model(path)


def test_a_snapshot_of_the_hub_whose_files_are_links_is_opened(tmp_path):
    path = write_stock(tmp_path / "llama", "LlamaForCausalLM", **LLAMA)
    snapshot = tmp_path / "models--org--llama" / "snapshots" / "0"
    blobs = tmp_path / "models--org--llama" / "blobs"
    snapshot.mkdir(parents=True)
    path.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    maps = MapServer(snapshot)
    assert maps.checkpoints({})["checkpoints"] == ["."]
    assert len(maps.overview({"checkpoint": ".", "text": TEXT})["layers"]) == 2
