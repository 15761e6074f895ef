"""What each reported figure is made of, and in which direction: of texts, ties and pairs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from suffice import AttentionSpec
from suffice.comparison import training
from suffice.comparison.answers import Answers
from suffice.comparison.metrics import METRICS
from suffice.convert import convert
from suffice.convert.calibration import calibration_batches
from suffice.convert.heal.text import split_corpus
from suffice.convert.search.search import rows_for
from suffice.encoders import MLA
from suffice.generate import Sample
from suffice.generate.sampling import probabilities
from suffice.models import LM, LMConfig
from suffice.patterns import Causal, Full, PerHead, Window
from suffice.spec.cost import count
from suffice.testing import drawn
from suffice.text import Characters
from suffice.text.documents import Corpus
from tests.comparison.test_scores import WORDS, dataset, sentences, trained, translations

PARTS = {"train": "abcdabcd" * 400, "validation": "efghefgh" * 400, "test": "ijklijkl" * 400}
LETTERS = Characters("abcdefghijkl")
LETTERS_AND_SPACE = Characters(" abcdefghijklmnopqrstuvw")


def corpus(test: bool = True) -> Corpus:
    parts = {name: [text] for name, text in PARTS.items() if test or name != "test"}
    return Corpus.of("toy", "made here", **parts)


def letters_of(batches) -> set[str]:
    return set("".join(LETTERS.decode(row.tolist()) for batch in batches for row in batch))


def test_a_conversion_is_fitted_on_the_training_part_and_judged_on_the_validation_part():
    fitted, held_out = calibration_batches(corpus(), LETTERS, length=16, tokens=512)
    assert letters_of(fitted) == set("abcd")
    assert letters_of(held_out) == set("efgh")


def test_a_search_is_fitted_scored_and_judged_on_texts_apart():
    text = "".join(f"{a}{b}" for a, b in product("efgh", repeat=2)) * 200
    parts = Corpus.of("toy", "made here", [PARTS["train"]], [text + PARTS["validation"]])
    rows = rows_for(parts, LETTERS, length=16, tokens=2048)
    assert letters_of(rows["calibration"]) == set("abcd")
    assert letters_of(rows["scoring"]) == letters_of(rows["judging"]) == set("efgh")
    scoring, judging = (torch.cat(rows[name]) for name in ("scoring", "judging"))
    assert not torch.equal(scoring[: len(judging)], judging[: len(scoring)])


def test_healing_reports_on_the_test_part():
    assert ["".join(part) for part in split_corpus(corpus())] == list(PARTS.values())
    train, validation, held_out = split_corpus(corpus(test=False))
    assert "".join(train) == PARTS["train"]
    assert "".join(validation) + "".join(held_out) == PARTS["validation"]


def lm_of(seed: int) -> LM:
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Causal())
    sizes = {"vocabulary_size": 12, "length": 32, "d_model": 16, "depth": 1, "mlp_width": 16}
    return drawn(LMConfig(**sizes).build(spec), seed=seed).eval()


def mean_loss(lm: LM, rows: torch.Tensor) -> float:
    with torch.no_grad():
        logits = lm(rows[:, :-1]).double()
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


def test_a_certificate_holds_the_losses_before_and_after_on_the_held_out_text():
    lm = lm_of(3)
    fitted, held_out = calibration_batches(corpus(), LETTERS, length=16, tokens=512)
    converted = convert(lm, "gqa:2", calibration=fitted, held_out=held_out)
    loss, rows = converted.certificate.loss, torch.cat(held_out)
    assert loss.before == pytest.approx(mean_loss(lm, rows), rel=1e-5)
    assert loss.after == pytest.approx(mean_loss(converted.model, rows), rel=1e-5)
    assert loss.change == pytest.approx(loss.after - loss.before, rel=1e-4)
    assert abs(loss.change) > 1e-3
    assert loss.tokens == rows[:, 1:].numel()


def test_bleu_compares_translations_with_references_in_this_order(monkeypatch):
    """A short translation is punished, a long one is not."""
    from sacrebleu.metrics import BLEU

    long, short = ["a b c d e f a b c d"], ["a b c d e"]
    for written, asked in ((short, long), (long, short)):
        data = dataset(sentences(asked), "bleu", classes=len(WORDS), vocabulary=WORDS)
        ended = [f"{text} <end>" for text in written]
        monkeypatch.setattr(training, "_translations", lambda _, t=ended: translations(t))
        one = trained(nn.Identity(), data)
        want = BLEU(tokenize="none").corpus_score(written, [asked]).score
        assert training.SCORES["bleu"](one)[0] == pytest.approx(want)
        counts = training._ngrams(one)
        assert counts[0, -2:].tolist() == [len(written[0].split()), len(asked[0].split())]
        none, whole = np.zeros(1), np.zeros(1, dtype=np.int64)
        answers = Answers(
            label=whole, predicted=whole, right=none, asked=none, loss=none, confidence=none,
            ngrams=counts,
        )  # fmt: skip
        assert 100 * METRICS["bleu"].rows(answers).mean() == pytest.approx(want)


@pytest.mark.parametrize(
    "pattern",
    [Full(), Causal(), Window(5) & Causal(), PerHead((Full(), Window(3), Causal(), Window(9)))],
    ids=repr,
)
@pytest.mark.parametrize("lengths", [(1, 40), (7, 40), (40, 7), (40, 40)])
def test_visible_flops_count_the_pairs_of_queries_with_keys(pattern, lengths):
    """By the mask, head by head, with the widths of keys and of values."""
    queries, keys = lengths
    mask = pattern.mask(queries, keys).expand(4, -1, -1)
    for encoder, width in ((None, 8 + 8), (MLA(8, 4, value_dim=5), 8 + 4 + 5)):
        axes = {} if encoder is None else {"encoder": encoder}
        spec = AttentionSpec(d_model=32, num_heads=4, head_dim=8, pattern=pattern, **axes)
        cost, all_pairs = count(spec, queries, keys), 4 * queries * keys
        dense = count(AttentionSpec(d_model=32, num_heads=4, head_dim=8, **axes), queries, keys)
        hidden = all_pairs - int(mask.sum())
        assert dense.visible_flops - cost.visible_flops == 2 * width * hidden
        assert cost.visible_flops <= cost.flops


def test_a_share_that_is_reached_exactly_needs_no_further_token():
    halves = torch.tensor([[2.0, 1.0, 1.0]]).log()
    assert probabilities(halves, Sample(top_p=0.5)).tolist() == [[1.0, 0.0, 0.0]]
    eighths = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log()
    assert (probabilities(eighths, Sample(top_p=0.75)) > 0).tolist() == [[True, True, False, False]]
    quarter = probabilities(torch.zeros(1, 4), Sample(top_p=0.25))
    assert (quarter > 0).sum() == 1


def test_a_share_of_the_most_probable_is_kept_at_equality():
    kept = probabilities(torch.tensor([[2.0, 1.0, 1.0, 0.5]]).log(), Sample(min_p=0.5)) > 0
    assert kept.tolist() == [[True, True, True, False]]


def test_a_loss_is_written_as_it_is_though_less_of_it_is_better():
    loss, accuracy = METRICS["log-loss"], METRICS["accuracy"]
    assert (loss.natural(-0.5), accuracy.natural(0.5)) == (0.5, 0.5)
    assert METRICS["perplexity"].natural(-2.0) == pytest.approx(math.exp(2.0))
