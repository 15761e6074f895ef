from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.generate import generate
from suffice.measure.edge import run as module
from suffice.measure.edge.bench import percentiles
from suffice.measure.edge.run import Writer, run_of
from suffice.memory import Static
from suffice.testing import assert_close
from tests.measure.edge import tiny


def test_rates_are_of_the_prompt_and_of_the_tokens_after_the_first():
    run = run_of([7, 8, 9], prompt=10, ticks=[1.0, 3.0, 3.5, 4.5])
    assert run.tokens == (7, 8, 9)
    assert run.prefill == 5.0
    assert run.token_seconds == (0.5, 1.0)
    assert run.decode == 2 / 1.5


def test_one_token_has_no_rate():
    with pytest.raises(ConfigError, match="1 new tokens"):
        run_of([7], prompt=1, ticks=[0.0, 1.0])


def test_percentiles_are_over_all_rounds():
    ticks = [0.0, 0.0]
    for second in range(1, 101):
        ticks.append(ticks[-1] + second)
    once = run_of(range(101), 1, ticks)
    p50, p90, p99 = percentiles([once])
    assert (p50, p90) == (50.5, pytest.approx(90.1))
    assert p99 == pytest.approx(99.01)
    slow = run_of([1, 2], 1, [0.0, 0.0, 7.0])
    assert percentiles([slow]) == (7.0, 7.0, 7.0)
    assert percentiles([once, *[slow] * 50])[0] < p50


def test_generate_is_timed(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(module, "perf_counter", lambda: float(next(now)))
    lm, ids = tiny.llama(), torch.arange(12)
    run = Writer(lm).write(ids, 5)
    assert list(run.tokens) == generate(lm, ids[None], max_new_tokens=5).new[0].tolist()
    assert (run.prompt, run.prompt_seconds, run.token_seconds) == (12, 1.0, (1.0,) * 4)


def test_logits_are_those_of_the_whole_text():
    lm, ids = tiny.llama(), torch.arange(9)
    with torch.inference_mode():
        want = lm(ids[None])[0, 5:]
        assert_close(Writer(lm).logits(ids[:6], ids[6:]), want, "same_math", n=96)


def test_the_state_is_kept_by_the_memory():
    lm, ids = tiny.llama(), torch.arange(30)
    assert Writer(lm).generated(ids, 10).state.nbytes >= 2 * 2 * 64 * 39 * 4
    assert Writer(lm, Static(39)).generated(ids, 10).state.nbytes == 2 * 2 * 64 * 39 * 4
