from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from suffice.cli import options
from suffice.cli.compare import (
    CompareOptions,
    RunOptions,
    latest_folder,
    new_folder,
    parse_heads,
    parse_margin,
    parse_tune,
)
from suffice.comparison.plan import Plan, read_plan
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import digits_vit, imdb, mnist_v2
from suffice.utils.grammar import split_list

FOUR = ("standard", "optimised", "efficient", "super_attention")


def begun(folder, recipe, **changes):
    given = {
        "recipe": recipe,
        "mechanisms": ("gqa", "standard"),
        "heads": (2, 4),
        "seeds": 7,
        "baseline": "gqa",
        "margin": 0.005,
    }
    Plan(**{**given, **changes}).claim(folder, resume=False)
    return read_plan(folder)


def test_nothing_said_is_the_default():
    plan = CompareOptions().plan()
    assert plan == Plan(
        recipe=digits_vit(),
        mechanisms=FOUR,
        heads=(4,),
        seeds=5,
        baseline="standard",
        margin=0.01,
        device="cpu",
    )
    assert split_list(options.MECHANISMS) == FOUR


def test_everything_said_is_in_the_plan():
    plan = CompareOptions(
        task="imdb",
        mechanisms=("gqa", "mqa", "standard"),
        heads=(2, 8),
        seeds=(3, False),
        epochs=2,
        margin=parse_margin("0.5"),
        baseline="mqa",
    ).plan()
    assert plan.recipe == replace(imdb(), training=replace(imdb().training, epochs=2))
    assert (plan.mechanisms, plan.heads) == (("gqa", "mqa", "standard"), (2, 8))
    assert (plan.seeds, plan.margin, plan.baseline) == (3, 0.005, "mqa")


def test_the_baseline_is_standard_or_else_the_first():
    assert CompareOptions(mechanisms=("gqa", "standard")).plan().baseline == "standard"
    assert CompareOptions(mechanisms=("mqa", "gqa")).plan().baseline == "mqa"


def test_a_scale_may_be_chosen():
    assert CompareOptions(task="mnist", scale="small").plan().recipe == mnist_v2("small")
    assert CompareOptions(recipe="mnist_v2", scale="paper").plan().recipe == mnist_v2()
    told = "recipe digits_vit has one scale only; leave scale='small' out"
    with pytest.raises(ConfigError, match=told):
        CompareOptions(scale="small").plan()


def test_a_recipe_may_be_named_with_its_task():
    assert CompareOptions(recipe="mnist_v2", task="mnist").plan().recipe == mnist_v2()
    told = "--recipe mnist_v2 is for task mnist, not for --task imdb; give one of the two"
    with pytest.raises(ConfigError, match=told):
        CompareOptions(recipe="mnist_v2", task="imdb").plan()


@pytest.mark.parametrize("word", ["x", "0", "-1", "1.5", "04", "²", "1e2", "1 2", "9999999"])
def test_a_number_of_heads_that_is_none_is_refused(word):
    told = rf"--heads '{word}' is not a list of head counts; give numbers such as 1,2,4\.$"
    with pytest.raises(ConfigError, match=told):
        parse_heads(word)
    with pytest.raises(ConfigError, match=told):
        parse_heads(f"4,{word}")


@pytest.mark.parametrize(
    ("margin", "metric", "fraction"),
    [
        ("0.5", "accuracy", 0.005),
        ("0", "bleu", 0.0),
        ("1%", "balanced", 0.01),
        ("0.01 points", "accuracy", 0.0001),
        ("2", "log-loss", 0.02),
        ("0.03 nats", "log-loss", 0.03),
        ("1.5%", "perplexity", 0.015),
    ],
)
def test_a_margin_is_in_points_unless_a_unit_says_otherwise(margin, metric, fraction):
    assert CompareOptions(
        margin=parse_margin(margin), metric=metric
    ).plan().margin == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("margin", "metric", "value"),
    [
        ("-1", "accuracy", "-1"),
        ("inf", "accuracy", "inf"),
        ("100", "accuracy", "margin=1"),
        ("0.01", "accuracy", "'1 points' .* '0.01 points'"),
        ("0.01", "log-loss", "'0.01 nats' .* '0.0001 nats'"),
        ("1 nat", "accuracy", "nat"),
        ("1%", "log-loss", "%"),
    ],
)
def test_a_margin_that_is_none_or_may_be_meant_otherwise_is_refused(margin, metric, value):
    with pytest.raises(ConfigError, match=value):
        CompareOptions(margin=parse_margin(margin), metric=metric).plan()


# going on


def test_what_is_not_said_anew_is_as_it_was(tmp_path):
    short = replace(digits_vit(), training=replace(digits_vit().training, epochs=3))
    kept = begun(tmp_path, short)
    plan = CompareOptions().plan(kept)
    assert plan.recipe == short
    assert (plan.mechanisms, plan.heads, plan.seeds) == (("gqa", "standard"), (2, 4), 7)
    assert (plan.baseline, plan.margin, plan.device) == ("gqa", 0.005, "cpu")
    plan.claim(tmp_path, resume=True)


def test_the_scale_is_kept_and_may_be_said_again(tmp_path):
    kept = begun(tmp_path, mnist_v2("small"), heads=(4,))
    assert CompareOptions().plan(kept).recipe == mnist_v2("small")
    assert CompareOptions(recipe="mnist_v2").plan(kept).recipe == mnist_v2("small")
    assert CompareOptions(scale="paper").plan(kept).recipe.scale == "paper"
    del kept.recipe["scale"]
    assert CompareOptions().plan(kept).recipe.scale == "paper", "of before there were scales"


def test_what_is_said_anew_counts(tmp_path):
    kept = begun(tmp_path, digits_vit())
    plan = CompareOptions(
        mechanisms=("gqa", "mqa"),
        heads=(2,),
        seeds=(9, False),
        margin=parse_margin("2"),
        baseline="mqa",
    ).plan(kept)
    assert (plan.mechanisms, plan.heads, plan.seeds) == (("gqa", "mqa"), (2,), 9)
    assert (plan.baseline, plan.margin) == ("mqa", 0.02)
    assert CompareOptions(epochs=4).plan(kept).recipe.training.epochs == 4
    assert CompareOptions(task="mnist").plan(kept).recipe.name == "mnist_v2"


def test_a_comparison_of_an_unknown_recipe_is_refused(tmp_path):
    begun(tmp_path, digits_vit())
    content = json.loads((tmp_path / "plan.json").read_text())
    content["recipe"]["name"] = "digit_vit"
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="unknown recipe 'digit_vit'; did you mean 'digits_vit'"):
        CompareOptions().plan(read_plan(tmp_path))
    content["recipe"] = {}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="unknown recipe 'None'"):
        CompareOptions().plan(read_plan(tmp_path))


@pytest.mark.parametrize("training", [7, [], {"epochs": "x"}])
def test_a_comparison_with_odd_settings_is_refused(tmp_path, training):
    begun(tmp_path, digits_vit())
    content = json.loads((tmp_path / "plan.json").read_text())
    content["recipe"]["training"] = training
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises((ConfigError, DataError), match="not describe recipe digits|epochs='x'"):
        CompareOptions().plan(read_plan(tmp_path)).claim(tmp_path, resume=True)


# folders


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_new_folder_is_named_by_recipe_and_time():
    path = new_folder(digits_vit())
    assert path.parent == Path("runs")
    name, date, time = path.name.split("-")
    assert (name, len(date), len(time)) == ("digits_vit", 8, 6)
    assert (date + time).isdigit()
    assert new_folder(mnist_v2("small")).name.startswith("mnist_v2-small-")


def test_the_latest_run_is_the_one_begun_last(here):
    for name in (
        "mnist_v2-20260101-000000",
        "digits_vit-20251231-235959",
        "digits_vit-20251231-000000",
    ):
        recipe = mnist_v2() if name.startswith("mnist") else digits_vit()
        begun(Path("runs") / name, recipe, heads=(4,))
    (Path("runs") / "digits_vit-20270101-000000").mkdir()
    latest = {
        CompareOptions(): "mnist_v2-20260101-000000",
        CompareOptions(recipe="digits_vit"): "digits_vit-20251231-235959",
        CompareOptions(task="digits"): "digits_vit-20251231-235959",
        CompareOptions(task="mnist"): "mnist_v2-20260101-000000",
    }
    for asked, name in latest.items():
        assert latest_folder(asked) == Path("runs") / name


def test_the_latest_run_of_a_scale(here):
    for name in ("mnist_v2-20260101-000000", "mnist_v2-small-20260102-000000"):
        scale = "small" if "small" in name else "paper"
        begun(Path("runs") / name, mnist_v2(scale), heads=(4,))
    latest = {
        CompareOptions(): "mnist_v2-small-20260102-000000",
        CompareOptions(recipe="mnist_v2"): "mnist_v2-small-20260102-000000",
        CompareOptions(scale="paper"): "mnist_v2-20260101-000000",
        CompareOptions(task="mnist", scale="paper"): "mnist_v2-20260101-000000",
        CompareOptions(task="mnist", scale="small"): "mnist_v2-small-20260102-000000",
    }
    for asked, name in latest.items():
        assert latest_folder(asked) == Path("runs") / name
    told = "there is no run of imdb at scale small under runs/ to resume; name its folder with"
    with pytest.raises(ConfigError, match=told):
        latest_folder(CompareOptions(recipe="imdb", scale="small"))
    with pytest.raises(ConfigError, match="unknown scale 'smal'; did you mean 'small'"):
        latest_folder(CompareOptions(scale="smal"))


def test_a_missing_run_is_reported(here):
    told = "there is no run under runs/ to resume; name its folder with --out, or start one"
    with pytest.raises(ConfigError, match=told):
        latest_folder(CompareOptions())
    with pytest.raises(ConfigError, match="there is no run of imdb under runs/ to resume"):
        latest_folder(CompareOptions(task="imdb"))
    with pytest.raises(ConfigError, match="unknown task 'imbd'; did you mean 'imdb'"):
        latest_folder(CompareOptions(task="imbd"))


@pytest.mark.parametrize("text", ["5", "lr", "lr:", "lr:five", "wd:5", "lr:-3"])
def test_a_grid_that_is_none_is_refused_with_a_legal_one(text):
    with pytest.raises(ConfigError, match="such as lr:5"):
        parse_tune(text)


def test_tuning_is_part_of_the_plan():
    assert CompareOptions(tune=5).plan().tune == 5
    assert CompareOptions().plan().tune is None


def test_another_optimiser_is_a_setting_of_the_recipe():
    recipe = CompareOptions(settings={"optimiser": "adamw"}).plan().recipe
    assert recipe.training.optimiser == "adamw"
    assert recipe.title.endswith(", optimiser=adamw")
    with pytest.raises(ConfigError, match="sgd"):
        CompareOptions(settings={"optimiser": "sgd"}).plan()


@pytest.mark.parametrize(
    "words",
    [
        ("--tune", "lr:3", "--jobs", 2),
        ("--tune", "lr:3", "--cells", "1/2"),
        ("--seeds", "auto", "--cells", "1/2"),
    ],
)
def test_options_that_exclude_each_other_leave_no_folder(suffice, tmp_path, words):
    result = suffice("compare", "--task", "digits", *words, "--out", "run")
    assert result.exit_code == 2
    assert words[-2] in result.message
    assert not (tmp_path / "run").exists()


def test_a_measurement_chooses_the_jobs_only_where_no_option_does():
    assert RunOptions().measured
    for given in ({"jobs": 1}, {"jobs": 2}, {"threads": 1}, {"engine": "ray"}):
        assert not RunOptions(**given).measured
