from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffice.comparison.plan import Plan, data_digest, describe, describe_for_others, read_plan
from suffice.comparison.results import write_cell
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import RECIPES, digits_vit, mnist_v2
from suffice.train.recipes import recipe as named
from suffice.train.recipes.own_data import of_user

from .synthetic import make_cell


def plan(**changes):
    given = {
        "recipe": digits_vit(),
        "mechanisms": ("standard", "efficient"),
        "heads": (1, 4),
        "seeds": 2,
        "baseline": "standard",
    }
    return Plan(**{**given, **changes})


def shorter(recipe, **changes):
    return replace(recipe, training=replace(recipe.training, **changes))


def test_cells_go_seed_by_seed_and_heads_by_heads():
    assert plan().pairs == [
        ("standard", 1),
        ("efficient", 1),
        ("standard", 4),
        ("efficient", 4),
    ]
    assert plan().cells == [(*pair, seed) for seed in (0, 1) for pair in plan().pairs]


def test_each_seed_has_a_fold_of_its_own(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "good,yes\nbad,no\n" * 9)
    table = of_user(named("table"), str(path))
    options = plan(recipe=table, folds=3, seeds=3).data_options(1)
    assert (options["folds"], options["fold"]) == (3, 1)
    assert "fold" not in plan().data_options(1)


def test_the_margin_is_a_point_unless_it_is_stated():
    assert plan().margin == 0.01
    assert plan().device == "cpu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanisms": ()}, "mechanisms: none; name at least one, each once"),
        ({"mechanisms": ("standard",) * 2}, "mechanisms: standard, standard; name at least one"),
        ({"heads": ()}, "heads: none; name at least one"),
        ({"heads": (2, 4, 2)}, "heads: 2, 4, 2; name at least one, each once"),
        ({"seeds": 0}, "seeds=0; give at least 1, and 5 for a verdict"),
        ({"seeds": -2}, "seeds=-2; give at least 1"),
        ({"baseline": "gqa"}, "baseline 'gqa' is not among the mechanisms standard, efficient;"),
        ({"margin": -0.01}, "margin=-0.01 is not a fraction of accuracy"),
        ({"margin": 1.0}, "margin=1 is not a fraction"),
        ({"margin": float("nan")}, "margin=nan is not a fraction"),
        ({"heads": (3,)}, r"num_heads=3.*d_model=64"),
        ({"heads": (0,)}, r"num_heads=0"),
        (
            {"mechanisms": ("standard", "eficient")},
            "unknown mechanism 'eficient'; did you mean 'efficient'",
        ),
        ({"mechanisms": ("standard", "gqa")}, "gqa shares key/value heads"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


def test_a_claim_writes_the_plan(tmp_path):
    folder = tmp_path / "deep" / "run"
    plan(margin=0.02).claim(folder, resume=False)
    kept = read_plan(folder)
    assert kept.recipe == describe(digits_vit())
    assert (kept.mechanisms, kept.heads, kept.seeds) == (("standard", "efficient"), (1, 4), 2)
    assert (kept.baseline, kept.margin, kept.device) == ("standard", 0.02, "cpu")
    assert [path.name for path in folder.iterdir()] == ["plan.json"]


def test_a_second_claim_without_resume_is_refused(tmp_path):
    plan().claim(tmp_path, resume=False)
    before = (tmp_path / "plan.json").read_bytes()
    told = rf"^{tmp_path} already holds a comparison"
    with pytest.raises(ConfigError, match=told):
        plan(seeds=3).claim(tmp_path, resume=False)
    assert (tmp_path / "plan.json").read_bytes() == before


def test_resuming_may_ask_for_more_and_for_less(tmp_path):
    plan().claim(tmp_path, resume=False)
    more = plan(seeds=5, heads=(4, 2), mechanisms=("mqa", "standard"), baseline="mqa", margin=0.03)
    more.claim(tmp_path, resume=True)
    kept = read_plan(tmp_path)
    assert (kept.mechanisms, kept.heads, kept.seeds) == (("mqa", "standard"), (4, 2), 5)
    assert (kept.baseline, kept.margin) == ("mqa", 0.03)


def test_resuming_where_nothing_is_begins(tmp_path):
    plan().claim(tmp_path / "new", resume=True)
    assert read_plan(tmp_path / "new").seeds == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"recipe": shorter(digits_vit(), epochs=3)},
            "another recipe: training.epochs was 20 and is 3; give the same settings, or another",
        ),
        (
            {"recipe": shorter(digits_vit(), epochs=3, clip=None)},
            "training.epochs was 20 and is 3, training.clip was 1.0 and is None; give",
        ),
        (
            {"recipe": mnist_v2()},
            "name was 'digits_vit' and is 'mnist_v2', title was .*, task was 'digits' and is "
            "'mnist' and 1[0-9] more differences; give",
        ),
        (
            {"recipe": replace(digits_vit(), task_options=(("size", 8),))},
            r"task_options was \[\] and is \[\['size', 8\]\]; give",
        ),
        ({"device": "cuda"}, "another recipe: device was 'cpu' and is 'cuda'; give"),
    ],
)
def test_resuming_with_another_recipe_is_refused(tmp_path, changes, message):
    plan().claim(tmp_path, resume=False)
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(ConfigError, match=message):
        plan(**changes).claim(tmp_path, resume=True)
    assert (tmp_path / "plan.json").read_bytes() == before


def edit(folder, change):
    content = json.loads((folder / "plan.json").read_text())
    change(content["recipe"])
    (folder / "plan.json").write_text(json.dumps(content))


def test_a_setting_that_is_not_there_was_its_default(tmp_path):
    """A plan of an earlier version, before the recipe, its model or its training knew it."""
    plan().claim(tmp_path, resume=False)
    for place in (lambda r: r, lambda r: r["model"], lambda r: r["training"]):
        name = {"models", "channels", "augment", "betas"}

        def forget(recipe, place=place, name=name):
            for key in name & place(recipe).keys():
                del place(recipe)[key]

        edit(tmp_path, forget)
    assert "models" not in read_plan(tmp_path).recipe
    plan().claim(tmp_path, resume=True)
    assert read_plan(tmp_path).recipe == describe(digits_vit())


def test_a_setting_that_is_not_there_differs_from_another_than_its_default(tmp_path):
    plan().claim(tmp_path, resume=False)
    edit(tmp_path, lambda recipe: recipe["training"].pop("clip"))
    edit(tmp_path, lambda recipe: recipe["training"].pop("epochs"))
    edit(tmp_path, lambda recipe: recipe["training"].update(momentum=None))
    told = (
        "training.epochs was absent and is 20, training.clip was None and is 1.0, "
        "training.momentum was None and is absent;"
    )
    with pytest.raises(ConfigError, match=told):
        plan().claim(tmp_path, resume=True)


def test_a_small_comparison_does_not_go_on_with_one_of_the_papers_size(tmp_path):
    plan(recipe=mnist_v2()).claim(tmp_path, resume=False)
    told = "another recipe: scale was 'paper' and is 'small', title was .* more differences; give"
    with pytest.raises(ConfigError, match=told):
        plan(recipe=mnist_v2("small")).claim(tmp_path, resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_cells_without_a_plan_are_not_taken_over(tmp_path, resume):
    write_cell(tmp_path, make_cell())
    told = "holds cells but no plan.json"
    with pytest.raises(ConfigError, match=told):
        plan().claim(tmp_path, resume=resume)
    assert not (tmp_path / "plan.json").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match=f"cannot write {folder}/plan.json"):
            plan().claim(folder, resume=False)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", r"plan.json is \[\] of type list"),
        (b"{}", "plan.json lacks recipe, mechanisms, heads, .*device"),
    ],
)
def test_a_plan_that_was_altered_is_refused(tmp_path, content, message):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_plan(tmp_path)
    with pytest.raises(DataError, match=message):
        plan().claim(tmp_path, resume=True)
    assert (tmp_path / "plan.json").read_bytes() == content


def test_a_plan_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(DataError, match="plan.json"):
        read_plan(tmp_path)


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_is_described_by_what_json_gives_back(name):
    told = describe(RECIPES[name]())
    assert json.loads(json.dumps(told)) == told
    assert told["training"]["betas"] == list(RECIPES[name]().training.betas)


def test_a_model_holds_the_name_and_a_digest_of_own_files_and_no_path(tmp_path):
    path = tmp_path / "private" / "mine.csv"
    path.parent.mkdir()
    rows = [f"{word} number {n},{n % 2}" for n, word in enumerate(["good", "bad"] * 20)]
    path.write_text("\n".join(["text,label", *rows]))
    recipe = of_user(named("table"), str(path), test=str(path), validation="0.2")
    described = describe_for_others(recipe)
    assert "private" not in json.dumps(described)
    options = dict(described["task_options"])
    assert (options["path"], options["test"], options["validation"]) == ("mine.csv",) * 2 + ("0.2",)
    assert described["data"] == data_digest(recipe)
    assert describe_for_others(digits_vit()) == describe(digits_vit())
