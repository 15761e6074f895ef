"""Each restriction is its definition; draws depend on seed and row alone."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.sampling import RandomStreams, inverse_cdf, probabilities
from suffice.testing import assert_close, normal
from tests.generate.models import PROMPTS, V, free_run, model

LOGITS = 3.0 * normal(40, V, seed=3).float()


def by_definition(logits, sample, present=()):
    """Return probabilities of one row, from the definitions, in plain loops and doubles."""
    logits = [float(logit) for logit in logits]
    for token in set(present):
        up = logits[token] > 0
        penalty = sample.repetition_penalty
        logits[token] = logits[token] / penalty if up else logits[token] * penalty
    logits = [logit / sample.temperature for logit in logits]
    if sample.top_k is not None:
        least = sorted(logits)[-min(sample.top_k, len(logits))]
        logits = [logit if logit >= least else -math.inf for logit in logits]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    probs = [weight / sum(weights) for weight in weights]
    tokens_left, total = set(), 0.0
    for token in sorted(range(len(probs)), key=lambda token: (-probs[token], token)):
        if sample.top_p < 1.0 and tokens_left and total >= sample.top_p:
            break
        tokens_left.add(token)
        total += probs[token]
    tokens_left = {token for token in tokens_left if probs[token] >= sample.min_p * max(probs)}
    kept_sum = sum(probs[token] for token in tokens_left)
    return [probs[token] / kept_sum if token in tokens_left else 0.0 for token in range(len(probs))]


@pytest.mark.parametrize(
    "sample",
    [
        Sample(),
        Sample(temperature=0.3),
        Sample(temperature=4.0, top_k=5),
        Sample(top_k=1),
        Sample(top_k=99),
        Sample(top_p=0.7),
        Sample(top_p=0.01),
        Sample(min_p=0.1),
        Sample(min_p=1.0),
        Sample(temperature=2.0, top_k=12, top_p=0.8, min_p=0.2, repetition_penalty=1.7),
    ],
    ids=repr,
)
def test_probabilities_are_the_definition(sample):
    present = torch.zeros(len(LOGITS), V, dtype=torch.bool)
    present[:, [2, 5, 11, 17]] = True
    got = probabilities(LOGITS, sample, present)
    want = torch.tensor([by_definition(row, sample, (2, 5, 11, 17)) for row in LOGITS])
    assert got.dtype == torch.float32
    assert_close(got, want, n=V)
    assert ((got > 1e-30) == (want > 1e-30)).all()  # below lies where fp32 has 0


def test_equal_logits_at_the_edge():
    flat = torch.zeros(1, 5)
    assert (probabilities(flat, Sample(top_k=2)) > 0).sum() == 5
    assert probabilities(flat, Sample(top_p=0.5))[0].nonzero().flatten().tolist() == [0, 1, 2]


def test_shares_that_are_reached_exactly():
    """Probabilities 1/2, 1/4, 1/8, 1/8: top_p takes no token more, min_p one of just the share."""
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log()

    def kept(**options):
        return probabilities(logits, Sample(**options))[0].nonzero().flatten().tolist()

    assert kept(top_p=0.5) == [1]
    assert kept(top_p=0.75) == [1, 3]
    assert kept(top_p=0.875) == [0, 1, 3]
    assert kept(min_p=0.25) == [0, 1, 2, 3]
    assert kept(min_p=0.5) == [1, 3]


def test_half_logits_are_restricted_in_fp32():
    got = probabilities(LOGITS.bfloat16(), Sample(top_p=0.9))
    assert got.dtype == torch.float32
    assert_close(got, probabilities(LOGITS.bfloat16().float(), Sample(top_p=0.9)), "exact")


def test_tokens_are_drawn_by_their_probability():
    probs = torch.tensor([0.0, 0.1, 0.0, 0.6, 0.3, 0.0])
    u = torch.linspace(0, 1 - 2**-53, 10_001, dtype=torch.float64)
    got = torch.bincount(inverse_cdf(probs.expand(len(u), -1), u), minlength=6) / len(u)
    assert ((got - probs).abs() < 2e-3).all()
    assert (got[probs == 0] == 0).all()


def test_random_streams_are_uniform_and_of_their_row():
    streams = RandomStreams(3, [0, 1, 5], "cpu")
    drawn = torch.stack([streams.next() for _ in range(500)])
    assert ((drawn.mean(dim=0) - 0.5).abs() < 4 / math.sqrt(12 * 500)).all()
    assert len(drawn.unique()) == drawn.numel()
    alone = RandomStreams(3, [5], "cpu")
    assert torch.equal(torch.stack([alone.next() for _ in range(500)])[:, 0], drawn[:, 2])
    assert not torch.equal(RandomStreams(4, [0], "cpu").next(), drawn[:1, 0])


def test_every_pair_of_seed_and_row_has_its_own_numbers():
    pairs = product((0, 1, 11, 111), repeat=2)
    first = [float(RandomStreams(seed, [row], "cpu").next()) for seed, row in pairs]
    assert len(set(first)) == len(first)


def test_a_row_does_not_depend_on_its_neighbours():
    lm, sample = model(), Sample(temperature=3.0, top_k=15, top_p=0.95, min_p=0.01, seed=5)
    options = {"max_new_tokens": 70 - 20, "sampling": sample}
    want = generate(lm, PROMPTS, **options)
    assert torch.equal(generate(lm, PROMPTS, **options).tokens, want.tokens)
    got = generate(lm, [PROMPTS[0], [3], [9, 9, 9]], **options)
    assert got.row(0) == want.row(0)
    assert got.row(1) != want.row(1)
    other = generate(lm, PROMPTS, max_new_tokens=50, sampling=Sample(temperature=3.0, seed=6))
    assert other.row(0) != want.row(0)
    draws = RandomStreams(5, [0, 1, 2], "cpu").next()
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            probs = probabilities(lm(torch.tensor([prompt]))[:, -1], sample)
        assert int(inverse_cdf(probs, draws[row : row + 1])) == want.new[row, 0]
    twice = generate(lm, PROMPTS[:1] * 2, **options)
    assert twice.row(0) != twice.row(1)


def test_a_penalty_knows_prompt_and_new_tokens_but_no_padding():
    lm, penalty = model(), 1.9

    def choose(logits, row):
        scores = [float(logit) for logit in logits.float()]
        for token in set(row):
            scores[token] = (
                scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
            )
        return scores.index(max(scores))

    want = [free_run(lm, prompt, 15, choose) for prompt in PROMPTS]
    pad, sampling = want[0][3], Greedy(repetition_penalty=penalty)
    assert pad not in PROMPTS[0]
    got = generate(lm, PROMPTS, max_new_tokens=15, sampling=sampling, pad=pad)
    assert [got.row(row) for row in range(3)] == want
    assert want != [free_run(lm, prompt, 15) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [1e-4, 1e-40, 5e-324])
def test_a_cold_sample_is_greedy(temperature):
    lm = model()
    got = generate(lm, PROMPTS, max_new_tokens=9, sampling=Sample(temperature=temperature))
    assert torch.equal(got.tokens, generate(lm, PROMPTS, max_new_tokens=9).tokens)


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 1e300])
def test_a_penalty_that_overflows_leaves_probabilities(penalty):
    logits = torch.tensor([[3.0, -2.0, 1.0]])
    probs = probabilities(logits, Sample(repetition_penalty=penalty), torch.tensor([[True] * 3]))
    assert bool(probs.isfinite().all())
    assert_close(probs.sum(), torch.tensor(1.0), "same_math")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
    ],
)
def test_numbers_outside_their_range(options):
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name}="):
        Sample(**options)
    if name == "repetition_penalty":
        with pytest.raises(ConfigError, match="repetition_penalty"):
            Greedy(**options)
