"""Steps of one query: every number is the layer's, and follows from those before it."""

from __future__ import annotations

import math

import pytest
import torch

from suffice.errors import ConfigError, DataError
from suffice.layers import Attention
from suffice.layers.inputs import SharedKV
from suffice.presets import PRESETS, is_always_causal
from suffice.testing import assert_close
from suffice_studio.steps import DECIMALS, TEXT, answer, build, embed, prepared, record, small_spec

TOKENS = TEXT.split()
LEGAL = {"mechanism": "standard", "causal": True, "text": TEXT}
FORMS = [
    (name, causal)
    for name in PRESETS
    for causal in (True, False)
    if (causal or not is_always_causal(name)) and (name, causal) != ("linformer", True)
]
PAIRS = [form for form in FORMS if small_spec(form[0], 8, causal=form[1]).lane != "recurrence"]
RECURRENT = [name for name, causal in FORMS if (name, causal) not in PAIRS]
every_form = pytest.mark.parametrize(("name", "causal"), FORMS)


def numbers_of(name: str, *, causal: bool = True) -> dict[str, torch.Tensor]:
    return record(small_spec(name, len(TOKENS), causal=causal), embed(TOKENS))


def output_of_the_layer(name: str, causal: bool, tokens: list[str]) -> torch.Tensor:
    """Return what an ordinary layer with the same weights makes of the tokens, by any op."""
    spec, x, shared = small_spec(name, len(tokens), causal=causal), embed(tokens), None
    with torch.no_grad():
        if spec.shares is not None:
            shared = SharedKV()
            build(small_spec("standard", len(tokens), causal=causal))(x, shared=shared)
        recorder = build(spec)
        layer = Attention(spec, dtype=torch.float64).eval()
        layer.load_state_dict(recorder.state_dict())
        layer.features = recorder.features
        return layer(x, shared=shared)[0]


@every_form
@pytest.mark.parametrize("text", [TEXT, "one two three four"])
def test_the_output_is_that_of_the_layer(name, causal, text):
    shown = answer({"mechanism": name, "causal": causal, "text": text})["numbers"]["output"]
    want = output_of_the_layer(name, causal, text.split())
    assert_close(torch.tensor(shown, dtype=torch.float64), want, "quantised", step=2e-6)


@every_form
def test_each_number_of_an_answer_is_the_recorded_one(name, causal):
    shown = answer({"mechanism": name, "causal": causal, "text": TEXT})["numbers"]
    recorded = numbers_of(name, causal=causal)
    assert set(shown) == set(recorded)
    for part, want in recorded.items():
        got = torch.tensor(shown[part], dtype=torch.float64)
        assert_close(got, want.double(), "quantised", step=10.0**-DECIMALS)


@pytest.mark.parametrize(("name", "causal"), PAIRS)
def test_heads_are_weighted_values_and_weights_come_from_scores(name, causal):
    found = numbers_of(name, causal=causal)
    scores, weights = found["scores"], found["weights"]
    hidden = found["allowed"].expand_as(scores) == 0
    value = found["value"].repeat_interleave(len(weights) // len(found["value"]), dim=0)
    assert_close(found["heads"], weights @ value)
    if small_spec(name, len(TOKENS), causal=causal).lane == "sums":
        products = scores.masked_fill(hidden, 0.0)
        assert_close(weights, products / products.sum(-1, keepdim=True))
    else:
        assert_close(weights, scores.masked_fill(hidden, -math.inf).softmax(-1))
    key = found["key"].repeat_interleave(len(scores) // len(found["key"]), dim=0)
    ratios = (found["query"] @ key.mT) / scores
    if name != "performer":  # which takes its keys relative to the largest
        assert_close(ratios, ratios[:1, :1, :1].expand_as(ratios))


@pytest.mark.parametrize("name", RECURRENT)
def test_each_state_follows_from_the_one_before(name):
    found = numbers_of(name)
    state = torch.zeros_like(found["state"][:, 0])
    for t in range(len(TOKENS)):
        q, k, v = (found[part][:, t] for part in ("query", "key", "value"))
        kept = state * found["decay"][:, t, :, None] if "decay" in found else state
        recalled = (k[:, None] @ kept)[:, 0]
        if "beta" in found:
            v = found["beta"][:, t] * (v - recalled)
        state = kept + k[:, :, None] * v[:, None]
        assert_close(found["kept"][:, t], kept)
        assert_close(found["recalled"][:, t], recalled)
        assert_close(found["state"][:, t], state)
        assert_close(found["heads"][:, t], (q[:, None] @ state)[:, 0])
    if name != "mamba2":  # whose weights hold the step size that its values are times, too
        assert_close(found["heads"], found["weights"] @ found["value"])


def test_mechanisms_share_embeddings_and_maps():
    standard, gqa = numbers_of("standard"), numbers_of("gqa")
    assert_close(standard["query"], gqa["query"], "exact")
    assert (len(standard["key"]), len(gqa["key"])) == (4, 2)
    assert_close(standard["key"][:2], gqa["key"])
    assert TOKENS[0] == TOKENS[4]
    assert_close(standard["key"][:, 0], standard["key"][:, 4])
    assert not torch.equal(standard["output"], gqa["output"])


def test_answers_neither_read_nor_move_the_generator():
    request = {**LEGAL, "mechanism": "performer"}
    torch.manual_seed(3)
    before, first = torch.get_rng_state(), answer(request)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert answer(request) == first


def test_every_mechanism_is_prepared():
    answers = {request["mechanism"]: shown for request, shown in prepared()}
    assert set(answers) == set(PRESETS)
    assert all(shown["tokens"] == TOKENS for shown in answers.values())


@pytest.mark.parametrize(
    ("changed", "error", "word"),
    [
        ({"mechanism": "standrad"}, ConfigError, "standrad"),
        ({"mechanism": ["standard"]}, ConfigError, "standard"),
        ({"text": "too few words"}, DataError, "3"),
        ({"text": "word " * 17}, DataError, "17"),
        ({"text": None}, DataError, "0"),
        ({"text": "a b c " + "d" * 17}, DataError, "17"),
        ({"causal": 1}, ConfigError, "causal"),
        ({"head": 1}, ConfigError, "head"),
        ({"mechanism": "retnet", "causal": False}, ConfigError, "retnet"),
        ({"mechanism": "linformer"}, ConfigError, "Causal"),
    ],
)
def test_what_cannot_be_shown_is_refused(changed, error, word):
    with pytest.raises(error, match=word):
        answer({**LEGAL, **changed})


def test_a_request_is_an_object_with_every_field():
    for request in ([], "standard", {}, {"mechanism": "standard"}):
        with pytest.raises(ConfigError):
            answer(request)
