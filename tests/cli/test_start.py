"""Comparisons on a table whose trainings start from a pretrained encoder of transformers."""

from __future__ import annotations

import json
import lzma
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import tokenizers
import torch

import suffice as library
from suffice.cli.compare import CompareOptions
from suffice.comparison.plan import read_plan
from suffice.comparison.results import read_results
from suffice.comparison.training import CellFiles, write_model
from suffice.data import load
from suffice.data.files import digest
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.kernels import Elu
from suffice.models.architectures.hugging_face import tensors_for
from suffice.patterns import Full, Window
from suffice.train.recipes.own_data import loadable

transformers = pytest.importorskip("transformers")

DATA = os.environ.get("SUFFICE_DATA", "")  # the fixture of the program takes it away
REVIEWS = Path(DATA, "text_classification/womens_clothing_reviews/reviews.jsonl.xz")
TEXTS = [f"the {'abc'[n % 3]} is {'very ' * (n % 9)}long, number {n}" for n in range(120)]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "hidden_dim": 24,
}
SHORT = {"hidden_size": 12, "max_position_embeddings": 16}
MODERN = SIZES | {"local_attention": 6, "classifier_bias": False, "initializer_range": 0.5}


def save_encoder(folder, texts, kind="ModernBert", head="ForMaskedLM", lowercase=True, **sizes):
    """Write an encoder with drawn weights and a tokenizer of these texts, as transformers does."""
    options = {"vocab_size": 400, "show_progress": False}
    options["special_tokens"] = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    if kind in ("Bert", "DistilBert"):
        made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(**options)
    else:
        byte_level = tokenizers.pre_tokenizers.ByteLevel
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = byte_level(add_prefix_space=False)
        alphabet = sorted(byte_level.alphabet())
        trainer = tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    made.train_from_iterator(texts, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "mask", "unk")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
    ids = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
    ids |= {"bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(
        **{**MODERN, "vocab_size": made.get_vocab_size(), **ids, **sizes}
    )
    torch.manual_seed(5)
    getattr(transformers, f"{kind}{head}")(config).save_pretrained(folder)


@pytest.fixture
def encoder(tmp_path):
    save_encoder(tmp_path / "modern", TEXTS)
    return tmp_path / "modern"


@pytest.fixture
def mine(tmp_path):
    rows = ({"text": text, "label": "abc"[n % 3]} for n, text in enumerate(TEXTS))
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "mine.jsonl")


def recipe_of(mine, encoder, **options):
    defaults = {"mechanisms": ("standard", "linear"), "settings": {"length": 16}}
    return CompareOptions(data=mine, start=str(encoder), **(defaults | options)).plan().recipe


@pytest.mark.parametrize(
    ("kind", "head", "sizes", "drawn"),
    [
        ("ModernBert", "ForMaskedLM", {}, "classifier"),
        (
            "ModernBert",
            "Model",
            {"classifier_pooling": "mean"} | SHORT,
            ("head.dense", "classifier"),
        ),
        (
            "ModernBert",
            "ForSequenceClassification",
            {"num_labels": 3, "norm_bias": True},
            "classifier",
        ),
        ("EuroBert", "ForMaskedLM", {"num_key_value_heads": 1}, ("dense", "classifier")),
        ("EuroBert", "ForSequenceClassification", {"classifier_pooling": "mean"}, "classifier"),
        ("Bert", "Model", SHORT, "classifier"),
        ("Bert", "ForMaskedLM", SHORT, ("bert.pooler", "classifier")),
        (
            "Bert",
            "ForTokenClassification",
            SHORT | {"type_vocab_size": 1},
            ("bert.pooler", "classifier"),
        ),
        ("Roberta", "ForMaskedLM", {"max_position_embeddings": 17}, "classifier"),
        ("Roberta", "Model", {"max_position_embeddings": 20, "pad_token_id": 3}, "classifier"),
        (
            "Roberta",
            "ForSequenceClassification",
            {"max_position_embeddings": 17},
            "classifier.out_proj",
        ),
        ("DistilBert", "ForMaskedLM", SHORT, ("pre_classifier", "classifier")),
        ("DistilBert", "ForSequenceClassification", SHORT, "classifier"),
    ],
)
def test_a_start_is_the_classifier_of_transformers_on_its_own_rows(
    mine, tmp_path, kind, head, sizes, drawn
):
    """Weights, pooling, special tokens, the cut of long texts and padding are those of theirs."""
    save_encoder(tmp_path / "start", TEXTS, kind, head, **sizes)
    settings = {} if "max_position_embeddings" in sizes else {"length": 16}
    recipe = recipe_of(mine, tmp_path / "start", settings=settings)
    assert (recipe.num_heads, recipe.model.num_classes) == (2, 3)
    assert "from start, first 16 tokens" in recipe.title
    model = recipe.build("standard", 2).eval()
    theirs = getattr(transformers, f"{kind}ForSequenceClassification").from_pretrained(
        tmp_path / "start", num_labels=3, classifier_bias=True, ignore_mismatched_sizes=True
    )
    config = json.loads(theirs.config.to_json_string()) | {"architectures": [type(theirs).__name__]}
    ours = tensors_for(model, config)

    dataset = load(recipe.task, **loadable(dict(recipe.task_options)))
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "start")
    options = {"truncation": True, "max_length": 16, "padding": "max_length"}
    rows = read(list(dataset.test_texts), return_tensors="pt", **options)
    lengths = rows["attention_mask"].sum(dim=1)
    assert lengths.min() < 16 == lengths.max()
    assert torch.equal(dataset.test.valid.sum(dim=1), lengths)
    head_alone = {name: tensor for name, tensor in ours.items() if name.startswith(drawn)}
    for state in (head_alone, ours):  # the rest is read from the file, and written as it was
        theirs.load_state_dict(state, strict=state is ours)
        with torch.no_grad():
            got = model(dataset.test.inputs, dataset.test.valid)
            want = theirs.eval()(rows["input_ids"], attention_mask=rows["attention_mask"]).logits
        assert (got - want).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["drawn", "minilm"])
def test_a_start_of_sentence_transformers_keeps_its_mean_and_is_saved_whole(
    mine, tmp_path, released, name
):
    """Each text's vector is the mean of transformers' hidden states, mapped to the classes."""
    start = tmp_path / "start" if name == "drawn" else released(name)
    if name == "drawn":
        save_encoder(start, TEXTS, "Bert", "Model")
        (start / "1_Pooling").mkdir()
        pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
        (start / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    recipe = recipe_of(mine, start, settings={})
    dataset = load(recipe.task, **loadable(dict(recipe.task_options)))
    model = recipe.build("standard", recipe.num_heads).eval()
    write_model(tmp_path / "saved", model, dataset)
    read = transformers.AutoTokenizer.from_pretrained(start)
    length, whole = recipe.model.length, [len(ids) for ids in read(TEXTS)["input_ids"]]
    shares = [sum(tokens <= most for tokens in whole) / len(whole) for most in (length - 8, length)]
    assert shares[0] < 0.95 <= shares[1]
    options = {"truncation": True, "max_length": length, "padding": True}
    rows = read(list(dataset.test_texts), return_tensors="pt", **options)
    theirs, mask = transformers.AutoModel.from_pretrained(start).eval(), rows["attention_mask"]
    with torch.no_grad():
        hidden = theirs(rows["input_ids"], attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        want = mean @ model.head[0].weight.T + model.head[0].bias
        for ours in (model, library.load(tmp_path / "saved").network):
            got = ours(dataset.test.inputs, dataset.test.valid)
            assert (got - want).abs().max() < 1e-4


def test_a_mechanism_changes_the_layers_of_the_encoder(mine, encoder):
    recipe = recipe_of(mine, encoder)
    own = recipe.specs("standard", 2)
    assert [spec.pattern for spec in own] == [Full(), Window(4), Window(4)]
    assert {spec.position.theta for spec in own} == {10_000.0, 160_000.0}
    for window, before in ((2, [1, 1, 1]), (9, [8, 3, 3])):  # a window of the encoder stays
        changed = recipe.specs(f"standard+window:{window}", 2)
        assert [spec.pattern.band().before for spec in changed] == before
        assert [spec.position for spec in changed] == [spec.position for spec in own]
    linear = recipe.specs("linear", 2)
    assert linear == [replace(own[0], kernel=Elu()), *own[1:]]
    torch.manual_seed(0)
    first = recipe.build("standard", 2).state_dict()
    torch.manual_seed(0)
    second = recipe.build("linear", 2).state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_fewer_key_value_heads_begin_as_means_of_those_they_replace(mine, tmp_path):
    start, sizes = tmp_path / "start", {"hidden_size": 24, "num_attention_heads": 6}
    save_encoder(start, TEXTS, "Bert", "Model", **sizes)
    recipe = recipe_of(mine, start, mechanisms=("standard", "standard+kv:2"))
    changed, whole = (recipe.build(name, 6).state_dict() for name in ("standard+kv:2", "standard"))
    theirs = transformers.AutoModel.from_pretrained(start).encoder.layer[1].attention.self
    for name, own in (("k_proj", theirs.key), ("v_proj", theirs.value)):
        for part in ("weight", "bias"):
            heads = getattr(own, part).detach().split(4)  # 6 heads of 4 features
            means = torch.cat([sum(heads[:3]) / 3, sum(heads[3:]) / 3])
            made = changed[f"blocks.1.attention.{name}.{part}"]
            torch.testing.assert_close(made, means)
    same = [name for name in whole if "k_proj" not in name and "v_proj" not in name]
    assert all(torch.equal(changed[n], whole[n]) for n in same if not n.startswith("head."))
    with pytest.raises(ConfigError, match="keep its weights"):
        recipe_of(mine, start, mechanisms=("standard", "mla"))


def test_usual_mechanisms_of_a_start_keep_its_maps(mine, encoder):
    plan = CompareOptions(data=mine, start=str(encoder)).plan()
    assert plan.mechanisms == ("standard", "standard+window:32")
    for mechanism in plan.mechanisms:
        plan.recipe.build(mechanism, 2)


def test_what_cannot_start_there_is_refused(mine, encoder, tmp_path):
    for mechanism in ("efficient", "optimised", "super_attention"):
        with pytest.raises(ConfigError, match="keep its weights"):
            recipe_of(mine, encoder, mechanisms=("standard", mechanism))
    for options in ({"heads": (4,)}, {"settings": {"length": 65}}):
        with pytest.raises(ConfigError, match="up to 64 tokens by 2 heads"):
            recipe_of(mine, encoder, **options)
    for name in ("d_model", "depth", "vocabulary_size", "reads"):
        with pytest.raises(ConfigError, match=name):
            recipe_of(mine, encoder, settings={name: 4})
    with pytest.raises(ConfigError, match="--tokenizer bpe"):
        recipe_of(mine, encoder, tokenizer="bpe")
    with pytest.raises(ConfigError, match="--start"):
        CompareOptions(task="amazon", data=mine, start=str(encoder)).plan()
    with pytest.raises(ConfigError, match="--start"):
        CompareOptions(task="digits", start=str(encoder)).plan()
    short = dict(recipe_of(mine, encoder, settings={"length": 2}).task_options)
    with pytest.raises(ConfigError, match="length=2"):
        load("table", **loadable(short))
    with pytest.raises(CheckpointError, match="nowhere"):
        recipe_of(mine, tmp_path / "nowhere")
    sizes = {"head_dim": 8, "num_key_value_heads": 2}
    save_encoder(tmp_path / "llama", TEXTS, "Llama", "ForCausalLM", **sizes)
    with pytest.raises(ConfigError, match="LlamaForCausalLM"):
        recipe_of(mine, tmp_path / "llama")
    save_encoder(tmp_path / "small", TEXTS, vocab_size=300)
    with pytest.raises(ConfigError, match="more tokens"):
        recipe_of(mine, tmp_path / "small")
    for cased, word in ((True, "'The'"), (False, "'Abc'")):
        folder, texts = tmp_path / word, [text.title() if cased else text for text in TEXTS]
        save_encoder(folder, texts, "Bert", lowercase=False)
        recipe_of(mine, folder) if cased else None
        description = json.loads((folder / "tokenizer.json").read_text())
        description["normalizer"]["lowercase"] = cased
        (folder / "tokenizer.json").write_text(json.dumps(description))
        with pytest.raises(DataError, match=word):
            recipe_of(mine, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"position_embedding_type": "relative_key"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="relative_key"):
        recipe_of(mine, folder)


def test_a_resumed_comparison_keeps_its_start(mine, encoder, tmp_path):
    options = {"data": mine, "start": str(encoder), "mechanisms": ("standard", "linear")}
    plan = CompareOptions(**options, settings={"length": 16, "learning_rate": 1e-3}).plan()
    plan.claim(tmp_path / "run", resume=False)
    for again in ({}, {"data": mine}, {"start": str(encoder)}):
        assert CompareOptions(**again).plan(read_plan(tmp_path / "run")) == plan
    digest.cache_clear()
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ConfigError, match="other data"):
        CompareOptions().plan(read_plan(tmp_path / "run")).claim(tmp_path / "run", resume=True)
    save_encoder(tmp_path / "other", TEXTS)
    moved = CompareOptions(start=str(tmp_path / "other")).plan(read_plan(tmp_path / "run"))
    with pytest.raises(ConfigError, match="another recipe"):
        moved.claim(tmp_path / "run", resume=True)


@pytest.mark.skipif(not REVIEWS.is_file(), reason="SUFFICE_DATA holds no reviews of clothing")
def test_reviews_are_compared_and_classified_from_a_start(suffice, brief, tmp_path):
    """The trained models differ from the start, and read new texts as in their training."""
    with lzma.open(REVIEWS, "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, 160)]
    save_encoder(tmp_path / "start", [row["text"] for row in rows])
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = suffice(
        *("compare", "--data", "reviews.jsonl", "--columns", "text,rating", "--start", "start"),
        *("--mechanisms", "standard,standard+window:2,linear", "--set", "length=32"),
        *("--set", "learning_rate=1e-3", "--epochs", 1, "--seeds", 1, "--folds", 0, "--out", "run"),
    )
    assert result.exit_code in (11, 12), result.stderr
    results = read_results(tmp_path / "run" / "results.json")
    assert {cell.parameters_model for cell in results.cells} == {results.cells[0].parameters_model}
    assert len({cell.test_loss for cell in results.cells}) == 3
    folder = CellFiles.of(tmp_path / "run", "standard", 2, 0).model
    assert str(tmp_path) not in (folder / "config.json").read_text()
    loaded = library.load(folder)
    assert loaded.classes == ("1", "2", "3", "4", "5")
    start = loaded.tokenizer.around
    assert start == ([1], [2])
    texts = ["Soft and warm.", rows[0]["text"] * 9]
    prepared = loaded.prepare(texts)
    assert prepared["tokens"][:, -1].tolist() == [2, 2]
    first = prepared["valid"].int().argmax(dim=1, keepdim=True)
    assert prepared["tokens"].gather(1, first).tolist() == [[1], [1]]
    assert abs(sum(loaded.predict(texts)[0].probabilities.values()) - 1.0) < 1e-5
