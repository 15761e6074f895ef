"""The whole search on a small model."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import attention_layers
from suffice.convert.search import (
    Quantity,
    SearchResult,
    budget_of,
    library,
    options,
    scoring,
    search,
)
from suffice.convert.search.options import state_bytes
from suffice.convert.search.problem import CostTable
from suffice.convert.search.scoring import Evaluator
from suffice.convert.search.timing import lengths_up_to, stepper
from suffice.errors import ConfigError
from suffice.memory import Dynamic
from suffice.models.native_decoder import unsupported
from suffice.testing import assert_close
from suffice.utils.canvas import blank, plain_powers

from .models import LENGTH, WORDS, model, rows, texts

searching = import_module("suffice.convert.search.search")  # the name is its function's, too
FULL = 3 * LENGTH * 32 * 4  # bytes


def searched(budget="state<=25%", lm=None, **given) -> SearchResult:
    return search(lm or model(), budget, texts(), **{"words": WORDS} | given)


def test_layers_that_share_are_found_and_told_apart(monkeypatch):
    """The second of three layers may read the first one's cache, where that one stays."""
    monkeypatch.setattr("suffice.convert.search.timing.ROUNDS", 3)
    monkeypatch.setattr("suffice.convert.search.timing.SECONDS", 1e-4)
    assert [len(row) for row in library(model(), LENGTH, ["share:2"]).values()] == [1, 2, 1]
    result = searched("state<=67%", words=["share:2"])
    assert result.words == ("keep", "share:2", "keep")
    state = result.quantity("state")
    assert state.measured == state.predicted == FULL * 2 / 3
    assert result.certificate.layers[1].chosen == "first layer"
    both = searched("state<=50%", words=["share:2", "gqa:2"])
    assert both.words in (("keep", "share:2", "gqa:2"), ("gqa:2", "gqa:2", "gqa:2"))
    assert both.quantity("state").met


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suffice.convert.search.timing.ROUNDS", 3)
        patch.setattr("suffice.convert.search.timing.SECONDS", 1e-4)
        yield searched()


def test_the_budget_is_met_and_the_plan_is_measured(found):
    state = found.quantity("state")
    assert (state.source, state.bound, state.met) == (FULL, FULL / 4, True)
    assert state.measured == state.predicted <= FULL / 4
    lm, words = model(), list(found.words)
    made = convert(lm, words, calibration=texts().calibration).model
    assert state.measured == sum(state_bytes(spec, LENGTH) for spec in made.specs)
    rows_ = Evaluator(lm, texts().judging).of_model(made)
    assert found.plan.divergence.mean == pytest.approx(sum(rows_.divergence) / 8, rel=1e-4)
    assert found.quantity("divergence").measured == found.plan.divergence.mean
    parameters = found.quantity("parameters")
    assert parameters.measured == sum(p.numel() for p in made.parameters()) == parameters.predicted
    loss = found.quantity("loss")
    assert loss.low < loss.measured < loss.high
    assert found.certificate.loss.after == pytest.approx(loss.measured, rel=1e-5)
    json.dumps(found.to_json(), allow_nan=False)


def test_the_plan_has_the_best_sum_and_beats_its_rivals(found):
    assert found.plan.predicted == pytest.approx(sum(one.divergence.mean for one in found.layers))
    for one in found.mixes:
        assert one.state <= FULL / 4
    assert found.uniform.words == ("gqa:1",) * 3 or len(set(found.uniform.words)) == 1
    assert found.uniform.divergence.mean == min(one.divergence.mean for one in found.of("uniform"))
    assert len(found.of("random")) > 3
    if not found.moved:
        assert all(one.predicted >= found.plan.predicted - 1e-12 for one in found.mixes)


def test_the_layers_that_lose_least_alone_are_a_rival(monkeypatch):
    monkeypatch.setattr("suffice.convert.search.timing.ROUNDS", 3)
    monkeypatch.setattr("suffice.convert.search.timing.SECONDS", 1e-4)
    lm, window = model(), "window:4+sinks:0"
    (greedy,) = searched("state<=50%", words=[window]).of("greedy")
    evaluator, losses = Evaluator(lm, texts().scoring), []
    for layer in range(3):
        alone = ["keep"] * layer + [window] + ["keep"] * (2 - layer)
        made = convert(lm, alone, calibration=texts().calibration).model
        losses.append(sum(evaluator.of_model(made).loss))
    worst = losses.index(max(losses))
    assert [words == "keep" for words in greedy.words] == [at == worst for at in range(3)]


@pytest.mark.parametrize(("ends", "least"), [((1e-6, 9e-6), 3), ((1e-6, 9e-1), 4)])
def test_log_scales_are_labelled_in_plain_numbers(ends, least):
    figure, ((axes,),) = blank(1, 1, width=6.0, height=3.0)
    axes.set_yscale("log")
    axes.set_ylim(*ends)
    plain_powers(axes.yaxis)
    figure.canvas.draw()
    low, high = ends
    shown = [y for y in axes.get_yticks() if low <= y <= high]
    assert least <= len(shown) <= 8
    assert [
        text.get_text() for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high
    ] == [f"{y:g}".replace("-", "\N{MINUS SIGN}") for y in shown]


def test_every_pair_is_scored_alone(found):
    assert found.scored == found.pairs == 3 * 6
    lm = model()
    one = next(s for s in found.scores if (s.layer, s.words) == ("blocks.1.attention", "gqa:1"))
    made = convert(lm, {one.layer: one.words}, calibration=texts().calibration).model
    alone = Evaluator(lm, texts().scoring).of_model(made)
    assert one.divergence.mean == pytest.approx(sum(alone.divergence) / 8, rel=1e-4)
    assert one.divergence.low < one.divergence.mean < one.divergence.high
    assert one.parameters == made.blocks[1].attention.spec.cost(1).parameters
    kept = [s for s in found.scores if s.words == "keep"]
    assert [s.divergence.mean for s in kept] == [0.0] * 3
    assert all(s.latency["torch"] == 0.0 for s in kept)


def test_quality_can_be_bounded_instead():
    tight = searched("divergence<=1e-12")
    assert tight.words == ("keep",) * 3
    assert tight.additive is None
    wide = searched("divergence<=0.05")
    assert wide.quantity("state").measured < FULL
    assert wide.quantity("divergence").predicted <= 0.05


def test_latency_can_be_bounded():
    slow = searched("latency<=1000x, parameters<=99%")
    assert slow.quantity("latency").met is not False  # four rounds are few
    assert slow.quantity("parameters").met
    if not unsupported(model(), Dynamic()):
        assert slow.source_way == "native"
        assert slow.way == "native" or "latent:4" in slow.words or "window" in str(slow.words)


def test_an_impossible_budget_names_the_nearest_possible_one():
    with pytest.raises(
        ConfigError, match=r"^no choice meets state<=1%; the nearest .* state<=12.5%."
    ):
        searched("state<=1%")
    with pytest.raises(
        ConfigError, match="no choice meets .*latency<=0.1%; the nearest that can be"
    ):
        searched("state<=50%, latency<=0.1%")
    with pytest.raises(
        ConfigError, match="no choice of the options scored so far meets state<=50%"
    ):
        searched("state<=50%, divergence<=1e-9")


@pytest.fixture
def never(monkeypatch):
    """Let no sum of parts be that of a whole."""
    summed = searching.summarise

    def parted(values):
        found = summed(values)
        return found if min(values) >= 0 else replace(found, low=1.0, high=1.0)

    monkeypatch.setattr(searching, "summarise", parted)


def test_neighbours_are_measured_where_divergences_do_not_add_up(never, monkeypatch):
    stages = []
    found = searched("state<=40%", step=lambda *of: stages.append(of[0]))
    assert found.additive is False
    assert found.weighed > 0
    assert list(dict.fromkeys(stages))[:5] == [
        "timing",
        "reading",
        "fitting",
        "scoring",
        "weighing",
    ]
    monkeypatch.setattr(searching, "TOTAL_SHARE", 0.0)
    late = searched("state<=40%")
    assert (late.additive, late.weighed, late.moved) == (False, 0, False)


def test_the_state_is_minimised_where_quality_is_bounded(never):
    found = searched("divergence<=1e-3, loss<=2x")
    assert found.additive is False
    assert found.quantity("divergence").predicted <= 1e-3
    assert found.quantity("state").measured < FULL


def test_a_search_resumes_where_it_stopped(tmp_path, found):
    def stop(what, done, total):
        if (what, done) == ("scoring", 12):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(work=tmp_path / "w", step=stop)
    scored = sorted((tmp_path / "w" / "scores").iterdir())
    assert 5 < len(scored) < 15
    before = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "w").rglob("*.*")
        if "asked" not in path.name
    }
    stages = []
    resumed = searched(work=tmp_path / "w", resume=True, step=lambda *of: stages.append(of[0]))
    assert "timing" not in stages
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert resumed.words == found.words
    assert resumed.plan.divergence == found.plan.divergence
    other = searched("state<=50%", work=tmp_path / "w", resume=True)
    assert other.quantity("state").measured > found.quantity("state").measured
    with pytest.raises(ConfigError, match="model"):
        searched(work=tmp_path / "w", resume=True, lm=model(seed=2))


def test_features_keep_the_order_that_layers_were_fitted_in(tmp_path, monkeypatch):
    given = {"words": ["efficient:4", "gqa:1"], "work": tmp_path / "w"}
    first = searched("state<=50%", **given)
    assert (tmp_path / "w" / "ordered.safetensors").exists()
    monkeypatch.setattr(searching, "permuted_for_all", None)
    again = searched("state<=50%", resume=True, **given)
    assert again.scores == first.scores
    assert again.plan.divergence == first.plan.divergence


def test_when_time_is_up_scored_options_are_chosen_from(monkeypatch):
    seconds = iter(range(0, 10**7, 1000))
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    found = searched("state<=60%", minutes=0.1)
    assert found.scored < found.pairs
    assert {one.words for one in found.scores} == {"keep", "gqa:2"}  # until the budget can be met
    assert found.quantity("state").met
    assert len(found.of("random")) <= searching.MINIMUM


def test_the_library_is_found_where_none_is_given(monkeypatch):
    monkeypatch.setattr(options, "WINDOWS", (4,))
    monkeypatch.setattr(options, "PAIRED_WINDOWS", ())
    found = search(model(), "state<=50%", texts())
    words = {one.words for one in found.scores}
    assert {"input", "latent:16", "gqa:2", "window:4+sinks:0", "efficient:4"} <= words
    assert not any(word.startswith("optimised") for word in words)  # gqa can be what it is
    assert found.plan.divergence.mean < 1e-9  # half the state, exactly


def test_dominated_options_are_left_out(monkeypatch):
    monkeypatch.setattr(options, "WINDOWS", ())
    monkeypatch.setattr(options, "PAIRED_WINDOWS", (4,))
    offered = tuple(library(model(), LENGTH).values())
    keys = [one.key for row in offered for one in row]
    table = CostTable(
        options=offered, length=LENGTH, others=0, latency={"torch": dict.fromkeys(keys, 0)}
    )
    for budget, wanted in (("state<=9%", False), ("parameters<=99%", True)):
        left = {
            one.words for row in table.without_dominated(budget_of(budget)).options for one in row
        }
        assert ("optimised:4" in left) == ("optimised:2,window:3+sinks:1" in left) == wanted
    slow = {key: float("optimised" not in key[1]) for key in keys}
    quick = replace(table, latency={"torch": slow}).without_dominated(budget_of("latency<=9%"))
    assert "optimised:4" in {one.words for one in quick.options[0]}


def test_fits_are_made_in_groups_where_room_is_short(monkeypatch, found):
    monkeypatch.setattr(scoring, "FIT_NUMBERS", 1)
    lm = model()
    small = searched(lm=lm)
    for name, tensor in model().state_dict().items():  # the original is left alone
        assert_close(lm.state_dict()[name], tensor, "exact")
    assert set(attention_layers(lm)) == {f"blocks.{n}.attention" for n in range(3)}
    assert [one.divergence.mean for one in small.scores] == pytest.approx(
        [one.divergence.mean for one in found.scores], rel=1e-6, abs=1e-12
    )


def test_only_language_models_are_searched():
    with pytest.raises(ConfigError, match="Linear"):
        search(torch.nn.Linear(2, 2), "state<=50%", texts())
    with pytest.raises(ConfigError, match="minutes=0: give a time above 0"):
        searched(minutes=0)


def test_a_step_leaves_the_state_as_it_was():
    lm = convert(model(), ["keep", "window:4", "latent:4"], calibration=rows()).model
    call = stepper(lm, 10, "torch")
    call()
    call()
    assert stepper(lm, 10, "native") is None
    assert lengths_up_to(2) == (2,)


def quantity(**fields):
    return Quantity(
        **{"name": "latency", "source": 1.0, "predicted": 0.5, "measured": 0.5} | fields
    )


def test_a_bound_is_met_only_outside_the_noise():
    assert quantity(bound=None).met is None
    assert quantity(bound=0.6).met is True
    assert quantity(bound=0.4).met is False
    assert quantity(bound=0.6, low=0.3, high=0.7).met is None
    assert quantity(bound=0.6, low=0.45, high=0.55).met is True
    assert quantity(bound=0.4, low=0.45, high=0.55).met is False
