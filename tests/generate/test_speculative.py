"""Speculative decoding changes the speed, not the text."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.decoding import Prompts
from suffice.generate.sampling import Sampler, inverse_cdf, probabilities
from suffice.generate.speculative import _SpeculativeRow, accept
from suffice.kernels import Elu
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.patterns import Causal, Window
from suffice.testing import normal
from tests.generate.models import PROMPTS, SPEC, V, model


@pytest.fixture(scope="module")
def lm():
    return model()


def near(lm, share):
    """Return a model that agrees with another one now and then."""
    other = model(seed=7)
    with torch.no_grad():
        for a, b in zip(other.parameters(), lm.parameters(), strict=True):
            a.copy_(b + share * a)
    return other


@pytest.mark.parametrize("drafts", [1, 3, 8])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.6])
def test_greedy_tokens_are_the_models_own(lm, drafts, share, penalty):
    options = {"max_new_tokens": 20, "sampling": Greedy(repetition_penalty=penalty), "stop": (16,)}
    want, calls = generate(lm, PROMPTS, **options), []
    got = generate(
        lm, PROMPTS, draft=near(lm, share), drafts=drafts, on_token=calls.append, **options
    )
    assert torch.equal(got.tokens, want.tokens)
    assert got.lengths == want.lengths
    assert {len(tokens) for tokens in calls} == {3}
    for row in range(3):
        assert [t[row] for t in calls if t[row] is not None] == got.row(row)[-got.lengths[row] :]


@pytest.mark.parametrize("memory", [Dynamic(), Static(40), Rolling(30, spare=2)], ids=repr)
@pytest.mark.parametrize("sampling", [Greedy(), Sample(temperature=2.0, seed=3)], ids=str)
def test_each_row_is_written_as_alone(lm, memory, sampling):
    """With several stop ids, at which rows end at different places, and random numbers by row."""
    options = {"sampling": sampling, "draft": near(lm, 0.1), "max_new_tokens": 20, "memory": memory}
    free = generate(lm, PROMPTS, **options)
    stop = tuple(int(free.new[row, 2 + 3 * row]) for row in range(3))
    got = generate(lm, PROMPTS, stop=stop, pad=22, **options)
    for row, tokens in enumerate(free.new.tolist()):
        end = next(at + 1 for at, token in enumerate(tokens) if token in stop)
        assert got.row(row) == PROMPTS[row] + tokens[:end]
        assert set(got.new[row, end:].tolist()) <= {22}
    others = generate(lm, [[9, 9], PROMPTS[1], PROMPTS[1]], **options)
    assert others.row(1) == free.row(1)
    assert (others.row(2) == free.row(1)) == isinstance(sampling, Greedy)


def test_dropout_is_off_in_both_models():
    lm, draft = model(dropout=0.5), model(depth=1, seed=3, dropout=0.5)
    options = {"max_new_tokens": 12, "draft": draft, "sampling": Sample(temperature=2.0)}
    want = generate(lm, PROMPTS, **options)
    for training in ((True, True), (True, False), (False, True)):
        lm.train(training[0])
        draft.train(training[1])
        assert torch.equal(generate(lm, PROMPTS, **options).tokens, want.tokens)
        assert (lm.training, draft.training) == training


@pytest.mark.parametrize("penalty", [1.0, 1.6])
def test_a_good_draft_saves_calls_of_the_model(lm, penalty):
    calls, features = [], type(lm).features

    def counted(self, tokens, **options):
        calls.append(self is lm)
        return features(self, tokens, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lm), "features", counted)
        options = {"draft": near(lm, 0.0), "sampling": Greedy(repetition_penalty=penalty)}
        generate(lm, PROMPTS[:1], max_new_tokens=21, drafts=4, **options)
    assert sum(calls) == 1 + 4  # the prompt, then five tokens a call


@pytest.mark.parametrize("memory", [Dynamic(), Static(40), Rolling(4), Rolling(5, spare=9)])
def test_every_exact_memory_drops_rejected_drafts(memory):
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Window(4) & Causal())
    lm = model(spec)
    want = generate(lm, PROMPTS[:1], max_new_tokens=30)
    draft = model(SPEC, depth=1, seed=3) if memory.window is None else model(spec, seed=4)
    got = generate(lm, PROMPTS[:1], max_new_tokens=30, draft=draft, memory=memory)
    assert torch.equal(got.tokens, want.tokens)


def test_accepted_tokens_have_the_models_distribution():
    n = 200_000
    wanted, proposed = normal(2, 7, seed=5).mul(1.5).softmax(dim=-1)
    wanted, proposed = wanted.clone(), proposed.clone()
    wanted[2], proposed[4] = 0.0, 0.0
    generator = torch.Generator().manual_seed(1)
    at = torch.rand(3, n, generator=generator, dtype=torch.float64)
    drafted = inverse_cdf((proposed / proposed.sum()).expand(n, -1), at[0])
    shares = [(p / p.sum()).expand(n, -1) for p in (wanted, proposed)]
    tokens, stands = accept(*shares, drafted, at[1], at[2])
    got, want = torch.bincount(tokens, minlength=7) / n, shares[0][0]
    assert ((got - want).abs() <= 4 * (want * (1 - want) / n).sqrt()).all()
    both = torch.minimum(shares[0][0], shares[1][0]).sum()
    assert abs(float(stands.double().mean()) - float(both)) < 0.01
    assert (tokens[stands] == drafted[stands]).all()
    same, all_stand = accept(shares[1], shares[1], drafted, at[1], at[2])
    assert all_stand.all()
    assert torch.equal(same, drafted)


def test_sampled_texts_have_the_models_distribution():
    """Pairs of tokens behind one prompt, against their exact probabilities."""
    lm, draft = model(vocabulary=4, depth=1), model(vocabulary=4, depth=1, seed=9)
    sample, n = {"temperature": 4.0, "top_k": 3}, 300
    with torch.no_grad():
        first = probabilities(lm(torch.tensor([[1, 2]]))[:, -1], Sample(**sample))[0]
        rows = torch.tensor([[1, 2, token] for token in range(4)])
        want = first[:, None] * probabilities(lm(rows)[:, -1], Sample(**sample))
    counts = torch.zeros(4, 4)
    for seed in range(n):
        sampling = Sample(**sample, seed=seed)
        got = generate(lm, [[1, 2]], max_new_tokens=3, sampling=sampling, draft=draft, drafts=2)
        counts[tuple(got.new[0, :2].tolist())] += 1
    error = (want * (1 - want) / n).sqrt()
    assert ((counts / n - want).abs() <= 4 * error + 1e-9).all()


@pytest.mark.parametrize(
    ("match", "draft", "options"),
    [
        ("drafts=0", model(), {"drafts": 0}),
        ("9 tokens", model(vocabulary=9), {}),
        ("keep_state with draft", model(), {"keep_state": True}),
        (
            "Elu keeps sums",
            model(AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), kernel=Elu())),
            {},
        ),
        (
            "Infini keeps sums",
            model(preset("infini", 16, 4, segment=4), positions="none"),
            {},
        ),
        ("Quantised", model(), {"memory": Quantised()}),
    ],
)
def test_refusals(lm, match, draft, options):
    with pytest.raises(ConfigError, match=match):
        generate(lm, PROMPTS, max_new_tokens=3, draft=draft, **options)


@torch.no_grad()
def test_after_every_step_both_states_hold_the_text_so_far(lm):
    prompt = Prompts(tokens=torch.tensor(PROMPTS[:1]), valid=None, lengths=(len(PROMPTS[0]),))
    sampler = Sampler(Greedy(), prompt.tokens, None, V)
    row = _SpeculativeRow(lm, near(lm, 0.1), Dynamic(), sampler)
    length, accepted = len(PROMPTS[0]) + len(row.prefill(prompt, None)), set()
    for _ in range(10):
        tokens = row.step(3)
        accepted.add(len(tokens) - 1)
        length += len(tokens)
        assert row.state.length == length - 1
        assert row.draft_state.length == length - len(row.unread)
    assert len(accepted) > 1
