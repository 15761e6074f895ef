from __future__ import annotations

import builtins
import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from suffice import preset
from suffice.comparison import training
from suffice.comparison.training import Trained, check_scores, scores_of
from suffice.data.dataset import IGNORE_INDEX, Dataset, Split
from suffice.errors import ConfigError
from suffice.models import TranslatorConfig
from suffice.train import EvaluationScore

WORDS = ("<pad>", "<start>", "<unknown>", "<end>", "a", "b", "c", "d", "e", "f")


def dataset(split: Split, *names: str, classes: int = 3, **facts) -> Dataset:
    return Dataset(
        name="toy",
        title="",
        source="",
        train=split,
        validation=split,
        test=split,
        num_classes=classes,
        scores=names,
        **facts,
    )


def trained(model: nn.Module, data: Dataset, loss: float = 0.5) -> Trained:
    test = EvaluationScore(loss=loss, accuracy=0.5, top5=None, count=1)
    return Trained(model=model, dataset=data, test=test, device="cpu")


class Told(nn.Module):
    """Answers the first token of each row."""

    def forward(self, inputs, valid=None):
        return torch.nn.functional.one_hot(inputs[:, 0], 3).float()


def labelled(answers: list[int], labels: list[int]) -> Split:
    return Split(torch.tensor(answers)[:, None], torch.tensor(labels))


def test_balanced_accuracy_weighs_classes_not_rows(monkeypatch):
    monkeypatch.setattr(training, "BATCH", 2)
    split = labelled([0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1])
    found, signatures = scores_of(trained(Told(), dataset(split, "balanced_accuracy")))
    assert found == {"balanced_accuracy": pytest.approx((1.0 + 0.5) / 2)}, "class 2 has no row"
    assert signatures == {}
    from sklearn.metrics import balanced_accuracy_score

    draw = torch.Generator().manual_seed(0)
    labels, answers = (torch.randint(0, 3, (50,), generator=draw).tolist() for _ in range(2))
    data = dataset(labelled(answers, labels), "balanced_accuracy")
    own, _ = scores_of(trained(Told(), data))
    assert own["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, answers))


def test_perplexity_is_that_of_the_loss():
    data = dataset(labelled([0], [0]), "perplexity")
    assert scores_of(trained(Told(), data, math.log(9.0)))[0]["perplexity"] == pytest.approx(9.0)
    assert scores_of(trained(Told(), data, 1e4))[0]["perplexity"] == math.inf


def sentences(told: list[str]) -> Split:
    """Rows that ask for some words, and then for the end."""
    ids = [[WORDS.index(word) for word in [*one.split(), "<end>"]] for one in told]
    length = max(map(len, ids))
    labels = torch.tensor([row + [IGNORE_INDEX] * (length - len(row)) for row in ids])
    inputs = torch.cat([torch.ones(len(ids), 1, dtype=torch.int64), labels[:, :-1]], dim=1)
    source = torch.arange(len(ids))[:, None] + 4
    return Split(inputs.clamp(min=0), labels, inputs >= 0, source, source > 0)


def translations(told: list[str]) -> torch.Tensor:
    """What a model wrote, with padding behind."""
    ids = [[WORDS.index(word) for word in one.split()] for one in told]
    length = max(map(len, ids))
    return torch.tensor([row + [0] * (length - len(row)) for row in ids])


def bleu_of(monkeypatch, written: list[str], asked: list[str]) -> tuple[float, str]:
    data = dataset(sentences(asked), "bleu", classes=len(WORDS), vocabulary=WORDS)
    monkeypatch.setattr(training, "_translations", lambda _: translations(written))
    found, signatures = scores_of(trained(nn.Identity(), data))
    return found["bleu"], signatures["bleu"]


def test_bleu_is_sacrebleus_of_the_words(monkeypatch):
    from sacrebleu.metrics import BLEU

    asked = ["a b c d e", "c d e f", "a b c f"]
    found, signature = bleu_of(
        monkeypatch, ["a b c d f <end>", "c d e f <end>", "a b c f <end> e e"], asked
    )
    metric = BLEU(tokenize="none")
    wanted = metric.corpus_score(["a b c d f", "c d e f", "a b c f"], [asked])
    assert found == pytest.approx(wanted.score)
    assert 0 < found < 100
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:")
    assert bleu_of(monkeypatch, [f"{one} <end>" for one in asked], asked)[0] == pytest.approx(100)


def test_a_word_that_is_not_known_is_never_right(monkeypatch):
    asked = ["a b c d <unknown>", "c d e f"]
    known = bleu_of(monkeypatch, ["a b c d e <end>", "c d e f <end>"], asked)[0]
    unknown = bleu_of(monkeypatch, ["a b c d <unknown> <end>", "c d e f <end>"], asked)[0]
    assert unknown == pytest.approx(known)
    assert unknown < 100


def test_a_translation_without_an_end_counts_whole(monkeypatch):
    asked = ["a b c d e"]
    assert bleu_of(monkeypatch, ["a b c d e"], asked)[0] == pytest.approx(100)


def copier(seed: int = 0):
    torch.manual_seed(seed)
    config = TranslatorConfig(
        source_vocabulary_size=20, target_vocabulary_size=10, length=6, d_model=8, mlp_width=8
    )
    both, causal = (preset("efficient", 8, 2, causal=after) for after in (False, True))
    return config.build(both, causal, both)


def test_translations_are_greedy_and_of_every_row(monkeypatch):
    monkeypatch.setattr(training, "BATCH", 2)
    split = sentences(["a b c d e", "c d", "f", "e e e", "a"])
    data = dataset(split, "bleu", classes=len(WORDS), vocabulary=WORDS)
    model = copier()
    model.train()
    told = training._translations(trained(model, data))
    assert model.training
    model.eval()
    for row in range(len(split)):
        target = [1]
        while len(target) <= split.inputs.shape[1] and target[-1] != 3:
            logits = model(split.source[row : row + 1], torch.tensor([target]))
            target.append(int(logits[0, -1].argmax()))
        wanted = target[1:]
        assert told[row].tolist() == wanted + [0] * (told.shape[1] - len(wanted))


def test_an_absent_library_is_reported_before_the_training(monkeypatch):
    data = dataset(sentences(["a"]), "bleu", classes=len(WORDS), vocabulary=WORDS)
    check_scores(data)
    real = builtins.__import__

    def without(name, *others, **named):
        if name.startswith("sacrebleu"):
            raise ModuleNotFoundError(name, name=name)
        return real(name, *others, **named)

    monkeypatch.delitem(sys.modules, "sacrebleu.metrics", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    check_scores(replace(data, scores=("perplexity",)))
    with pytest.raises(ConfigError, match=r"needs sacrebleu.* pip install .*\[translation\]"):
        check_scores(data)


def test_an_unknown_score_is_refused():
    data = dataset(labelled([0], [0]), "blue")
    with pytest.raises(ConfigError, match="unknown score 'blue'; did you mean 'bleu'"):
        scores_of(trained(Told(), data))
    with pytest.raises(ConfigError, match="unknown score 'blue'"):
        check_scores(data)
