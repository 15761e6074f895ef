from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from papers.tests.tiny import RESULTS, TINY, cells, fill, kept
from suffice.comparison.answers import from_scores, write_answers
from suffice.comparison.answers import path_of as answers_path
from suffice.comparison.plan import RAN, read_provenance, same_training
from suffice.comparison.results import DataFacts, cell_path, write_facts, write_results
from suffice.comparison.verdict import judge
from suffice.data import load
from suffice.data.survey import survey
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import recipe
from suffice_papers.folder import claim
from suffice_papers.published import PackedAnswers, path_of, published_names, read_published
from suffice_papers.request import request_cells
from suffice_papers.results import (
    cells_of,
    gather,
    in_folder,
    joined,
    machine_of,
    publish,
    published,
)
from suffice_papers.rows import rows
from suffice_papers.tables import BALANCED, BLEU, STAND_INS, TABLES, TEST, table
from tests.comparison.synthetic import make_cell, make_results


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """A checkout whose published results are those of the test."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr("suffice_papers.published.FOLDER", tmp_path / RESULTS)
    return tmp_path


# the registry


def test_every_recipe_is_there_and_every_table_has_rows():
    for found in TABLES.values():
        if found.shows == "cells":
            recipe(found.recipe).specs("efficient", found.heads[-1])
            assert found.columns
        else:
            assert found.parts
        assert found.store in TABLES
        assert set(found.mechanisms) >= {"standard"}
        assert found.figures or found.name == "v2-table1"


def test_tables_that_share_cells_share_a_recipe():
    for found in TABLES.values():
        owner = TABLES[found.store]
        assert (owner.recipe, owner.parts) == (found.recipe, found.parts)


def test_an_unknown_table_is_refused():
    with pytest.raises(ConfigError, match="unknown table 'v2-imbd'; did you mean 'v2-imdb'"):
        table("v2-imbd")


def test_a_recipe_that_is_not_there_is_reported():
    with pytest.raises(ConfigError, match="unknown recipe 'nowhere'"):
        request_cells(replace(TINY, recipe="nowhere"))


# rows


def test_rows_average_rank_and_stand_beside_the_paper():
    found = rows(TINY, cells())
    assert [(row.mechanism, row.num_heads, row.seeds) for row in found[:3]] == [
        ("standard", 1, 2),
        ("efficient", 1, 2),
        ("super_attention", 1, 2),
    ]
    figure = found[1].figures["test_accuracy"]
    assert figure.ours.mean == pytest.approx(0.961)
    assert figure.ours.high - figure.ours.mean == pytest.approx(12.7062 * 0.001, rel=1e-4)
    assert (figure.rank, figure.paper, figure.paper_rank) == (2, 0.9778, 3)
    assert found[2].figures["parameters_layer"].rank == 1
    assert found[0].figures["test_loss"].rank == 1


def test_what_was_not_run_is_blank():
    found = rows(TINY, cells(heads=(4,), seeds=1))
    assert found[0].seeds == 0
    assert found[0].figures["test_accuracy"].ours is None
    assert found[0].figures["test_accuracy"].rank is None
    assert found[0].paper.num_heads == 1
    assert found[3].figures["test_accuracy"].ours.sd is None


def test_a_score_is_a_column_where_the_task_has_it():
    cell = make_cell()
    assert BALANCED.over([cell]) is None
    scored = replace(cell, scores={"balanced_accuracy": 0.5, "bleu": 20.0})
    assert (BALANCED.over([scored]).mean, BLEU.over([scored]).mean) == (0.5, 20.0)
    assert BLEU.theirs(None) is None
    assert TEST[0].over([cell]).mean == cell.test_accuracy


# published results


def test_what_is_published_comes_back(checkout):
    assert published(TINY) is None
    content = kept(cells())
    path = publish(TINY, content)
    assert path == checkout / RESULTS / "tiny.json"
    assert published(TINY) == content
    assert cells_of(content, recipe("digits_vit")) == cells()


@pytest.mark.parametrize("asked", [1, 8, 300])
def test_answers_of_the_folder_are_published_and_come_back(checkout, tmp_path, asked):
    random = np.random.default_rng(asked)
    request = fill(tmp_path / "run", cells())
    told = {}
    for cell in request.finished:
        right = random.integers(0, asked + 1, size=750).astype(np.float64)
        told[cell.key] = replace(from_scores(right), asked=np.full(750, float(asked)))
        stem = cell_path(request.folder, *cell.key).stem
        write_answers(answers_path(request.folder, stem), told[cell.key])
    path = publish(TINY, gather(request.plan, request.folder, cells(), None))
    packed = json.loads(path.read_text())["answers"]
    assert packed["rows"] == 750
    if asked == 1:  # a bit a row, in base64
        assert max(map(len, packed["right"].values())) < 750 / 8 * 4 / 3 + 24
    back = published(TINY).results
    assert back.rows.keys() == told.keys()
    for key, answers in told.items():
        np.testing.assert_array_equal(back.rows[key].right, answers.right)
        np.testing.assert_array_equal(back.rows[key].asked, answers.asked)
    assert {c.rows for c in judge(back).comparisons} == {750}
    losses = judge(back, metric="log-loss")  # rows tell what is right, the cells their losses
    assert {c.rows for c in losses.comparisons} == {None}
    # once more without the folder: what was published stays
    again = gather(request.plan, tmp_path / "nowhere", cells(), published(TINY))
    assert again.results.rows.keys() == told.keys()


def test_answers_on_other_rows_and_damaged_ones_are_refused():
    few, many = (from_scores(np.ones(rows)) for rows in (5, 20))
    with pytest.raises(ConfigError, match="different test rows"):
        PackedAnswers.of({"a": few, "b": many})
    whole = PackedAnswers.of({"a": few})
    for text in (whole.right["a"][:-4], "no base64", PackedAnswers.of({"a": many}).right["a"]):
        with pytest.raises(DataError, match="published answers"):
            replace(whole, right={"a": text}).unpack("a")


def test_every_published_table_knows_its_data_and_what_learning_nothing_scores():
    contents = {name: read_published(name) for name in published_names()}
    assert len(contents) > 15
    for name, content in contents.items():
        results = content.results
        assert results.data is not None, name
        assert results.data.rows["test"] > 0, name
        floors = [value for value in (results.majority, results.chance) if value is not None]
        assert floors, f"{name} has no floor"
        assert 0.0 < max(floors) < 1.0, name
        assert results.data.frequency_loss > 0.0, name
        assert judge(results).floors, name


def test_floors_of_the_data_are_published_as_it_says_itself(tmp_path):
    request = fill(tmp_path, cells())
    dataset = load("digits")
    results = gather(request.plan, tmp_path, cells(), None, dataset).results
    assert (results.majority, results.chance) == (dataset.majority, 0.1)
    assert results.data == survey(dataset)
    write_facts(tmp_path, DataFacts.of(dataset, survey(dataset)))
    assert gather(request.plan, tmp_path, cells(), None).results == results
    kept_facts = gather(request.plan, tmp_path / "x", cells(), kept(cells(), results=results))
    assert kept_facts.results.data == results.data


def test_folders_of_a_machine_are_not_published(checkout):
    content = kept(cells())
    told = "suffice compare --data=/data/a.jsonl --heads 1,2 --out '/home/my runs/tiny'"
    content = replace(content, results=replace(content.results, command=told))
    publish(TINY, content)
    command = published(TINY).results.command
    assert command == "suffice compare --data=a.jsonl --heads 1,2 --out 'my runs/tiny'"


def test_the_results_of_the_package_name_no_folder_of_a_machine():
    for name, one in TABLES.items():
        content = published(one)
        assert content is None or "/" not in content.results.command, name


def test_results_of_an_installed_package_are_not_written(checkout):
    (checkout / "pyproject.toml").unlink()
    with pytest.raises(DataError, match="belongs to an installed package; publish from a checkout"):
        publish(TINY, kept(cells()))


def test_a_truncated_file_of_results_is_reported(checkout):
    path = publish(TINY, kept(cells()))
    path.write_text(path.read_text()[:100])
    with pytest.raises(DataError, match="Take the file of the release"):
        published(TINY)


def test_cells_of_other_settings_do_not_count():
    content = kept(cells())
    assert cells_of(None, recipe("digits_vit")) == []
    assert cells_of(replace(content, scale="small"), recipe("digits_vit")) == []
    other = {**content.recipe, "training": {**content.recipe["training"], "epochs": 1}}
    assert cells_of(replace(content, recipe=other), recipe("digits_vit")) == []


def test_a_title_and_new_settings_do_not_make_another_training():
    found = kept(cells()).recipe
    older = {key: value for key, value in found.items() if key != "models"}
    assert same_training({**older, "title": "anew"}, recipe("digits_vit"))
    deeper = {**found, "training": {**found["training"], "augment": {"flip": True}}}
    assert not same_training(deeper, recipe("digits_vit"))


def test_the_package_holds_its_results():
    assert path_of("v2-imdb").parent.name == "results"
    for found in TABLES.values():
        content = published(found) if found.shows == "cells" else None
        if content is not None:
            made = recipe(found.recipe, scale=content.scale)
            assert cells_of(content, made), f"{found.name} is of another recipe"


# the working folder


def test_cells_are_found_in_both_places_and_the_folder_wins(checkout, tmp_path):
    publish(TINY, kept(cells()))
    newer = cells(shift=0.01)[:1]
    request = fill(tmp_path / "run", newer)
    assert request.missing == []
    found = {cell.key: cell for cell in request.row_cells}
    assert len(found) == 12
    assert found[newer[0].key] == newer[0]
    assert joined(newer, cells())[0].key == ("efficient", 1, 0)


def test_a_request_knows_what_is_missing(checkout, tmp_path):
    request = fill(tmp_path / "run", cells(heads=(1,)))
    assert request.missing == [(name, 4, seed) for seed in (0, 1) for name in TINY.mechanisms]
    assert request_cells(TINY, out=tmp_path / "run", heads=(1,)).missing == []
    assert len(request_cells(TINY, out=tmp_path / "run", heads=(1,), seeds=3).missing) == 3


def test_a_folder_of_nobody_holds_nothing(tmp_path):
    assert in_folder(tmp_path / "nowhere", request_cells(TINY, out=tmp_path).plan) == []
    assert read_provenance(tmp_path) is None


@pytest.mark.parametrize("name", ["notes", "standard-h1-s0 (copy)", "standard-hx-s0", "a-b-c"])
def test_a_file_that_no_cell_is_named_like_is_passed_over(tmp_path, name):
    request = fill(tmp_path, cells())
    (tmp_path / "cells" / f"{name}.json").write_text("{}")
    assert len(in_folder(tmp_path, request.plan)) == len(cells())


def test_a_folder_of_another_recipe_is_refused(tmp_path):
    request = fill(tmp_path, cells())
    epochs = replace(request.recipe, training=replace(request.recipe.training, epochs=3))
    other = replace(request.plan, recipe=epochs)
    with pytest.raises(ConfigError, match="holds cells of other settings .digits_vit, scale paper"):
        in_folder(tmp_path, other)


def test_cells_of_other_threads_are_not_mixed(tmp_path):
    request = fill(tmp_path, cells())
    claim(tmp_path, request.plan, command="", started="", threads=1)
    with pytest.raises(ConfigError, match="were trained with 1 threads each, not 2; give --thr"):
        claim(tmp_path, request.plan, command="", started="", threads=2)


def test_an_altered_note_of_what_ran_is_reported(tmp_path):
    fill(tmp_path, cells())
    (tmp_path / RAN).write_text("{")
    with pytest.raises(DataError, match="ran.json"):
        read_provenance(tmp_path)


def test_what_is_gathered_says_what_it_ran_on(tmp_path):
    request = fill(tmp_path, cells())
    content = gather(request.plan, tmp_path, list(request.finished), None)
    assert content.results.cells == request.finished
    assert content.results.machine["threads"] == content.threads == 1
    seconds = sum(cell.cost_seconds for cell in request.finished)
    assert content.results.seconds == round(seconds, 1) > 0
    assert same_training(content.recipe, request.recipe)


def test_a_folder_of_compare_says_what_it_ran_on(tmp_path):
    request = fill(tmp_path, cells())
    (tmp_path / RAN).unlink()
    assert machine_of(tmp_path, None) is None
    with pytest.raises(ConfigError, match="nothing has run in .* yet; begin with --run"):
        gather(request.plan, tmp_path, cells(), None)
    assert gather(request.plan, tmp_path, cells(), kept(cells())).threads == 2
    write_results(tmp_path / "results.json", make_results(cells(), machine={"cpu": "own"}))
    content = gather(request.plan, tmp_path, cells(), kept(cells()))
    assert content.results.machine == {"cpu": "own"}
    assert content.threads == 1
    assert json.loads(json.dumps(content.recipe)) == content.recipe


def test_what_stands_for_what_is_known_to_the_recipes_alone():
    shown = {found.recipe: found for found in TABLES.values() if found.shows == "cells"}
    for paper, others in STAND_INS.items():
        for other in others:
            data = recipe(paper).title.partition(",")[0]
            assert shown[other].instead_of == data
            assert shown[other].headline.endswith(f", in place of {data}")
            assert recipe(other).title.partition(",")[0] != data
        assert shown[paper].instead_of is None
    stand = {name for names in STAND_INS.values() for name in names}
    assert {found.recipe for found in TABLES.values() if found.instead_of} == stand
    named = ("v2-cifar10", "v2-tiny-imagenet-32", "v2-tiny-imagenet", "v2-womens-clothing")
    assert TABLES["curves"].parts[-4:] == named


def test_rows_that_ask_for_one_answer_or_two_are_published_together():
    one = replace(from_scores(np.array([1.0, 2.0, 0.0])), asked=np.array([1.0, 2.0, 1.0]))
    back = PackedAnswers.of({"a": one}).unpack("a")
    np.testing.assert_array_equal(back.right, one.right)
    np.testing.assert_array_equal(back.asked, one.asked)
