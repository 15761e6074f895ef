"""Each row gives what it gives alone and ends where it ends."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from suffice import AttentionSpec
from suffice.errors import ConfigError
from suffice.generate import Sample, generate
from suffice.generate.decoding import piece_of
from suffice.kernels import Elu
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import Alignment
from suffice.patterns import Causal, Window
from tests.generate.models import PROMPTS, SPEC, free_run, model


@pytest.fixture(scope="module")
def lm():
    return model()


def as_lists(generated):
    return [generated.row(row) for row in range(len(generated.lengths))]


def test_rows_of_different_lengths_are_their_own_runs(lm):
    want = [free_run(lm, prompt, 12) for prompt in PROMPTS]
    assert len({token for row in want for token in row[-12:]}) > 4, "the model repeats itself"
    for memory in (Dynamic(), Static(20), Quantised(recent=64)):
        got = generate(lm, PROMPTS, max_new_tokens=12, memory=memory)
        assert as_lists(got) == want
        assert got.tokens.shape == (3, 21)
        assert got.lengths == (12, 12, 12)
        assert got.state is None
        assert got.scores is None
    assert got.tokens[0, :6].tolist() == [0] * 6
    assert got.new.shape == (3, 12)


@pytest.mark.parametrize("chunk", [1, 2, 5, None])
def test_a_prompt_may_be_read_in_pieces(lm, chunk):
    want = generate(lm, PROMPTS, max_new_tokens=5)
    got = generate(lm, PROMPTS, max_new_tokens=5, chunk=chunk)
    assert torch.equal(got.tokens, want.tokens)


def test_padding_of_a_tensor_may_stand_anywhere(lm):
    tokens, valid = torch.full((3, 11), 7), torch.zeros(3, 11, dtype=torch.bool)
    for row, at in enumerate(([0, 1, 2], [0, 2, 3, 4, 5, 6, 7, 8, 10], [1, 4, 9, 10])):
        valid[row, at] = True
        tokens[row, at] = torch.tensor(PROMPTS[row])
    want = generate(lm, PROMPTS, max_new_tokens=4)
    got = generate(lm, tokens, valid=valid, max_new_tokens=4)
    assert torch.equal(got.tokens, want.tokens)
    whole = generate(lm, torch.tensor(PROMPTS[:1]).int(), max_new_tokens=4)
    assert as_lists(whole) == as_lists(want)[:1]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        AttentionSpec(d_model=16, num_heads=4, pattern=Window(4) & Causal()),
        AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), mixing=Alignment(64)),
        AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), kernel=Elu()),
    ],
    ids=["rope", "window", "super", "linear"],
)
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_every_mechanism_streams(spec, positions):
    lm = model(spec, positions=positions)
    got = generate(lm, PROMPTS, max_new_tokens=6)
    assert as_lists(got) == [free_run(lm, prompt, 6) for prompt in PROMPTS]


def test_a_rolling_memory_reads_a_prompt_longer_than_its_window():
    lm = model(AttentionSpec(d_model=16, num_heads=4, pattern=Window(4) & Causal()))
    for chunk in (None, 3):
        got = generate(lm, PROMPTS, max_new_tokens=30, memory=Rolling(4), chunk=chunk)
        assert as_lists(got) == [free_run(lm, prompt, 30) for prompt in PROMPTS]


def test_only_memories_with_a_window_read_in_pieces_unasked():
    asked = [piece_of(memory, chunk) for memory in (Dynamic(), Rolling(500)) for chunk in (None, 7)]
    assert asked == [None, 7, 2000, 7]
    assert piece_of(Quantised(Rolling(9)), None) == 1024


def test_a_row_ends_with_its_first_stop_id_and_padding_follows(lm):
    free = generate(lm, PROMPTS, max_new_tokens=20).new
    stops = (int(free[0, 3]), int(free[1, 6]))
    told = []
    got = generate(lm, PROMPTS, max_new_tokens=20, stop=stops, pad=22, on_token=told.append)
    ends = []
    for row, tokens in enumerate(free.tolist()):
        end = next((at + 1 for at, token in enumerate(tokens) if token in stops), 20)
        ends.append(end)
        assert got.new[row, :end].tolist() == tokens[:end]
        assert set(got.new[row, end:].tolist()) <= {22}
        assert got.row(row) == PROMPTS[row] + tokens[:end]
    assert got.lengths == tuple(ends)
    assert ends[0] <= 4
    assert got.new.shape[1] == max(ends) == len(told)
    for row, end in enumerate(ends):
        column = [tokens[row] for tokens in told]
        assert column[:end] == free[row, :end].tolist()
        assert set(column[end:]) <= {None}


def test_stop_ids_inside_a_prompt_end_nothing(lm):
    free = generate(lm, PROMPTS, max_new_tokens=4)
    stop = next(t for t in PROMPTS[1] if t not in free.new.tolist()[1])
    got = generate(lm, PROMPTS[1:2], max_new_tokens=4, stop=(stop,))
    assert as_lists(got) == as_lists(free)[1:2]


def test_no_new_tokens_give_the_prompts_back(lm):
    told = []
    got = generate(lm, PROMPTS, max_new_tokens=0, memory=Static(1), on_token=told.append)
    assert as_lists(got) == PROMPTS
    assert got.new.shape == (3, 0)
    assert told == []


def test_dropout_is_off_meanwhile():
    lm = model(dropout=0.5)
    want = generate(lm, PROMPTS, max_new_tokens=6)
    lm.train()
    assert torch.equal(generate(lm, PROMPTS, max_new_tokens=6).tokens, want.tokens)
    assert lm.training


def test_a_kept_state_goes_on(lm):
    got = generate(lm, PROMPTS, max_new_tokens=5, keep_state=True)
    assert got.state.length == 9 + 4
    with torch.no_grad():
        logits = lm(got.tokens[:, -1:], state=got.state)[:, -1]
    assert (
        logits.argmax(dim=1).tolist() == generate(lm, PROMPTS, max_new_tokens=6).new[:, -1].tolist()
    )


def test_what_does_not_fit_is_refused_before_anything_is_read(lm, monkeypatch):
    dense = model(
        AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), mixing=Alignment(64)),
        positions="none",
    )
    monkeypatch.setattr(type(lm), "features", None)
    twenty = [list(range(20))]
    with pytest.raises(ConfigError, match=r"prompt of 20 and 5 .* 24 positions .* has 16"):
        generate(lm, twenty, max_new_tokens=5, memory=Static(16))
    with pytest.raises(ConfigError, match=r"24 positions of Quantised.* has 23"):
        generate(lm, twenty, max_new_tokens=5, memory=Quantised(Static(23)))
    with pytest.raises(ConfigError, match=r"65 positions of a model that learned 64"):
        generate(lm, twenty, max_new_tokens=46)
    with pytest.raises(ConfigError, match=r"65 positions; Alignment in block 0 reaches 64"):
        generate(dense, twenty, max_new_tokens=46)


def test_exactly_what_fits_is_written(lm):
    got = generate(lm, [list(range(20))], max_new_tokens=45, memory=Static(64))
    assert got.lengths == (45,)


@pytest.mark.parametrize(
    ("told", "tokens", "options"),
    [
        ("max_new_tokens=-1", [[1]], {"max_new_tokens": -1}),
        ("no prompts", [], {}),
        ("prompt 1 has no token", [[1], []], {}),
        ("prompts hold id 23; give ids of 0 to 22", [[23]], {}),
        ("prompts hold id -1", [[-1]], {}),
        ("valid beside lists", [[1]], {"valid": torch.ones(1, 1, dtype=torch.bool)}),
        ("tokens have dtype torch.float32", torch.ones(1, 1), {}),
        ("chunk=0", [[1]], {"chunk": 0}),
        (r"stop=\(23,\), pad=0: 23 is no id", [[1]], {"stop": (23,)}),
        ("pad=-1: -1 is no id", [[1]], {"pad": -1}),
        ("counts every position", [[1], [1, 2]], {"memory": Rolling(4, sinks=1)}),
    ],
)
def test_refusals(lm, told, tokens, options):
    with pytest.raises(ConfigError, match=told):
        generate(lm, tokens, **{"max_new_tokens": 3, **options})


STATM = Path("/proc/self/statm")


def highest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # until now


def present():
    if not STATM.exists():
        pytest.skip(f"{STATM}, which tells the present memory of a process, is not here")
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("resident", [highest, present])
def test_many_calls_keep_no_memory(lm, resident):
    prompts = [list(range(20))] * 32  # a call that kept what it read would show

    def call(number):
        return generate(lm, prompts, max_new_tokens=3, sampling=Sample(seed=number))

    for number in range(5):
        call(number)
    before = resident()
    for number in range(5, 50):
        call(number)
    assert resident() - before <= 2 * 2**20
