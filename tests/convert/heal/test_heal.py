"""What a healing changes, what it keeps, and that it is the same after an interruption."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.convert.heal import heal, save
from suffice.convert.heal.stages import LaterWindows, Regression, Stages
from suffice.errors import CheckpointError, ConfigError, DataError, ShapeError
from suffice.models import LMConfig
from suffice.train import Interrupted, Processes, Silent
from suffice.train.language import Batch

from .small import LETTERS, SIZES, healing, student, teacher, texts


@pytest.fixture
def tokens(tmp_path):
    return texts(tmp_path / "tokens")


def same(model, other):
    return all(torch.equal(other.state_dict()[n], t) for n, t in model.state_dict().items())


def timeless(report):
    return [replace(stage, minutes=0.0) for stage in report.stages]


class Press(Silent):
    """Press Ctrl-C at a step of a stage."""

    def __init__(self, stage, step):
        self.stage, self.at, self.now = stage, step, ""

    def cell(self, description):
        self.now = description

    def step(self, done, total):
        if (self.now, done) == (self.stage, self.at):
            os.kill(os.getpid(), signal.SIGINT)


TARGETS = ("latent:2", "window:1", "super", "linear", "gla")


@pytest.mark.parametrize("target", TARGETS)
def test_both_stages_gain_with_each_mechanism(target, tokens):
    given = student(target, naive=True)
    before = {n: t.clone() for n, t in given.state_dict().items()}
    report = heal(given, teacher(), tokens, healing=healing(steps=24)).report
    assert all(torch.equal(t, before[n]) for n, t in given.state_dict().items())
    assert report.layers == ("blocks.0.attention", "blocks.1.attention")
    first, second, control = report.stages
    assert (first.name, second.name, control.name) == ("regression", "distillation", "control")
    assert (first.steps, second.steps, control.steps) == (6, 18, 24)
    assert control.tokens == 24 * 4 * 16
    assert report.healed.after < report.converted.after
    assert report.gained.change == pytest.approx(report.healed.after - report.converted.after)
    assert report.against_control.before == report.control.after
    assert report.converted.low <= report.converted.change <= report.converted.high
    assert report.regressed.before == report.converted.before == report.control.before


@pytest.mark.parametrize("naive", [True, False])
def test_layers_that_share_are_healed_with_the_layer_that_makes_their_keys(naive, tokens):
    given = student("share:2", naive=naive)
    report = heal(given, teacher(), tokens, healing=healing(steps=24)).report
    makers = (
        ()
        if given.blocks[0].attention.k_proj.weight.equal(
            teacher().blocks[0].attention.k_proj.weight
        )
        else ("blocks.0.attention",)
    )
    assert report.layers == (*makers, "blocks.1.attention")
    assert [stage.name for stage in report.stages] == ["regression", "distillation", "control"]
    assert report.stages[0].validation_after <= report.stages[0].validation_before
    assert report.healed.after < report.converted.after or not naive


def test_the_first_stage_trains_the_layers_that_differ_and_nothing_else(tokens):
    mixed = student_of_one_layer()
    before = {n: t.clone() for n, t in mixed.state_dict().items()}
    seen = {}

    class Watch(Silent):
        def cell(self, description):
            seen.setdefault("cells", []).append(description)

    made = heal(mixed, teacher(), tokens, healing=healing(kl=1.0), progress=Watch())
    assert seen["cells"] == ["regression", "distillation", "control"]
    assert made.report.layers == ("blocks.1.attention",)
    assert made.report.stages[0].loss.startswith("squared error of the converted layers")
    assert made.report.stages[1].loss == "1 of divergence, 0 of cross-entropy"
    changed = {n for n, t in made.model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed > {"blocks.1.attention.k_proj.weight", "blocks.0.mlp.up.weight"}


def student_of_one_layer():
    from suffice.convert import convert

    return convert(teacher(), ["keep", "mqa"], naive=True).model


def test_regression_alone_moves_only_converted_layers(tokens, monkeypatch):
    kept = {}
    run = Stages.run

    def watched(self, name, model, *given, **named):
        found = run(self, name, model, *given, **named)
        kept[name] = {n: t.clone() for n, t in model.state_dict().items()}
        return found

    monkeypatch.setattr(Stages, "run", watched)
    mixed = student_of_one_layer()
    heal(mixed, teacher(), tokens, healing=healing(steps=32))
    moved = {n for n, t in mixed.state_dict().items() if not torch.equal(t, kept["regression"][n])}
    assert moved
    assert all(name.startswith("blocks.1.attention.") for name in moved)
    objective = Regression(teacher(), ("blocks.1.attention",))
    rows = tokens.train.take(torch.arange(8) * 16, 16)
    missed = []
    for weights in (mixed.state_dict(), kept["regression"]):
        one = student_of_one_layer()
        one.load_state_dict(weights)
        batch = Batch(rows[:, :-1], rows[:, 1:])
        missed.append(objective.summed_loss(one, batch, dtype="float32").item())
    assert missed[1] < 0.8 * missed[0]


def test_without_regression_the_budget_goes_to_distillation(tokens):
    report = heal(
        student("mqa", naive=True), teacher(), tokens, healing=healing(regression=0.0)
    ).report
    assert report.regressed is None
    assert [stage.name for stage in report.stages] == ["distillation", "control"]
    assert [stage.steps for stage in report.stages] == [12, 12]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    models = (student("mqa", naive=True, dropout=0.2), teacher(0.2))
    tokens = texts(tmp_path_factory.mktemp("tokens"))
    whole = heal(*models, tokens, healing=healing(), seed=3)
    assert not same(whole.model, heal(*models, tokens, healing=healing(), seed=4).model)
    return whole


@pytest.mark.parametrize(("stage", "at"), [("regression", 2), ("distillation", 4), ("control", 12)])
def test_a_resumed_healing_ends_like_an_uninterrupted_one(
    stage, at, tokens, tmp_path, uninterrupted
):
    models = (student("mqa", naive=True, dropout=0.2), teacher(0.2))
    given = {"healing": healing(), "seed": 3, "folder": tmp_path}
    with pytest.raises(Interrupted, match=f"interrupted after step {at}; resume from"):
        heal(*models, tokens, **given, progress=Press(stage, at))
    torch.rand(5)
    made = heal(*models, tokens, **given, resume=True)
    assert timeless(made.report) == timeless(uninterrupted.report)
    assert replace(made.report, stages=()) == replace(uninterrupted.report, stages=())
    assert same(uninterrupted.model, made.model)


def test_a_folder_that_cannot_be_written_is_named(tokens, tmp_path, uninterrupted):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file.*cannot be written"):
        heal(student("mqa"), teacher(), tokens, healing=healing(), folder=tmp_path / "file")
    with pytest.raises(DataError, match="cannot write .*file"):
        save(tmp_path / "file" / "out", uninterrupted, LETTERS)


def test_a_checkpoint_of_other_weights_is_refused(tokens, tmp_path):
    given = {"healing": healing(), "folder": tmp_path}
    heal(student("mqa", naive=True), teacher(), tokens, **given)
    with pytest.raises(CheckpointError, match="data.objective"):
        heal(student("mqa"), teacher(), tokens, **given, resume=True)


def test_the_time_ends_it_and_the_control_makes_as_many_steps(tokens, monkeypatch):
    from suffice.train import engine

    clock = iter(range(100_000))
    monkeypatch.setattr(engine.time, "perf_counter", lambda: 10.0 * next(clock))
    settings = healing(minutes=2.0, steps=None)
    report = heal(student("mqa", naive=True), teacher(), tokens, healing=settings).report
    assert [stage.out_of_time for stage in report.stages] == [True, True, False]
    assert [stage.steps for stage in report.stages] == [3, 9, 12]
    assert report.settings["minutes"] == 2.0


def test_weights_that_are_no_better_on_the_validation_text_are_discarded(tokens):
    worse = healing(regression_rate=3.0, learning_rate=3.0, warmup=0)
    made = heal(student("gqa:2"), teacher(), tokens, healing=worse)
    assert [stage.best_step for stage in made.report.stages] == [0, 0, 0]
    assert same(student("gqa:2"), made.model)
    assert made.report.gained.change == made.report.control.change == 0.0
    for stage in made.report.stages:
        assert stage.validation_after == stage.validation_before


def test_adapters_are_merged_into_the_student(tokens, tmp_path):
    pytest.importorskip("peft", reason="peft is not installed")
    models = (student("optimised", naive=True), teacher())
    given = {"healing": healing(lora=True, rank=2, steps=24), "seed": 1}
    made = heal(*models, tokens, **given)
    first, second, control = made.report.stages
    assert second.best_step
    assert made.report.healed.after < made.report.regressed.after
    assert made.model.state_dict().keys() == models[0].state_dict().keys()
    assert all(p.requires_grad for p in made.model.parameters())
    for name in ("embedding.tokens.weight", "blocks.0.mlp.up.weight"):
        assert torch.equal(made.model.state_dict()[name], models[0].state_dict()[name])
    with pytest.raises(Interrupted, match="after step 7"):
        heal(*models, tokens, **given, folder=tmp_path, progress=Press("distillation", 7))
    again = heal(*models, tokens, **given, folder=tmp_path, resume=True)
    assert same(made.model, again.model)


def test_adapters_need_peft(tokens, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="peft"):
        heal(student("mqa"), teacher(), tokens, healing=healing(lora=True))


def test_pairs_that_cannot_be_healed_are_refused(tokens, monkeypatch):
    with pytest.raises(ConfigError, match="rows of 16"):
        heal(teacher(), teacher(), tokens, healing=healing())
    with pytest.raises(ConfigError, match="nothing to heal"):
        heal(student("window:16"), teacher(), tokens, healing=healing())
    with pytest.raises(DataError, match="validation"):
        heal(student("mqa"), teacher(), tokens, healing=healing(batch_size=50))
    other = LMConfig(**SIZES | {"vocabulary_size": 10}).build(preset("mqa", 16, 4, causal=True))
    with pytest.raises(ShapeError, match="10 tokens"):
        heal(other, teacher(), tokens, healing=healing())
    monkeypatch.setattr(
        sys.modules["suffice.convert.heal.heal"], "current", lambda: Processes(0, 2)
    )
    with pytest.raises(ConfigError, match="2 processes"):
        heal(student("mqa"), teacher(), tokens, healing=healing())


def test_the_control_reads_the_rows_that_both_stages_read(tokens, monkeypatch):
    seen, rows = [], LaterWindows.rows

    def watched(self, step, start, stop):
        found = rows(self, step, start, stop)
        seen.append(found.tokens)
        return found

    monkeypatch.setattr(LaterWindows, "rows", watched)
    heal(student("mqa", naive=True), teacher(), tokens, healing=healing())
    assert len(seen) == 24
    assert all(torch.equal(seen[step], seen[step + 12]) for step in range(12))
    assert not torch.equal(seen[0], seen[3])
