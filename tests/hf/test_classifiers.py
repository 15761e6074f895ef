"""Folders of classifiers in transformers, as they are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

import suffice
import suffice.hf  # noqa: F401 - registers the classes
from suffice.comparison.training import write_model
from suffice.data import load as load_data
from suffice.models import ClassifierConfig, folder
from suffice.presets import PRESETS, preset, takes_length
from suffice.text import BPE, Words
from suffice.train.recipes import recipe

WORDS = ("<pad>", "<start>", "<unknown>", "good", "bad", "dress", "fits")
TEXTS = ["Good dress!", "bad, bad dress; never fits", "fits " * 20, ""]


@pytest.mark.parametrize(
    ("mechanism", "whole"),
    [(n, False) for n in ("standard", "super_attention", "performer", "linformer")]
    + [("standard", True)],
)
def test_a_text_classifier_answers_the_same(tmp_path, mechanism, whole):
    sizes = {"vocabulary_size": 7, "length": 8, "num_classes": 3, "d_model": 16, "depth": 2}
    sizes["reads_padding"] = whole
    length = {"length": 8} if takes_length(mechanism) else {}
    network = ClassifierConfig(**sizes, mlp_width=16).build(preset(mechanism, 16, 4, **length))
    assert mechanism in PRESETS
    folder.save(tmp_path, network, Words(WORDS, 8), classes=["low", "middle", "high"])
    ours = suffice.load(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    rows = tokenizer(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**rows).logits
        assert torch.allclose(logits, ours.network(**ours.prepare(TEXTS)), atol=1e-5)
        loss = model(**rows, labels=torch.tensor([0, 1, 2, 0])).loss
    wanted = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
    assert torch.allclose(loss, wanted)
    check_pipeline(tmp_path, TEXTS)


def check_pipeline(folder, texts):
    ask = pipeline("text-classification", model=str(folder), truncation=True)
    for text, prediction in zip(texts, suffice.load(folder).predict(texts), strict=True):
        (answer,) = ask(text)
        assert answer["label"] == prediction.label
        assert answer["score"] == pytest.approx(prediction.probability, abs=1e-5)


def test_a_classifier_of_byte_pairs_answers_the_same(tmp_path):
    texts = [f"{'good' if n % 2 else 'bad'} film {n}" for n in range(60)]
    table = "text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(texts))
    (tmp_path / "a.csv").write_text(table)
    learn = partial(BPE.train, vocabulary_size=270, at_most=True)
    dataset = load_data("table", path=str(tmp_path / "a.csv"), words=learn, length=8)
    sizes = {"vocabulary_size": 270, "length": 8, "num_classes": 2, "d_model": 16, "depth": 1}
    network = ClassifierConfig(**sizes, mlp_width=16).build(preset("standard", 16, 4))
    write_model(tmp_path / "m", network.eval(), dataset, recipe={})
    check_pipeline(tmp_path / "m", ["good film", "", "a text of more tokens than the model reads"])


def test_an_image_classifier_answers_the_same(tmp_path):
    network = recipe("digits_vit").build("efficient", 4).eval()
    write_model(tmp_path / "m", network, load_data("digits"), recipe={})
    path = str(tmp_path / "a.png")
    Image.fromarray(torch.randint(256, (8, 8), dtype=torch.uint8).numpy()).save(path)
    ask = pipeline("image-classification", model=str(tmp_path / "m"), top_k=10)
    shares = {answer["label"]: answer["score"] for answer in ask(path)}
    ours = suffice.load(tmp_path / "m").predict([path])[0]
    assert shares == pytest.approx(ours.probabilities, abs=1e-5)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "m")
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "again")
    pixels = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(again(pixels).logits, model(pixels).logits)
