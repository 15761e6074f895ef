from __future__ import annotations

import io
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from suffice.comparison import compare as module
from suffice.comparison import judge, notes
from suffice.comparison import training as trainer
from suffice.comparison.compare import claim, compare, time_all
from suffice.comparison.jobs import Execution
from suffice.comparison.plan import Plan, run_folder
from suffice.comparison.results import cell_path, read_cell, read_results
from suffice.comparison.training import CellFiles, typical
from suffice.data import Dataset, Split, load
from suffice.errors import CheckpointError, ConfigError, DataError, StateError
from suffice.models import ClassifierConfig, LMConfig, ViT, ViTConfig
from suffice.models import folder as folder_of_model
from suffice.train import Interrupted, Training, evaluate
from suffice.train.recipes import Recipe
from suffice.utils.progress import Display

TINY = Recipe(
    name="tiny",
    title="Digits, small",
    task="digits",
    model=ViTConfig(
        image_size=8,
        patch_size=4,
        num_classes=10,
        d_model=8,
        depth=2,
        mlp_width=8,
        dropout=0.1,
    ),
    training=Training(epochs=2, batch_size=256, learning_rate=1e-2),
    num_heads=2,
)
LAYER = {"standard": 288, "efficient": 144, "super_attention": 164}
FLOPS = {"standard": 2560, "efficient": 1536, "super_attention": 1792}  # T = 4, d = 8


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 3)
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1e-4)


def plan(**changes):
    given = {
        "recipe": TINY,
        "mechanisms": ("standard", "efficient"),
        "heads": (2,),
        "seeds": 2,
        "baseline": "standard",
    }
    return Plan(**{**given, **changes})


def run(folder, given=None, **options):
    console = Console(file=io.StringIO(), width=200)
    results = compare(given or plan(), folder, console=console, **options)
    return results, console.file.getvalue()


def timeless(cells):
    """The cells without what a clock measured."""
    kept = []
    for cell in cells:
        epochs = tuple({**epoch, "seconds": 0.0, "cpu_seconds": 0.0} for epoch in cell.epochs)
        kept.append(replace(cell, epochs=epochs, seconds_per_epoch=0.0))
    return kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted comparison: its folder, results and output."""
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "ROUNDS", 3)
    patch.setattr(module, "SAMPLE_SECONDS", 1e-4)
    folder = tmp_path_factory.mktemp("whole")
    yield folder, *run(folder, command="suffice compare by hand")
    patch.undo()


def test_every_cell_is_trained_and_written(whole):
    folder, results, _ = whole
    assert [cell.key for cell in results.cells] == plan().cells
    for cell in results.cells:
        assert read_cell(folder, *cell.key) == cell
        assert [epoch["epoch"] for epoch in cell.epochs] == [1, 2]
        assert cell.best_epoch in (1, 2)
        assert cell.seconds_per_epoch == cell.epochs[1]["seconds"] > 0
        assert all(epoch["cpu_seconds"] > 0 for epoch in cell.epochs)
        assert cell.parameters_layer == LAYER[cell.mechanism]
        assert cell.flops == 2 * FLOPS[cell.mechanism]
        assert cell.test_top5 > cell.test_accuracy > 0.1
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    stems = [f"{name}-h2-s{seed}" for name in ("standard", "efficient") for seed in (0, 1)]
    assert found == {
        ".lock",
        "plan.json",
        "data.json",
        "results.json",
        "disagreements.json",
        *(f"cells/{stem}.json" for stem in stems),
        *(f"answers/{stem}.safetensors" for stem in stems),
        *(
            f"models/{stem}/{name}"
            for stem in stems
            for name in ("config.json", "model.safetensors", "preprocessor_config.json")
        ),
    }
    assert list((folder / "checkpoints").iterdir()) == []


def test_the_answers_are_kept_by_row_and_add_up(whole):
    folder, results, _ = whole
    rows = read_results(folder / "results.json").rows
    assert set(rows) == {cell.key for cell in results.cells}
    for cell in results.cells:
        answers = rows[cell.key]
        assert answers.right.mean() == pytest.approx(cell.test_accuracy, abs=1e-12)
        assert answers.loss.mean() == pytest.approx(cell.test_loss, rel=1e-5)
        assert (answers.predicted == answers.label).tolist() == (answers.right == 1).tolist()


def test_the_results_tell_what_ran(whole):
    folder, results, _ = whole
    assert read_results(folder / "results.json") == results
    assert (results.task, results.recipe, results.title) == ("digits", "tiny", TINY.title)
    assert (results.margin, results.baseline) == (0.01, "standard")
    assert results.command == "suffice compare by hand"
    assert results.versions["torch"] == torch.__version__
    assert results.machine["cores"] == os.cpu_count()
    assert results.seconds > 0
    assert [speed.key for speed in results.speeds] == [("standard", 2), ("efficient", 2)]
    for speed in results.speeds:
        assert len(speed.latency) == 3
        assert speed.batch_size == 256
        assert speed.peak_bytes > 256 * 64 * 4


def test_a_model_on_disk_is_the_one_that_was_scored(whole):
    folder, results, _ = whole
    dataset = load("digits")
    for cell in results.cells[:2]:
        path = CellFiles(folder, cell_path(folder, *cell.key).stem).model
        stored = folder_of_model.read(path)
        model = stored.model
        score = evaluate(model, dataset, dataset.test)
        assert (score.loss, score.accuracy, score.top5) == (
            cell.test_loss,
            cell.test_accuracy,
            cell.test_top5,
        )
        train = evaluate(model, dataset, dataset.train)
        assert (train.loss, train.accuracy) == (cell.train_loss, cell.train_accuracy)
        assert sum(p.numel() for p in model.parameters()) == cell.parameters_model
        assert [block.attention.spec for block in model.blocks] == TINY.specs(cell.mechanism, 2)
        assert stored.facts["recipe"]["training"]["epochs"] == 2
        assert stored.facts["classes"] == [str(digit) for digit in range(10)]


def test_progress_is_shown_unless_quiet(whole, tmp_path):
    folder, results, told = whole
    lines = told.splitlines()
    assert lines[0] == f"data: {TINY.title}"
    finished = [line for line in lines if ": test accuracy " in line]
    assert [line.partition(":")[0] for line in finished] == [
        f"{name} heads {heads} seed {seed}" for name, heads, seed in plan().cells
    ]
    assert sum(line.startswith("after two seeds: ") for line in lines) == 1
    assert lines[-1] == "timing the forward passes side by side"
    again, told = run(folder, resume=True, quiet=True)
    assert told == ""
    assert again.cells == results.cells


def test_the_same_comparison_twice_gives_the_same_cells(whole, tmp_path):
    results, _ = run(tmp_path)
    assert timeless(results.cells) == timeless(whole[1].cells)


# what the mechanisms share


def test_mechanisms_see_the_same_batches_from_the_same_start(monkeypatch, tmp_path):
    seen, starts, forward = {}, {}, ViT.forward

    def spy(model, images, valid=None):
        if model.training:
            key = (type(model.blocks[0].attention.spec.encoder).__name__, keys[-1])
            seen.setdefault(key, []).append(images.clone())
            starts.setdefault(key, model.patches.weight.detach().clone())
        return forward(model, images, valid)

    def fit(*args, seed, **options):
        keys.append(seed)
        return original(*args, seed=seed, **options)

    keys, original = [], trainer.fit
    monkeypatch.setattr(trainer, "fit", fit)
    monkeypatch.setattr(ViT, "forward", spy)
    run(tmp_path)
    assert keys == [0, 0, 1, 1]
    for seed in (0, 1):
        one, other = seen["Standard", seed], seen["Efficient", seed]
        assert len(one) == len(other) == 2 * 5  # epochs of 1,079 rows in batches of 256
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert not torch.equal(one[0], one[5]), "each epoch has an order of its own"
        assert torch.equal(starts["Standard", seed], starts["Efficient", seed])
    assert not torch.equal(seen["Standard", 0][0], seen["Standard", 1][0])
    assert not torch.equal(starts["Standard", 0], starts["Standard", 1])


def test_a_cell_does_not_depend_on_the_others(whole, tmp_path):
    results, _ = run(tmp_path, plan(mechanisms=("efficient",), baseline="efficient", seeds=2))
    wanted = [cell for cell in whole[1].cells if cell.mechanism == "efficient"]
    assert timeless(results.cells) == timeless(wanted)


# timing


def test_forward_passes_are_timed_in_turn_after_a_warm_up(monkeypatch):
    asked = {}

    def interleave(calls, **options):
        asked.update(options)
        outputs = {name: call() for name, call in calls.items()}
        assert all(out.shape == (256, 10) and out.is_inference() for out in outputs.values())
        assert not any(
            torch.equal(outputs["standard 1"], o) for n, o in outputs.items() if "4" in n
        )
        return {name: (float(i + 1),) for i, name in enumerate(calls)}

    monkeypatch.setattr(module, "interleave", interleave)
    speeds = time_all(plan(heads=(1, 4)), load("digits"))
    assert asked == {
        "rounds": 3,
        "warmup": 3,
        "min_seconds_per_sample": 1e-4,
        "device": "cpu",
    }
    assert [(*s.key, s.latency) for s in speeds] == [
        ("standard", 1, (1.0,)),
        ("efficient", 1, (2.0,)),
        ("standard", 4, (3.0,)),
        ("efficient", 4, (4.0,)),
    ]


def test_padding_is_part_of_the_timed_batch(monkeypatch):
    tokens = torch.randint(1, 9, (6, 5))
    valid = torch.arange(5) >= torch.tensor([[0], [1], [2], [3], [4], [0]])
    split = Split(tokens, torch.zeros(6, dtype=torch.long), valid)
    words = Dataset(
        name="words",
        title="",
        source="",
        train=split,
        validation=split,
        test=split,
        num_classes=2,
    )
    model = ClassifierConfig(
        vocabulary_size=9, length=5, num_classes=2, d_model=8, depth=1, mlp_width=4
    )
    recipe = replace(TINY, model=model, training=replace(TINY.training, batch_size=4))
    given = []
    monkeypatch.setattr(
        module,
        "interleave",
        lambda calls, **_: {n: (given.append(c()) or 1.0,) for n, c in calls.items()},
    )
    torch.manual_seed(1)
    speeds = time_all(plan(recipe=recipe), words)
    assert [speed.batch_size for speed in speeds] == [4, 4]
    torch.manual_seed(1)
    model = recipe.build("standard", 2).eval()
    with torch.inference_mode():
        assert torch.equal(given[0], model(tokens[:4], valid=valid[:4]))
        assert not torch.equal(given[0], model(tokens[:4]))


def test_the_first_epoch_warms_up():
    assert typical([100.0, 3.0, 1.0, 2.0]) == 2.0
    assert typical([5.0]) == 5.0


# rows that ask for several answers


def test_a_comparison_over_answers(tmp_path):
    options = (("pairs", 3), ("keys", 60), ("values", 60), ("rows", 200))
    model = LMConfig(vocabulary_size=120, length=9, d_model=8, depth=2, mlp_width=8)
    recipe = replace(TINY, name="recall", task="mqar", task_options=options, model=model)
    results, _ = run(tmp_path, plan(recipe=recipe, mechanisms=("standard", "linear"), seeds=1))
    assert (results.answers, results.chance) == (3.0, 1 / 3)
    assert read_results(tmp_path / "results.json") == results
    dataset, cell = load("mqar", **dict(options)), results.cells[1]
    place = CellFiles(tmp_path, cell_path(tmp_path, *cell.key).stem).model
    model = folder_of_model.read(place).model
    logits = model(dataset.test.inputs)[:, 6:].flatten(0, 1)
    labels = dataset.test.labels[:, 6:].flatten()
    right = (logits.argmax(dim=1) == labels).sum().item()
    assert cell.test_accuracy == right / (1_024 * 3)
    answers = read_results(tmp_path / "results.json").rows[cell.key]
    assert not answers.by_row
    assert answers.right.sum() / answers.asked.sum() == pytest.approx(cell.test_accuracy, rel=1e-12)
    assert answers.loss.sum() / answers.asked.sum() == pytest.approx(cell.test_loss, rel=1e-5)
    assert cell.test_loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5
    )
    assert [speed.batch_size for speed in results.speeds] == [256, 256]


# shares of a cluster


def test_shares_are_trained_apart_and_merged_by_reading(whole, tmp_path):
    for share in ((2, 3), (1, 3)):
        claim(plan(), tmp_path, resume=True)
        results, _ = run(tmp_path, share=share, quiet=True)
        assert results is None
    written = [cell_path(tmp_path, *key).exists() for key in plan().cells]
    assert written == [True, True, False, True]
    results, _ = run(tmp_path, resume=True, quiet=True)
    assert timeless(results.cells) == timeless(whole[1].cells)


# interruption


def fail_at(monkeypatch, number, error):
    calls, original = [], trainer.fit

    def fit(*args, **options):
        calls.append(options["seed"])
        if len(calls) == number:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(trainer, "fit", fit)
    return calls


def test_cells_are_written_as_they_finish(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, 4, StateError("the loss is nan"))
        with pytest.raises(StateError, match="the loss is nan"):
            run(tmp_path)
    keys = plan().cells
    assert [cell_path(tmp_path, *key).exists() for key in keys] == [True, True, True, False]
    kept = cell_path(tmp_path, *keys[0]).read_bytes()
    with monkeypatch.context() as patch:
        calls = fail_at(patch, 0, None)
        results, _ = run(tmp_path, resume=True)
        assert calls == [1], "only the missing one is trained"
    assert cell_path(tmp_path, *keys[0]).read_bytes() == kept
    assert timeless(results.cells) == timeless(whole[1].cells)


def press_at(monkeypatch, wanted):
    """Press Ctrl-C when so many steps are done in all."""
    steps, counting = [], Display.step

    def step(self, done, total):
        counting(self, done, total)
        steps.append(done)
        if len(steps) == wanted:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Display, "step", step)


@pytest.mark.parametrize("step", [1, 7, 13])
def test_interrupted_and_resumed_is_as_uninterrupted(whole, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        press_at(patch, step)
        with pytest.raises(Interrupted, match=rf"after step {(step - 1) % 5 + 1}; resume from"):
            run(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    assert len(list(tmp_path.glob("cells/*.json"))) == (step > 10)
    results, _ = run(tmp_path, resume=True)
    assert timeless(results.cells) == timeless(whole[1].cells)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_cell_that_was_trained_and_not_scored_is_not_trained_again(whole, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt("while scoring")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt, match="while scoring"):
            run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("suffice.train.engine.TrainingEngine._step", stop)
        given = plan(mechanisms=("standard",), seeds=1)
        results, _ = run(tmp_path, given, resume=True)
    assert timeless(results.cells) == timeless(whole[1].cells[:1])


def test_resuming_adds_seeds_mechanisms_and_heads(whole, tmp_path, monkeypatch):
    given = plan(mechanisms=("standard",), seeds=1)
    run(tmp_path, given)
    first = cell_path(tmp_path, "standard", 2, 0).read_bytes()
    calls = fail_at(monkeypatch, 0, None)
    results, _ = run(tmp_path, resume=True)
    assert calls == [0, 1, 1]
    assert timeless(results.cells) == timeless(whole[1].cells)
    assert cell_path(tmp_path, "standard", 2, 0).read_bytes() == first
    more, _ = run(tmp_path, plan(heads=(2, 4), seeds=1), resume=True)
    assert calls == [0, 1, 1, 0, 0]
    assert [cell.key for cell in more.cells] == plan(heads=(2, 4), seeds=1).cells
    assert len(list(tmp_path.glob("cells/*.json"))) == 6, "no cell is lost by asking for fewer"
    fewer, _ = run(tmp_path, given, resume=True)
    assert fewer.dropped == ("efficient",)
    assert any("efficient. No correction" in note for note in notes(judge(fewer), fewer))


def test_a_mechanism_without_further_seeds_gets_none_on_resuming(tmp_path, monkeypatch):
    """What was decided after 3 seeds was decided without the later seeds of others."""

    def look(plan, folder, cells):
        return {("efficient", 2)} if {cell.seed for cell in cells} == {0, 1, 2} else set()

    monkeypatch.setattr(module, "_decided", look)
    given = plan(seeds=5, auto=True)
    before, _ = run(tmp_path, given)
    assert ("efficient", 2, 3) not in [cell.key for cell in before.cells]
    cell_path(tmp_path, "standard", 2, 4).unlink()
    after, _ = run(tmp_path, given, resume=True)
    assert timeless(after.cells) == timeless(before.cells)


def test_cells_that_are_trained_side_by_side_are_those_of_one_process(tmp_path):
    given = plan(mechanisms=("standard", "efficient"), seeds=2)
    alone, told_alone = run(tmp_path / "alone", given)
    jobs = Execution(jobs=2, threads=torch.get_num_threads())
    beside, told_beside = run(tmp_path / "beside", given, execution=jobs)
    assert timeless(beside.cells) == timeless(alone.cells)
    assert beside.rows.keys() == alone.rows.keys()
    gone = Execution(engine="ray", address="192.0.2.1:6379")
    again, _ = run(tmp_path / "beside", given, quiet=True, resume=True, execution=gone)
    assert again.cells == beside.cells

    def progress(text):
        lines = [line.partition(",")[0] for line in text.splitlines()]
        shown = sorted(line for line in lines if "test accuracy" in line or "after two" in line)
        return [line.split(":")[0] for line in shown]

    assert len(progress(told_alone)) == 5
    assert progress(told_beside) == progress(told_alone)


def test_seeds_are_added_side_by_side_until_the_looks_decide(tmp_path, monkeypatch):
    """Every look sees the same cells as one after the other, and none sees a later seed."""
    looks = []

    def look(plan, folder, cells):
        looks.append(sorted(cell.key for cell in cells))
        return {("efficient", 2)} if {cell.seed for cell in cells} == {0, 1, 2} else set()

    monkeypatch.setattr(module, "_decided", look)
    given = plan(seeds=5, auto=True)
    jobs = Execution(jobs=2, threads=torch.get_num_threads(), quiet=True)
    beside, _ = run(tmp_path / "beside", given, quiet=True, execution=jobs)
    side_by_side, looks = looks, []
    alone, _ = run(tmp_path / "alone", given, quiet=True)
    assert timeless(beside.cells) == timeless(alone.cells)
    assert set(map(str, looks)) == set(map(str, side_by_side))
    assert ("efficient", 2, 3) not in [cell.key for cell in beside.cells]


def test_rates_are_not_chosen_side_by_side(tmp_path):
    with pytest.raises(ConfigError, match="tune"):
        run(tmp_path / "run", plan(tune=3), quiet=True, execution=Execution(jobs=2))
    assert not (tmp_path / "run").exists()


def test_every_command_of_a_comparison_is_told(tmp_path):
    for number, command in enumerate(("suffice compare", "suffice compare --resume") * 2):
        given = plan(mechanisms=("standard",), seeds=1)
        results, _ = run(tmp_path, given, resume=number > 0, command=command)
    assert results.command == "suffice compare\nsuffice compare --resume"


# what is refused


def test_a_folder_with_a_comparison_is_refused(whole):
    with pytest.raises(ConfigError, match="already holds a comparison"):
        run(whole[0])


def test_cuda_without_one_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device='cuda', but torch finds no CUDA device here"):
        run(tmp_path / "run", plan(device="cuda"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "models").write_text("in the way")
    told = r"cannot make .*models \(File exists\); choose a folder that can be written with --out"
    with pytest.raises(DataError, match=told):
        run(tmp_path)


def copy(whole, folder):
    given = plan(mechanisms=("standard",), seeds=1)
    given.claim(folder, resume=False)
    path = cell_path(folder, "standard", 2, 0)
    path.parent.mkdir()
    path.write_bytes(cell_path(whole[0], "standard", 2, 0).read_bytes())
    return given, path


def test_an_altered_cell_is_refused_and_trained_again_when_it_is_deleted(whole, tmp_path):
    given, path = copy(whole, tmp_path)
    path.write_text(path.read_text().replace('"best_epoch": ', '"best_epoch": 1'))
    told = "standard-h2-s0.json was altered: .* Delete this file; its model will be trained again"
    with pytest.raises(DataError, match=told):
        run(tmp_path, given, resume=True)
    assert path.exists()
    path.unlink()
    results, _ = run(tmp_path, given, resume=True)
    assert timeless(results.cells) == timeless(whole[1].cells[:1])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torch.save wrote this", b"\x80\x04."])
def test_a_checkpoint_that_is_not_safetensors_is_refused(tmp_path, content):
    path = CellFiles(tmp_path, "standard-h2-s0").checkpoint
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match="s0.safetensors is not a safetensors file, or is cut"
    ):
        run(tmp_path)
    assert path.read_bytes() == content


def test_a_checkpoint_of_another_cell_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        press_at(patch, 3)
        with pytest.raises(Interrupted, match="after step 3"):
            run(tmp_path)
    one = CellFiles(tmp_path, "standard-h2-s0").checkpoint
    one.rename(CellFiles(tmp_path, "standard-h2-s1").checkpoint)
    given = plan(mechanisms=("standard",))
    with pytest.raises(CheckpointError, match="is of another run: seed was 0 and is 1"):
        run(tmp_path, given, resume=True)


def test_a_full_disk_loses_nothing(whole, tmp_path, monkeypatch):
    write = Path.write_bytes

    def full(path, data):
        if path.parent.name == "cells":
            raise OSError(28, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        told = r"cannot write .*s0.json: No space left on device; make room or choose another"
        with pytest.raises(DataError, match=told):
            run(tmp_path)
    assert list((tmp_path / "cells").iterdir()) == []
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    results, _ = run(tmp_path, resume=True)
    assert timeless(results.cells) == timeless(whole[1].cells)


def test_data_are_loaded_with_the_options_of_the_recipe(tmp_path, monkeypatch):
    asked = []

    def give(task, *, console=None, **options):
        asked.append((task, console is not None, options))
        raise DataError("not here")

    monkeypatch.setattr(module, "load", give)
    for quiet in (False, True):
        given = plan(recipe=replace(TINY, task_options=(("size", 8),)))
        with pytest.raises(DataError, match="not here"):
            run(tmp_path / str(quiet), given, quiet=quiet)
    assert asked == [("digits", True, {"size": 8}), ("digits", False, {"size": 8})]


def test_two_programs_do_not_share_a_folder(tmp_path):
    claim(plan(), tmp_path, resume=False)
    before = (tmp_path / "plan.json").read_text()
    another = pytest.raises(ConfigError, match="another program")
    with run_folder(tmp_path).locked(), another:
        run(tmp_path, resume=True)
    assert (tmp_path / "plan.json").read_text() == before
    assert not (tmp_path / "cells").exists()


def test_a_mechanism_drawn_again_is_the_same_with_other_chance(tmp_path):
    names = ("standard", "standard+draw:1", "efficient+window:2+softmax:2")
    results, _ = run(tmp_path / "c", plan(mechanisms=names, seeds=1))
    one, again, mixed = results.cells
    assert (one.flops, one.parameters_model) == (again.flops, again.parameters_model)
    assert one.test_loss != again.test_loss
    assert LAYER["efficient"] == mixed.parameters_layer
    assert one.parameters_model > mixed.parameters_model
    assert read_cell(tmp_path / "c", "standard+draw:1", 2, 0) == again
