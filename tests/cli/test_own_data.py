from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from suffice.cli.compare import CompareOptions
from suffice.comparison.plan import read_plan
from suffice.comparison.results import read_results
from suffice.data.files import digest
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import recipe


@pytest.fixture(autouse=True)
def anew():
    digest.cache_clear()


@pytest.fixture
def mine(tmp_path):
    rows = [f"word{n} {'abc'[n % 3]},{'abc'[n % 3]}\n" for n in range(200)]
    (tmp_path / "mine.csv").write_text("review,stars\n" + "".join(rows))
    return str(tmp_path / "mine.csv")


def test_files_without_a_task_are_a_table(mine, tmp_path):
    plan = CompareOptions(data=mine, columns="review,stars").plan()
    assert (plan.recipe.name, plan.recipe.model.num_classes) == ("table", 3)
    assert plan.recipe.title == "mine.csv, 3 classes, 2 blocks, d_model 64, last 64 words"
    named = {"path": mine, "columns": "review,stars"}
    assert dict(plan.recipe.task_options) == {**dict(recipe("table").task_options), **named}
    assert CompareOptions(task="table", data=mine, columns="review,stars").plan() == plan
    plan.claim(tmp_path / "run", resume=False)
    assert CompareOptions().plan(read_plan(tmp_path / "run")) == plan


def test_a_table_needs_a_file_and_columns_a_table(mine):
    with pytest.raises(ConfigError, match="--task table: name the .csv, .tsv"):
        CompareOptions(task="table").plan()
    with pytest.raises(ConfigError, match="--columns: name the table, too, with --data"):
        CompareOptions(columns="a,b").plan()
    with pytest.raises(ConfigError, match="--columns a,b: task amazon has its own; leave it out"):
        CompareOptions(task="amazon", data=mine, columns="a,b").plan()
    with pytest.raises(DataError, match="has no column 'text' or 'label', only review, stars"):
        CompareOptions(data=mine).plan()


def test_parts_and_settings_of_a_table_are_kept(mine, tmp_path):
    test = tmp_path / "test.csv"
    test.write_text("review,stars\n" + "".join(f"{s} {n},{s}\n" for n in range(9) for s in "abc"))
    first = CompareOptions(
        data=mine,
        columns="review,stars",
        test=str(test),
        validation="0.2",
        stratify=False,
        settings={"length": 32, "learning_rate": 3e-4, "d_model": 32},
    ).plan()
    options = dict(first.recipe.task_options)
    assert (options["test"], options["validation"], options["stratify"]) == (
        str(test),
        "0.2",
        False,
    )
    assert (options["length"], first.recipe.model.length) == (32, 32)
    assert (first.recipe.training.learning_rate, first.recipe.model.d_model) == (3e-4, 32)
    assert first.recipe.title == "mine.csv, 3 classes, 2 blocks, d_model 32, last 32 words"
    first.claim(tmp_path / "run", resume=False)
    assert CompareOptions().plan(read_plan(tmp_path / "run")) == first
    again = CompareOptions(settings={"length": 32}).plan(read_plan(tmp_path / "run"))
    assert again == first
    test.write_text(test.read_text() + "a z,a\n")
    digest.cache_clear()
    with pytest.raises(ConfigError, match="on other data: .*mine.csv, .*test.csv"):
        first.claim(tmp_path / "run", resume=True)


def test_settings_that_are_none_are_refused(mine):
    def plan(**settings):
        return CompareOptions(data=mine, columns="review,stars", settings=settings).plan()

    with pytest.raises(ConfigError, match="unknown setting 'lenght'; did you mean 'length'"):
        plan(lenght=3)
    with pytest.raises(ConfigError, match="unknown setting 'num_classes'"):
        plan(num_classes=3)
    with pytest.raises(ConfigError, match="d_model"):
        plan(d_model="wide")
    with pytest.raises(ConfigError, match="--test: name the table, too, with --data"):
        CompareOptions(test="0.2").plan()


def test_files_of_the_user_become_an_option_of_the_task():
    plan = CompareOptions(recipe="amazon", data="mine.jsonl").plan()
    assert plan.recipe.task_options == (*recipe("amazon").task_options, ("path", "mine.jsonl"))
    assert CompareOptions(recipe="amazon").plan().recipe == recipe("amazon")


def test_a_resumed_comparison_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "europarl.en").write_text("one")
    first = CompareOptions(recipe="translation_es", scale="small", data="europarl").plan()
    run = tmp_path / "run"
    first.claim(run, resume=False)
    kept = read_plan(run)
    assert CompareOptions().plan(kept) == first
    CompareOptions().plan(kept).claim(run, resume=True)
    (tmp_path / "elsewhere.en").write_text("two")
    moved = CompareOptions(data="elsewhere").plan(kept)
    assert dict(moved.recipe.task_options)["path"] == "elsewhere"
    with pytest.raises(ConfigError, match="holds a comparison of another recipe"):
        moved.claim(run, resume=True)


def test_cells_on_files_that_have_changed_are_not_mixed(mine, tmp_path):
    given = CompareOptions(data=mine, columns="review,stars")
    given.plan().claim(tmp_path / "run", resume=False)
    Path(mine).write_text(Path(mine).read_text().replace("word7 ", "word8 "))
    given.plan().claim(tmp_path / "run", resume=True)
    digest.cache_clear()
    with pytest.raises(ConfigError, match="on other data: .*mine.csv"):
        given.plan().claim(tmp_path / "run", resume=True)
    content = json.loads((tmp_path / "run" / "plan.json").read_text())
    del content["data"]  # as a comparison begun by an older version
    (tmp_path / "run" / "plan.json").write_text(json.dumps(content))
    given.plan().claim(tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="--data gone.jsonl: no such file"):
        CompareOptions(task="amazon", data="gone.jsonl").plan().claim(
            tmp_path / "new", resume=False
        )


def test_a_task_that_reads_no_files_of_the_user_refuses_them():
    with pytest.raises(ConfigError, match="--data x: task digits reads its own data; leave it out"):
        CompareOptions(recipe="digits_vit", data="x").plan()


@pytest.mark.parametrize("given", [None, 5, "x", [1]])
def test_altered_options_of_a_task_are_reported(tmp_path, given):
    CompareOptions(recipe="digits_vit").plan().claim(tmp_path, resume=False)
    content = json.loads((tmp_path / "plan.json").read_text())
    content["recipe"]["task_options"] = given
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="plan.json does not describe recipe digits_vit"):
        CompareOptions().plan(read_plan(tmp_path))


def test_a_table_is_compared_in_folds(suffice, brief, tmp_path):
    rows = [(f"word{n} {'abc'[n % 3]}", "abc"[n % 3]) for n in range(200)]
    path = tmp_path / "mine.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    options = ("--mechanisms", "standard,efficient", "--seeds", 3, "--epochs", 1)
    done = suffice("compare", "--data", path, *options, "--out", tmp_path / "run")
    assert done.exit_code in (0, 10, 11, 12), done.stderr
    assert "3 seeds on 200 test rows" in " ".join(done.stderr.split())
    results = read_results(tmp_path / "run" / "results.json")
    assert (results.folds, results.data.tested) == (3, 200)
    for seed in range(3):
        ours, theirs = (results.rows[name, 4, seed].row for name in ("standard", "efficient"))
        assert ours.tolist() == theirs.tolist()
    tested = np.concatenate([results.rows["standard", 4, seed].row for seed in range(3)])
    assert sorted(tested.tolist()) == list(range(200))
    shown = json.loads((tmp_path / "run" / "disagreements.json").read_text())["rows"]
    for one in shown:
        assert (one["text"], one["truth"]) == rows[one["row"]]
    again = suffice("compare", "--resume", "--seeds", 4, "--quiet", "--out", tmp_path / "run")
    assert again.exit_code in (0, 10, 11, 12), again.stderr
    more = read_results(tmp_path / "run" / "results.json")
    assert len(more.cells) == 8
    assert sorted(more.rows["standard", 4, 3].row.tolist()) != sorted(
        more.rows["standard", 4, 0].row.tolist()
    )
