"""A search gives the best continuation that so many beams can find, with its score."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from suffice.errors import ConfigError
from suffice.generate import Sample, generate
from tests.generate.models import PROMPTS, SPEC, free_run, model


def log_probabilities(lm, row):
    with torch.no_grad():
        return lm(torch.tensor([row]))[0, -1].float().log_softmax(dim=-1).tolist()


def searched(lm, prompt, new, beams, stop, power):
    """Return (score, tokens) of the best continuation: the definition, with lists."""
    running, hypotheses = [(0.0, [])], []
    for length in range(1, new + 1):
        candidates = []
        for score, tokens in running:
            steps = log_probabilities(lm, prompt + tokens)
            candidates += [(score + step, [*tokens, t]) for t, step in enumerate(steps)]
        candidates = sorted(candidates, reverse=True)[: beams * (1 + len(stop))]
        ended = [pair for pair in candidates if pair[1][-1] in stop or length == new]
        hypotheses += [(score / length**power, tokens) for score, tokens in ended]
        hypotheses = sorted(hypotheses, reverse=True)[:beams]
        running = [pair for pair in candidates if pair[1][-1] not in stop][:beams]
        best = max(score for score, _ in running) / new**power
        if len(hypotheses) == beams and hypotheses[-1][0] >= best:
            break
    return hypotheses[0]


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("stop", [(), (3, 16), (1, 4, 7, 12, 20)])
@pytest.mark.parametrize("power", [1.0, 0.0, 2.0])
def test_the_search_is_its_definition(beams, stop, power):
    lm = model(seed=3)  # whose best text may be found late
    with torch.no_grad():
        lm.head.weight *= 0.3
    got = generate(
        lm, PROMPTS, max_new_tokens=7, beams=beams, stop=stop, length_penalty=power, pad=2
    )
    for row, prompt in enumerate(PROMPTS):
        score, tokens = searched(lm, prompt, 7, beams, stop, power)
        assert got.row(row) == prompt + tokens
        assert abs(float(got.scores[row]) - score) < 1e-5
        assert set(got.new[row, len(tokens) :].tolist()) <= {2}


@pytest.mark.parametrize("beams", [2, 3])
def test_most_ids_may_end_a_text(beams):
    """More of the best candidates end than there are beams, and still as many texts go on."""
    lm, stop = model(seed=3), tuple(range(4, 23))
    with torch.no_grad():
        lm.head.weight *= 0.3
    got = generate(lm, PROMPTS, max_new_tokens=5, beams=beams, stop=stop, length_penalty=3.0)
    for row, prompt in enumerate(PROMPTS):
        score, tokens = searched(lm, prompt, 5, beams, stop, 3.0)
        assert got.new[row, : len(tokens)].tolist() == tokens
        assert abs(float(got.scores[row]) - score) < 1e-5


def test_enough_beams_find_the_most_probable_text():
    lm = model(vocabulary=4)
    got = generate(lm, [[1, 2]], max_new_tokens=3, beams=16)
    scores = {}
    for tokens in product(range(4), repeat=3):
        steps = [log_probabilities(lm, [1, 2, *tokens[:at]])[tokens[at]] for at in range(3)]
        scores[tokens] = sum(steps) / 3
    assert got.new[0].tolist() == list(max(scores, key=scores.get))


def test_one_beam_is_greedy():
    lm = model()
    assert generate(lm, PROMPTS, max_new_tokens=4).row(0) == free_run(lm, PROMPTS[0], 4)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("beams=0", {"beams": 0}),
        ("length_penalty=-1", {"beams": 2, "length_penalty": -1.0}),
        ("length_penalty=2.0 without beams", {"length_penalty": 2.0}),
        ("beams=2 with sampling=Sample", {"beams": 2, "sampling": Sample()}),
        ("with on_token and keep_state", {"beams": 2, "on_token": print, "keep_state": True}),
        ("beams=2 with draft", {"beams": 2, "draft": model(SPEC, depth=1)}),
    ],
)
def test_refusals(match, options):
    with pytest.raises(ConfigError, match=match):
        generate(model(), PROMPTS, max_new_tokens=3, **options)
