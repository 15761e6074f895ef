"""Models that are opened for use: every kind of folder that the commands write."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from rich.console import Console

import suffice
from suffice.comparison import judge
from suffice.comparison.compare import compare
from suffice.comparison.plan import Plan
from suffice.comparison.training import write_model
from suffice.comparison.winner import snippets, write_winner
from suffice.data import load as load_data
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.loading import ImageClassifier, LanguageModel, TextClassifier, TextTranslator
from suffice.models import ClassifierConfig, LMConfig, folder
from suffice.presets import preset
from suffice.text import Characters, Words
from suffice.train.recipes import recipe
from suffice.train.recipes.own_data import of_user
from suffice.train.scoring import ModelInputs

TEXTS = [f"item {n % 7} is {'very good' if n % 2 else 'quite bad'}" for n in range(80)]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    rows = (f"{text} {n},{'yes' if n % 2 else 'no'}\n" for n, text in enumerate(TEXTS))
    path.write_text("text,label\n" + "".join(rows))
    return str(path)


def short(recipe_of, **sizes):
    training = replace(recipe_of.training, epochs=8, learning_rate=0.01)  # enough to learn
    return replace(recipe_of, training=training, model=replace(recipe_of.model, **sizes))


@pytest.fixture
def run(tmp_path, table):
    """Return the folder of a comparison of texts, with its results."""
    mine = short(of_user(recipe("table"), table), d_model=16, mlp_width=16, depth=1)
    plan = Plan(
        recipe=mine, mechanisms=("standard", "efficient"), heads=(2,), seeds=2, baseline="standard"
    )
    place = tmp_path / "run"
    results = compare(plan, place, console=Console(quiet=True), quiet=True, anyway=True)
    return place, results


def test_a_comparison_is_loaded_by_its_best_model(run):
    place, results = run
    with pytest.raises(CheckpointError, match="is not finished.* standard-h2-s0"):
        suffice.load(place)
    write_winner(place, results, judge(results))
    chosen = json.loads((place / "winner.json").read_text())
    losses = {
        c.seed: c.epochs[c.best_epoch - 1]["validation_loss"] for c in results.select("standard", 2)
    }
    assert chosen["mechanism"] == "standard"  # two seeds show nothing about a cheaper one
    assert chosen["seed"] == min(losses, key=losses.get)
    model = suffice.load(place)
    assert isinstance(model, TextClassifier)
    assert model.classes == ("no", "yes")
    assert suffice.load(place / "efficient-h2-s1").facts["mechanism"] == "efficient"
    assert [one.title for one in snippets(place)] == [
        "Command line",
        "PyTorch",
        "transformers",
        "Other programs",
    ]


def test_texts_are_answered_as_in_the_test_of_the_training(run, table):
    place, results = run
    model = suffice.load(place / "models" / "efficient-h2-s0")
    data = load_data("table", path=table)
    cell = next(c for c in results.cells if c.key == ("efficient", 2, 0))
    with torch.inference_mode():
        logits = ModelInputs.of(data.test).logits(model.network)
    right = (logits.argmax(dim=1) == data.test.labels).double().mean()
    assert float(right) == pytest.approx(cell.test_accuracy)
    one_by_one = model.predict(TEXTS[:9], batch_size=1)
    together = model.predict(TEXTS[:9])
    for one, other in zip(one_by_one, together, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
        assert sum(one.probabilities.values()) == pytest.approx(1.0)
        assert one.probability == max(one.probabilities.values())
    ids, valid = model.tokenizer.rows(["never seen"])
    assert torch.equal(model.prepare(["never seen"])["tokens"], ids)
    assert valid.sum() == 3
    with pytest.raises(DataError, match="3 is not a text"):
        model.predict([3])
    with pytest.raises(ConfigError, match="batch_size=0"):
        model.predict(["a"], batch_size=0)


def test_images_are_prepared_as_in_the_training(tmp_path):
    data = load_data("digits")
    network = recipe("digits_vit").build("standard", 4).eval()
    write_model(tmp_path / "m", network, data, recipe={})
    model = suffice.load(tmp_path / "m")
    assert isinstance(model, ImageClassifier)
    pixels = data.test.inputs[:3, 0]
    paths = []
    for number, image in enumerate(pixels):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray((image.double() * 255 / 16).round().byte().numpy()).save(paths[-1])
    prepared = model.prepare([paths[0], paths[1].read_bytes(), Image.open(paths[2])])["images"]
    assert torch.allclose(prepared, data.prepare(data.test.inputs[:3]), atol=0.01)
    assert [len(p.probabilities) for p in model.predict(paths)] == [10, 10, 10]
    with pytest.raises(DataError, match="cannot read .*absent.png"):
        model.predict([tmp_path / "absent.png"])


def test_a_language_model_writes(tmp_path):
    sizes = {"vocabulary_size": 4, "length": 16, "d_model": 8, "depth": 1, "mlp_width": 8}
    lm = LMConfig(**sizes).build(preset("standard", 8, 2, causal=True))
    folder.save(tmp_path, lm, Characters("abcd"))
    model = suffice.load(tmp_path)
    assert isinstance(model, LanguageModel)
    text = model.generate("ab", max_new_tokens=5, seed=1)
    assert text.startswith("ab")
    assert len(text) == 7
    assert model.generate("ab", max_new_tokens=3, temperature=0.0)[:2] == "ab"


def test_a_translator_keeps_both_vocabularies(tmp_path):
    small = recipe("translation_es", scale="small")
    words = ("<pad>", "<start>", "<unknown>", "<end>", "hola")
    sizes = {"source_vocabulary_size": 4, "target_vocabulary_size": 5}
    network = short(small, **sizes).build("standard", 4)
    from suffice.text import Words

    source = Words((*words[:3], "hello"), 8)
    folder.save(tmp_path, network, Words(words, 8), source_tokenizer=source)
    model = suffice.load(tmp_path)
    assert isinstance(model, TextTranslator)
    assert model.source_tokenizer.words == source.words
    translated = list(model.translate(["Hello, hello!", "x"], batch_size=1))
    assert len(translated) == 2
    assert set(" ".join(translated).split()) <= {"hola", "<unknown>", "<end>"}


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such file or folder"):
        suffice.load(tmp_path / "absent")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "winner.json").write_text('{"model": "../../etc"}')
    with pytest.raises(CheckpointError, match="names no model of this folder"):
        suffice.load(tmp_path / "run")


class Frame(dict):
    """A table as pandas has it: iterating gives the names of its columns."""

    columns = ("text", "label")


def _models(tmp_path):
    """Return one small model of each kind, and the method that takes a list."""
    words = Words(("<pad>", "<start>", "<unknown>", "<end>", "good"), 8)
    sizes = {"vocabulary_size": 5, "length": 8, "d_model": 8, "depth": 1, "mlp_width": 8}
    spec = preset("standard", 8, 2)
    network = ClassifierConfig(**sizes, num_classes=2).build(spec).eval()
    texts = TextClassifier(network=network, classes=("no", "yes"), tokenizer=words)
    write_model(tmp_path / "m", recipe("digits_vit").build("standard", 4), load_data("digits"))
    images = suffice.load(tmp_path / "m")
    lm = LMConfig(**sizes).build(preset("standard", 8, 2, causal=True)).eval()
    writer = LanguageModel(network=lm, tokenizer=Characters("abcde"))
    translator = TextTranslator(network=None, tokenizer=words, source_tokenizer=words)
    return (texts, texts.predict), (images, images.predict), (writer, writer.generate), (
        translator, translator.translate
    )  # fmt: skip


def test_one_input_or_a_table_is_no_list_of_inputs(tmp_path):
    for model, answer in _models(tmp_path):
        for wrong in (b"good", {"text": ["good"]}, Frame(text=["good"]), 3, None):
            with pytest.raises(DataError):
                answer(wrong)
        if not isinstance(model, LanguageModel):
            with pytest.raises(DataError, match="one"):
                answer("good")
        else:
            with pytest.raises(DataError):
                answer(["a", "b"])
