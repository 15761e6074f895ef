"""The engine: every text is what `generate` writes alone, whatever is written beside it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from serving.tests.listeners import Kept
from suffice import AttentionSpec, preset
from suffice.errors import ConfigError, StateError
from suffice.generate import Greedy, Sample, generate
from suffice.models.state import ModelState
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import assert_close
from suffice_serve.engine import CHUNK, Engine, Limits, Prefixes
from suffice_serve.job import Job, TooMany
from tests.generate.models import PROMPTS, V, model
from tests.positions.test_lengths import KNOWN, LENGTH
from tests.positions.test_lengths import model as known_positions

SPECS = {
    "rotary": AttentionSpec(
        d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal(), position=Rope()
    ),
    "window": preset("mistral", 16, 4, num_kv_heads=2, window=5, causal=True),
    "mixed": preset("super_attention", 16, 4, causal=True, length=64),
    "sums": preset("linear", 16, 4, causal=True),
}
JOBS = [
    (prompt * times, Greedy() if n % 2 else Sample(seed=n, temperature=0.7, top_p=0.9), 4 + 5 * n)
    for n, (prompt, times) in enumerate(zip(PROMPTS * 2, (1, 3, 2, 4, 1, 2), strict=True))
]


@pytest.fixture
def engines():
    """A function that starts engines, which end with the test."""
    started = []

    def start(lm, limits=None, **options):
        engine = Engine(lm, limits or Limits(), **options)
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.close(0.0)


def written(engine, jobs):
    """Return the texts of jobs that are submitted together."""
    kept = [Kept() for _ in jobs]
    for (prompt, sampling, new), each in zip(jobs, kept, strict=True):
        engine.submit(Job(prompt=tuple(prompt), max_tokens=new, sampling=sampling), each)
    return [each.wait().tokens for each in kept]


def alone(lm, prompt, sampling, new):
    """Return the tokens that `generate` writes after a prompt."""
    return generate(lm, [prompt], max_new_tokens=new, sampling=sampling).row(0)[len(prompt) :]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_each_text_is_what_generate_writes_alone(name, rows, engines):
    lm = model(SPECS[name], positions="none")
    texts = written(engines(lm, Limits(rows=rows)), JOBS)
    assert texts == [alone(lm, *job) for job in JOBS]


def test_texts_are_joined_where_all_keys_are_kept(engines):
    joined = {name: engines(model(spec, positions="none")).joins for name, spec in SPECS.items()}
    assert joined["rotary"]
    assert not joined["sums"]


def test_native_steps_write_the_same_beside_others_as_alone(engines):
    lm = model(positions="none").float()
    engine = engines(lm, Limits(rows=4))
    jobs = JOBS * 4
    assert written(engine, jobs) == [text for job in jobs for text in written(engine, [job])]


@pytest.mark.parametrize("length", [127, 128, 129, 300])
def test_long_prompts_are_read_in_pieces(length, engines):
    lm = model(positions="none")
    prompt = [n * n % V for n in range(length)]
    engine = engines(lm)
    job = (prompt, Greedy(), 5)
    assert written(engine, [job, *JOBS, job])[-1] == alone(lm, *job)


def test_a_text_is_written_on_while_a_long_prompt_is_read(engines, monkeypatch):
    lm = model(positions="none")
    features, begun, ahead = type(lm).features, threading.Event(), threading.Event()

    class Running(Kept):
        def token(self, score):
            begun.set()
            if len(self.tokens) == 30:
                ahead.set()
            return super().token(score)

    def held(self, tokens, **options):
        if tokens.shape[1] == CHUNK:  # of the long prompt, which waits for 30 steps of the other
            assert ahead.wait(10)
        return features(self, tokens, **options)

    monkeypatch.setattr(type(lm), "features", held)
    running, long = Running(), Kept()
    engine = engines(lm)
    engine.submit(Job(prompt=(1, 2, 3), max_tokens=60), running)
    assert begun.wait(60)
    prompt = tuple(n * n % V for n in range(2 * CHUNK + 5))
    engine.submit(Job(prompt=prompt, max_tokens=5), long)
    assert running.wait().tokens == alone(lm, [1, 2, 3], Greedy(), 60)
    assert long.wait().tokens == alone(lm, list(prompt), Greedy(), 5)


@pytest.mark.parametrize(
    ("lengths", "cached"),
    [
        ((300, 300, 280), 2 * 256),
        ((257, 256, 128), 0),  # after 256 kept tokens, a prompt of 256 has none to read
        ((129, 257, 256), 128 + 128),
        ((129, 128, 129), 128),
        ((130, 129, 385), 128 + 128),
    ],
)
def test_prefixes_are_continued_and_change_nothing(lengths, cached, engines):
    lm = model(positions="none")
    prompt = [n * n % V for n in range(400)]
    engine = engines(lm)
    jobs = [(prompt[:end], Greedy(), 5) for end in lengths]
    assert [written(engine, [job])[0] for job in jobs] == [alone(lm, *job) for job in jobs]
    assert engine.figures()["cached_tokens"] == cached


def test_a_prompt_that_differs_in_any_chunk_finds_no_prefix():
    prefixes = Prefixes(1 << 30, 4)
    state = model(positions="none").state()
    prompt = tuple(range(16))
    prefixes.keep(prompt, state)
    assert prefixes.find((*prompt, 1)) is prefixes.find((*prompt, *prompt)) is not None
    for place in range(16):
        other = (*prompt[:place], prompt[place] + 1, *prompt[place + 1 :], 1)
        assert prefixes.find(other) is None
    assert prefixes.find((*prompt[4:], *prompt[:4], 1)) is None
    assert prefixes.find(prompt) is None


def test_a_prefix_is_sought_in_one_pass_over_the_prompt():
    read = []

    class Prompt(tuple):
        def __getitem__(self, place):
            part = super().__getitem__(place)
            read.append(len(part))
            return part

    prefixes = Prefixes(1 << 30, 128)
    prefixes.keep((1,) * 128, model(positions="none").state())
    assert prefixes.find(Prompt((2,) * 40_001)) is None
    assert sum(read) <= 40_001


def test_prompts_that_wait_are_bounded_in_tokens(engines, monkeypatch):
    monkeypatch.setattr("suffice_serve.engine.MOST_TOKENS", 100)
    engine = engines(model(positions="none"))
    gate = Kept()
    engine.submit(Job(prompt=(1,) * 200, max_tokens=50_000), gate)  # alone it may be longer
    with pytest.raises(TooMany):
        engine.submit(Job(prompt=(2,), max_tokens=1), Kept())
    other = engines(model(positions="none"))
    shared = Job(prompt=(3,) * 60, max_tokens=50_000)
    other.submit_all([(shared, Kept()) for _ in range(9)])
    other.submit(Job(prompt=(4,) * 40, max_tokens=1), Kept())
    with pytest.raises(TooMany):
        other.submit(Job(prompt=(5,) * 41, max_tokens=1), Kept())


def test_prefixes_stay_within_their_bytes(engines):
    lm = model(positions="none")
    one = engines(lm)
    written(one, [([1] * 129, Greedy(), 1)])
    limit = int(2.5 * one.figures()["prefix_bytes"])
    engine = engines(lm, Limits(prefixes=limit))
    for token in range(6):
        written(engine, [([token] * 129, Greedy(), 1)])
    assert 0 < engine.figures()["prefix_bytes"] <= limit
    none = engines(lm, Limits(prefixes=0))
    written(none, [([1] * 129, Greedy(), 1)])
    assert none.figures()["prefix_bytes"] == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_stop_id_ends_a_text_and_is_no_part_of_it(place, engines):
    lm = model(positions="none")
    text = alone(lm, [1, 2, 3], Greedy(), 20)
    absent = [token for token in range(V) if token not in text][:2]
    kept = Kept()
    stop = (*absent[:place], text[4], *absent[place:])
    engines(lm).submit(Job(prompt=(1, 2, 3), max_tokens=20, stop=stop), kept)
    assert kept.wait().tokens == text[: text.index(text[4])]
    assert kept.reason == "stop"


def test_nothing_is_written_where_no_tokens_are_asked_for(engines):
    kept = Kept()
    engines(model(positions="none")).submit(Job(prompt=(1, 2), max_tokens=0), kept)
    assert (kept.wait().tokens, kept.reason) == ([], "length")


def test_a_text_that_fails_leaves_the_others(engines):
    lm = model(positions="none")
    errors = []
    engine = engines(lm, log=errors.append)
    kept = [Kept(fails_at=3 if n == 2 else None) for n in range(5)]
    for each in kept:
        engine.submit(Job(prompt=(1, 2, 3), max_tokens=9), each)
    texts = [each.wait().tokens for each in kept]
    assert texts == [alone(lm, [1, 2, 3], Greedy(), 9)[: 3 if n == 2 else 9] for n in range(5)]
    assert kept[2].error == "a listener failed"
    assert [type(error) for error in errors] == [ValueError]
    assert engine.figures()["failed"] == 1


def test_a_step_that_fails_ends_its_texts_and_the_engine_goes_on(engines, monkeypatch):
    lm = model(positions="none")
    engine = engines(lm)
    step = type(lm).step

    def broken(self, tokens, state):
        monkeypatch.setattr(type(lm), "step", step)
        raise MemoryError("no room")

    monkeypatch.setattr(type(lm), "step", broken)
    kept = Kept()
    engine.submit(Job(prompt=(1, 2, 3), max_tokens=9), kept)
    assert kept.wait().error == "no room"
    assert written(engine, [JOBS[0]]) == [alone(lm, *JOBS[0])]


def test_a_batch_that_cannot_be_made_ends_its_texts_and_the_engine_goes_on(engines, monkeypatch):
    lm, errors = model(positions="none"), []
    engine = engines(lm, log=errors.append)
    join = ModelState.join

    def broken(rows):
        monkeypatch.setattr(ModelState, "join", join)
        raise MemoryError("no room")

    monkeypatch.setattr(ModelState, "join", broken)
    gate, other = Gate(), Kept()
    engine.submit(Job(prompt=(1, 2, 3), max_tokens=50), gate)
    engine.submit(Job(prompt=(1, 2, 3), max_tokens=50), other)
    gate.open.set()
    assert {gate.wait().error, other.wait().error} == {"no room"}
    assert [type(error) for error in errors] == [MemoryError]
    assert written(engine, JOBS) == [alone(lm, *job) for job in JOBS]
    assert engine.figures()["running"] == 0


class Gate(Kept):
    """Holds the engine at its first token until it is opened."""

    def __init__(self, **options):
        super().__init__(**options)
        self.reached, self.open = threading.Event(), threading.Event()

    def token(self, score):
        self.reached.set()
        assert self.open.wait(60)
        return super().token(score)


def test_a_full_queue_refuses_and_cancelled_texts_make_room(engines):
    lm = model(positions="none")
    engine = engines(lm, Limits(rows=1, queue=1))
    gate, waiting = Gate(), Kept()
    engine.submit(Job(prompt=(1,), max_tokens=30), gate)
    assert gate.reached.wait(60)
    ticket = engine.submit(Job(prompt=(2,), max_tokens=30), waiting)
    with pytest.raises(TooMany, match="2"):
        engine.submit(Job(prompt=(3,), max_tokens=1), Kept())
    ticket.cancel()
    gate.open.set()
    gate.wait()
    _until(lambda: engine.figures()["cancelled"] == 1)
    assert written(engine, [JOBS[0]]) == [alone(lm, *JOBS[0])]
    figures = engine.figures()
    assert (figures["refused"], figures["cancelled"]) == (1, 1)
    assert waiting.tokens == []


def _until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("beside", [True, False])
def test_texts_wait_until_there_is_room_for_all_their_positions(engines, beside):
    """Joined texts are as long as the longest: room for twice the long one, not for both."""
    lm = model(positions="none")
    jobs = [Job(prompt=(1,), max_tokens=tokens) for tokens in (39, 10)]
    engine = engines(lm, Limits(cache=2 * engines(lm).nbytes_of(jobs[0].positions) - (not beside)))
    kept = [Kept() for _ in jobs]
    engine.submit_all([*zip(jobs, kept, strict=True)])
    for job, each in zip(jobs, kept, strict=True):
        assert each.wait().tokens == alone(lm, [1], Greedy(), job.max_tokens)
    steps = [job.max_tokens - 1 for job in jobs]  # the first token is of the prompt
    assert engine.counters.steps == (max(steps) if beside else sum(steps))
    with pytest.raises(ConfigError, match="positions|state"):
        engine.submit(Job(prompt=(1,), max_tokens=400), Kept())


def test_requests_that_cannot_be_done_are_refused_at_once(engines):
    engine = engines(model(positions="learned"), Limits(rows=2, queue=2))
    for job, named in (
        (Job(prompt=(1,) * 60, max_tokens=6), "65"),
        (Job(prompt=(V,), max_tokens=1), str(V)),
        (Job(prompt=(1,), max_tokens=1, bias={V: 1.0}), str(V)),
    ):
        with pytest.raises(ConfigError, match=named):
            engine.submit(job, Kept())
    with pytest.raises(ConfigError, match="5"):
        engine.submit_all([(Job(prompt=(1,), max_tokens=1), Kept())] * 5)
    with pytest.raises(ConfigError, match="prompt"):
        Job(prompt=(), max_tokens=1)
    with pytest.raises(ConfigError, match="rows"):
        Limits(rows=0)


def test_closing_finishes_what_was_accepted_and_refuses_more(engines):
    lm = model(positions="none")
    engine = engines(lm)
    kept = Kept()
    engine.submit(Job(prompt=(1, 2), max_tokens=30), kept)
    engine.close(60.0)
    assert kept.tokens == alone(lm, [1, 2], Greedy(), 30)
    with pytest.raises(TooMany):
        engine.submit(Job(prompt=(1, 2), max_tokens=30), Kept())


def test_closing_at_once_tells_those_who_wait(engines):
    engine = engines(model(positions="none"), Limits(rows=1))
    gate, waiting = Gate(), Kept()
    engine.submit(Job(prompt=(1,), max_tokens=10**6), gate)
    engine.submit(Job(prompt=(1,), max_tokens=5), waiting)
    assert gate.reached.wait(60)
    closer = threading.Thread(target=engine.close, args=(0.0,))
    closer.start()
    _until(lambda: engine._stopped)
    gate.open.set()
    closer.join(60)
    assert "stopping" in gate.wait().error
    assert "stopping" in waiting.wait().error


# States.


def _state(lm, prompt):
    state = lm.state()
    with torch.no_grad():
        lm.features(torch.tensor([prompt]), state=state)
    return state


def _next(lm, state, tokens):
    with torch.no_grad():
        return lm.step(torch.tensor(tokens), state)


def test_padding_between_the_tokens_of_a_row_is_left_out_by_join_and_put():
    lm = model(positions="none")
    tokens, valid = torch.tensor([[5, 9, 9, 7]]), torch.tensor([[True, False, False, True]])
    gapped, longer = lm.state(), _state(lm, [1, 2, 3, 4])
    with torch.no_grad():
        lm.features(tokens, valid=valid, state=gapped)
        expected = lm(torch.tensor([[5, 7, 3]]))[0, -1]
    joined = ModelState.join([(gapped, 0), (longer, 0)])
    longer.put(0, gapped)
    assert_close(_next(lm, joined, [3, 3])[0], expected)
    assert_close(_next(lm, longer, [3])[0], expected)


def test_put_and_join_refuse_what_does_not_fit():
    lm = model(positions="none")
    short, long = _state(lm, [1, 2]), _state(lm, [1, 2, 3])
    with pytest.raises(StateError, match="3"):
        short.put(0, long)
    sums = model(SPECS["sums"], positions="none")
    with pytest.raises(StateError, match="keep"):
        ModelState.join([(_state(sums, [1]), 0)])
    with pytest.raises(StateError, match="keep"):
        long.put(0, ModelState.join([(short, 0), (short, 0)]))


def test_a_request_beyond_the_known_positions_is_refused():
    lm = known_positions(KNOWN)
    engine = Engine(lm, Limits())
    try:
        with pytest.raises(ConfigError, match=str(LENGTH)):
            engine.submit(Job(prompt=(1,) * 10, max_tokens=9, sampling=Greedy()), Kept())
    finally:
        engine.close(0.0)
