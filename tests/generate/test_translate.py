"""Translations are what the decoder writes when everything is read again for each token."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from suffice import preset
from suffice.errors import ConfigError, ShapeError
from suffice.generate import Greedy, Sample, translate
from suffice.models import TranslatorConfig
from suffice.testing import drawn

SOURCES = [[3, 1, 4], [5, 9, 2, 6, 5, 3], [8]]
START, NEW = 1, 6


def build(mechanism="efficient", vocabulary=13, **changes):
    sizes = {"source_vocabulary_size": 17, "target_vocabulary_size": vocabulary, "length": 9}
    config = TranslatorConfig(**sizes, d_model=16, mlp_width=12, norm="pre", **changes)
    both, causal = (preset(mechanism, 16, 4, causal=after) for after in (False, True))
    model = drawn(config.build(both, causal, both), seed=2).double().eval()
    with torch.no_grad():
        model.head.weight *= 3.0
        model.head.bias.zero_()
        model.target.positions.weight *= 3.0
        for block in model.decoder:
            for weight in block.cross.parameters():
                weight *= 3.0
        for norm in (m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
    return model


@torch.no_grad()
def steps(model, source, tokens):
    """The log-probabilities of what follows."""
    logits = model(torch.tensor([source]), torch.tensor([tokens]))[0, -1]
    return logits.float().log_softmax(dim=-1)


def free_run(model, source, new=NEW, stop=()):
    tokens = [START]
    while len(tokens) <= new and tokens[-1] not in stop:
        tokens.append(int(steps(model, source, tokens).argmax()))
    return tokens


@pytest.mark.parametrize("mechanism", ["standard", "efficient", "optimised", "gqa", "linear"])
def test_greedy_is_the_free_run_of_each_row(mechanism):
    model = build(mechanism)
    got = translate(model, SOURCES, start=START, max_new_tokens=NEW)
    runs = [free_run(model, source) for source in SOURCES]
    assert [got.row(row) for row in range(3)] == runs
    assert got.new.tolist() == [run[1:] for run in runs]
    assert len({tuple(run) for run in runs}) > 1


def test_rows_end_at_their_stop():
    model = build()
    stop = (free_run(model, SOURCES[0])[3],)
    got = translate(model, SOURCES, start=START, max_new_tokens=NEW, stop=stop, pad=2)
    for row, source in enumerate(SOURCES):
        assert got.row(row) == free_run(model, source, stop=stop)


@pytest.mark.parametrize("side", ["left", "inside"])
def test_padding_of_the_source_may_stand_anywhere(side):
    model = build()
    want = translate(model, [[3, 1, 4]], start=START, max_new_tokens=NEW)
    marks = {"left": [0, 0, 1, 1, 1], "inside": [1, 0, 1, 0, 1]}[side]
    valid = torch.tensor([marks]).bool()
    source = torch.full((1, 5), 7).masked_scatter(valid, torch.tensor([3, 1, 4]))
    got = translate(model, source, source_valid=valid, start=START, max_new_tokens=NEW)
    assert got.tokens.tolist() == want.tokens.tolist()


@pytest.mark.parametrize("mechanism", ["standard", "efficient"])
def test_enough_beams_find_the_most_probable_translation(mechanism):
    model = build(mechanism, vocabulary=4)
    got = translate(model, SOURCES, start=START, max_new_tokens=3, beams=16)
    for row, source in enumerate(SOURCES):
        scores = {}
        for tokens in product(range(4), repeat=3):
            line = [START, *tokens]
            each = [float(steps(model, source, line[: at + 1])[tokens[at]]) for at in range(3)]
            scores[tokens] = sum(each) / 3
        best = max(scores, key=scores.get)
        assert got.new[row].tolist() == list(best)
        assert abs(float(got.scores[row]) - scores[best]) < 1e-5


def test_few_beams_move_rows_and_penalise_length():
    model = build()
    options = {"start": START, "max_new_tokens": NEW, "beams": 3, "stop": (0, 5)}
    got = translate(model, SOURCES, **options, length_penalty=0.0)
    for row, source in enumerate(SOURCES):
        tokens = got.row(row)
        each = [
            float(steps(model, source, tokens[:at])[tokens[at]]) for at in range(1, len(tokens))
        ]
        assert abs(sum(each) - float(got.scores[row])) < 1e-5


def test_samples_are_reported_as_they_come_and_do_not_depend_on_other_rows():
    model, calls = build(), []
    sample = Sample(seed=4, top_k=5)
    options = {"start": START, "max_new_tokens": NEW, "sampling": sample}
    got = translate(model, SOURCES, **options, on_token=calls.append)
    assert [list(row) for row in zip(*calls, strict=True)] == got.new.tolist()
    assert translate(model, SOURCES[:1], **options).row(0) == got.row(0)
    greedy = translate(model, SOURCES, **(options | {"sampling": Greedy()}))
    assert greedy.tokens.tolist() != got.tokens.tolist()


def test_dropout_is_off():
    model = build(dropout=0.5, head_dropout=0.5)
    want = translate(model, SOURCES, start=START, max_new_tokens=NEW)
    model.train()
    got = translate(model, SOURCES, start=START, max_new_tokens=NEW)
    assert got.tokens.tolist() == want.tokens.tolist()
    assert model.training
    assert model.decoder[0].training


def test_nothing_new_is_the_start():
    got = translate(build(), SOURCES, start=START, max_new_tokens=0)
    assert got.tokens.tolist() == [[START]] * 3


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("start=13", {"start": 13}),
        ("start=-1", {"start": -1}),
        ("13", {"stop": (13,)}),
        ("10 positions", {"max_new_tokens": 10}),
        ("beams=2 with sampling=Sample", {"beams": 2, "sampling": Sample()}),
        ("on_token", {"beams": 2, "on_token": print}),
    ],
)
def test_refusals(match, options):
    with pytest.raises(ConfigError, match=match):
        translate(build(), SOURCES, **({"start": START, "max_new_tokens": 3} | options))


def test_unfit_sources_are_refused():
    with pytest.raises(ConfigError, match="id 17"):
        translate(build(), [[17]], start=START, max_new_tokens=1)
    with pytest.raises(ShapeError, match="10 tokens"):
        translate(build(), [[1] * 10], start=START, max_new_tokens=1)
