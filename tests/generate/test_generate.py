"""Each row gives what it gives alone and ends where it ends."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from suffice import AttentionSpec
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.decoding import prefill_chunk
from suffice.kernels import Elu
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import Alignment
from suffice.patterns import Causal, Window
from suffice.presets import preset
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
    first_row = generate(lm, torch.tensor(PROMPTS[:1]).int(), max_new_tokens=4)
    assert as_lists(first_row) == as_lists(want)[:1]


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


def test_only_memories_with_a_window_read_in_chunks_by_default():
    chunks = [
        prefill_chunk(memory, chunk) for memory in (Dynamic(), Rolling(500)) for chunk in (None, 7)
    ]
    assert chunks == [None, 7, 2000, 7]
    assert prefill_chunk(Quantised(Rolling(9)), None) == 1024


def test_a_row_ends_with_its_first_stop_id_and_padding_follows(lm):
    free = generate(lm, PROMPTS, max_new_tokens=20).new
    stops = (int(free[0, 3]), int(free[1, 6]))
    calls = []
    got = generate(lm, PROMPTS, max_new_tokens=20, stop=stops, pad=22, on_token=calls.append)
    ends = []
    for row, tokens in enumerate(free.tolist()):
        end = next((at + 1 for at, token in enumerate(tokens) if token in stops), 20)
        ends.append(end)
        assert got.new[row, :end].tolist() == tokens[:end]
        assert set(got.new[row, end:].tolist()) <= {22}
        assert got.row(row) == PROMPTS[row] + tokens[:end]
    assert got.lengths == tuple(ends)
    assert ends[0] <= 4
    assert got.new.shape[1] == max(ends) == len(calls)
    for row, end in enumerate(ends):
        column = [tokens[row] for tokens in calls]
        assert column[:end] == free[row, :end].tolist()
        assert set(column[end:]) <= {None}


def test_stop_ids_inside_a_prompt_end_nothing(lm):
    free = generate(lm, PROMPTS, max_new_tokens=4)
    stop = next(t for t in PROMPTS[1] if t not in free.new.tolist()[1])
    got = generate(lm, PROMPTS[1:2], max_new_tokens=4, stop=(stop,))
    assert as_lists(got) == as_lists(free)[1:2]


def test_no_new_tokens_give_the_prompts_back(lm):
    calls = []
    got = generate(lm, PROMPTS, max_new_tokens=0, memory=Static(1), on_token=calls.append)
    assert as_lists(got) == PROMPTS
    assert got.new.shape == (3, 0)
    assert calls == []


def test_dropout_is_off():
    lm = model(dropout=0.5)
    want = generate(lm, PROMPTS, max_new_tokens=6)
    lm.train()
    assert torch.equal(generate(lm, PROMPTS, max_new_tokens=6).tokens, want.tokens)
    assert lm.training


def test_the_state_of_a_result_goes_on(lm):
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
    with pytest.raises(ConfigError, match="24 positions"):
        generate(lm, twenty, max_new_tokens=5, memory=Static(16))
    with pytest.raises(ConfigError, match="24 positions"):
        generate(lm, twenty, max_new_tokens=5, memory=Quantised(Static(23)))
    with pytest.raises(ConfigError, match="65 positions"):
        generate(lm, twenty, max_new_tokens=46)
    with pytest.raises(ConfigError, match="65 positions"):
        generate(dense, twenty, max_new_tokens=46)


def test_exactly_what_fits_is_written(lm):
    got = generate(lm, [list(range(20))], max_new_tokens=45, memory=Static(64))
    assert got.lengths == (45,)


@pytest.mark.parametrize(
    ("match", "tokens", "options"),
    [
        ("max_new_tokens=-1", [[1]], {"max_new_tokens": -1}),
        ("no prompts", [], {}),
        ("prompt 1 has no token", [[1], []], {}),
        ("prompts hold id 23; give ids of 0 to 22", [[23]], {}),
        ("prompts hold id -1", [[-1]], {}),
        ("valid with lists", [[1]], {"valid": torch.ones(1, 1, dtype=torch.bool)}),
        ("tokens have dtype torch.float32", torch.ones(1, 1), {}),
        ("chunk=0", [[1]], {"chunk": 0}),
        (r"stop=\(23,\), pad=0: 23 is not an id", [[1]], {"stop": (23,)}),
        ("pad=-1: -1 is not an id", [[1]], {"pad": -1}),
        ("counts every position", [[1], [1, 2]], {"memory": Rolling(4, sinks=1)}),
    ],
)
def test_refusals(lm, match, tokens, options):
    with pytest.raises(ConfigError, match=match):
        generate(lm, tokens, **{"max_new_tokens": 3, **options})


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ("abc", r"a prompt is 'a'; give a list of prompts, each the ids of a tokenizer"),
        ([1, 2], r"a prompt is 1; give a list of prompts"),
        ([[[1]]], r"a prompt is \[\[1\]\]; give a list"),
        ([[1.5, 2.0]], r"a prompt has dtype torch.float32; ids are integers"),
        ([[True]], r"a prompt has dtype torch.bool; ids are integers"),
    ],
)
def test_prompts_of_wrong_types(tokens, match):
    with pytest.raises(ConfigError, match=match):
        generate(model(), tokens, max_new_tokens=1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_new_tokens": 2.0}, r"max_new_tokens=2.0 is not a whole number"),
        ({"max_new_tokens": True}, r"max_new_tokens=True is not a whole number"),
        ({"beams": True}, r"beams=True is not a whole number"),
        ({"sampling": "greedy"}, r"sampling='greedy': give Greedy\(\) or Sample\(...\)"),
        ({"memory": "dynamic"}, r"memory='dynamic' is not a KV cache; give, for example"),
        ({"stop": 2}, r"stop=2: give the ids that end a row as a sequence"),
        ({"stop": "x"}, r"stop='x': give the ids that end a row as a sequence"),
        ({"stop": (True,)}, r"True is not an id"),
    ],
)
def test_options_of_wrong_types(options, match):
    with pytest.raises(ConfigError, match=match):
        generate(model(), [[1]], **{"max_new_tokens": 1, **options})


@pytest.mark.parametrize(
    ("thing", "match"),
    [
        ("runs/char", "runs/char"),
        (torch.optim.SGD([torch.zeros(1)]), "SGD"),  # has a state
        (SimpleNamespace(config=None), "SimpleNamespace"),
    ],
    ids=["text", "state", "config"],
)
def test_other_objects_are_no_model(thing, match):
    with pytest.raises(ConfigError, match=match):
        generate(thing, [[1]], max_new_tokens=1)


def test_ids_may_be_numpy_or_torch():
    wanted = generate(model(), [[1, 2]], max_new_tokens=2).tokens
    for prompts in (np.array([[1, 2]]), [torch.tensor([1, 2])], [np.array([1, 2], "uint8")]):
        assert torch.equal(generate(model(), prompts, max_new_tokens=2).tokens, wanted)


@pytest.mark.parametrize("field", [{"temperature": "1"}, {"top_k": True}, {"seed": 1.5}])
def test_sampling_options_of_wrong_types(field):
    with pytest.raises(ConfigError, match=rf"Sample: {next(iter(field))}=.* is not a"):
        Sample(**field)
    with pytest.raises(ConfigError, match="repetition_penalty='1'"):
        Greedy(repetition_penalty="1")


def test_texts_end_where_positions_do():
    aligned = preset("super_attention", SPEC.d_model, 4, length=64, causal=True)
    for lm in (model(), model(aligned, positions="none")):
        row = [list(range(20)) * 3]
        assert len(generate(lm, row, max_new_tokens=5).row(0)) == 65
        with pytest.raises(ConfigError, match="need 65 positions"):
            generate(lm, row, max_new_tokens=6)


def test_numpy_integers_are_accepted():
    new, stop = np.int64(3), (np.int32(2),)
    got = generate(model(), np.array([[1, 2]]), max_new_tokens=new, stop=stop)
    assert torch.equal(got.tokens, generate(model(), [[1, 2]], max_new_tokens=3, stop=(2,)).tokens)


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


@pytest.mark.parametrize("impl", ["torch", "auto"])
def test_any_of_several_stop_ids_ends_a_row(impl):
    """Each row at its own, the last one listed as well as the first."""
    lm = model()
    rows = [free_run(lm, prompt, 6)[len(prompt) :] for prompt in PROMPTS]
    stop = tuple(dict.fromkeys([22, *(row[2] for row in rows)]))
    got = generate(lm, PROMPTS, max_new_tokens=6, stop=stop, pad=21, impl=impl)
    for number, row in enumerate(rows):
        end = 1 + next(i for i, token in enumerate(row) if token in stop)
        assert got.new[number].tolist()[:end] == row[:end]
        assert set(got.new[number].tolist()[end:]) <= {21}
