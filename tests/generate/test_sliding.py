"""Texts longer than a model's positions, and the rates of a text."""

from __future__ import annotations

import pytest
import torch

from suffice import preset
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, Stopwatch, generate, slide
from suffice.memory import Static
from suffice.models import LMConfig
from suffice.testing import drawn

SIZES = {"vocabulary_size": 20, "length": 16, "d_model": 8, "depth": 2, "mlp_width": 8}


def model(mechanism="efficient", **options):
    length = {"length": 16} if mechanism == "super_attention" else {}
    spec = preset(mechanism, 8, 2, causal=True, **length)
    return drawn(LMConfig(**SIZES | options).build(spec), seed=3).eval()


@pytest.mark.parametrize("sampling", [Greedy(), Sample(seed=4)])
def test_a_text_that_fits_is_that_of_generate(sampling):
    lm, prompt = model(), [3, 1, 4]
    wanted = generate(lm, [prompt], max_new_tokens=14, sampling=sampling).row(0)[3:]
    assert slide(lm, prompt, max_new_tokens=14, sampling=sampling) == wanted


@pytest.mark.parametrize("mechanism", ["efficient", "super_attention"])
def test_each_greedy_token_is_the_likeliest_after_the_context_it_had(mechanism):
    lm, prompt = model(mechanism), [3, 1, 4]
    written = slide(lm, prompt, max_new_tokens=40)
    assert len(written) == 40
    text, start = prompt + written, 0
    for place in range(3, 43):
        if place - start > 16:
            start = place - 8  # the latest half, read again from the first position
        logits = lm(torch.tensor([text[start:place]]))[0, -1]
        assert int(logits.argmax()) == text[place], place


def test_a_prompt_beyond_the_positions_is_read_from_its_end():
    lm, prompt = model(), list(range(20)) * 2
    assert slide(lm, prompt, max_new_tokens=1) == slide(lm, prompt[-16:], max_new_tokens=1)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_contexts_of_any_length(length):
    config = LMConfig(**SIZES | {"length": length})
    lm = drawn(config.build(preset("efficient", 8, 2, causal=True)), seed=3).eval()
    text, start = list(range(length)), 0
    written = slide(lm, text, max_new_tokens=12)
    for place in range(length, length + 12):
        if place - start > length:
            start = place - max(length // 2, 1)
        logits = lm(torch.tensor([text[start:place]]))[0, -1]
        assert int(logits.argmax()) == written[place - length], place
        text.append(int(logits.argmax()))


def test_a_text_without_a_limit_is_read_once():
    lm, seen = model(positions="none"), []
    written = slide(lm, [3, 1], max_new_tokens=50, on_token=seen.append)
    assert seen == [[token] for token in written]
    assert written == generate(lm, [[3, 1]], max_new_tokens=50).row(0)[2:]


def test_it_ends_with_a_stop_and_refuses_what_generate_refuses():
    lm = model()
    free = slide(lm, [3, 1], max_new_tokens=40)
    stop = free[30]
    assert slide(lm, [3, 1], max_new_tokens=40, stop=[stop]) == free[: free.index(stop) + 1]
    with pytest.raises(ConfigError, match="the prompt has no token"):
        slide(lm, [], max_new_tokens=3)
    with pytest.raises(ConfigError, match="which has 4"):
        slide(lm, [3, 1], max_new_tokens=9, memory=Static(4))


def test_pieces_of_a_sampled_text_differ():
    written = slide(model(), [3], max_new_tokens=64, sampling=Sample(seed=0, temperature=5.0))
    assert written[16:24] != written[24:32] != written[32:40]


def test_rates_leave_out_what_the_program_does_with_a_token():
    now = [0.0]

    def show(_row):
        now[0] += 100.0  # a slow terminal

    watch = Stopwatch(show, clock=lambda: now[0])
    for seconds in (2.0, 0.5, 0.25):
        now[0] += seconds
        watch([1])
    rates = watch.rates(prompt=8)
    assert (rates.prefill, rates.token_seconds) == (4.0, (0.5, 0.25))
    assert rates.decode == pytest.approx(2 / 0.75)
    assert str(rates) == "prompt 4.0 tokens/s, decode 2.7 tokens/s"


def test_one_token_has_no_rate():
    watch = Stopwatch(clock=iter([0.0, 1.0, 1.0]).__next__)
    watch([1])
    assert "one token, no rate" in str(watch.rates(prompt=1))
    with pytest.raises(ConfigError, match="write at least 2"):
        assert watch.rates(prompt=1).decode
