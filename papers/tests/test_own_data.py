"""Cells of the user's own files: known by where they lie and by what they hold, never mixed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from papers.tests.tiny import kept
from suffice.comparison.plan import RAN, read_provenance
from suffice.comparison.results import write_cell
from suffice.data import TASKS
from suffice.data.files import digest, resolve
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import RECIPES, recipe
from suffice.train.recipes.own_data import files_of, of_user
from suffice_papers.folder import claim
from suffice_papers.request import request_cells
from suffice_papers.results import cells_of, in_folder
from suffice_papers.rows import cell_table
from suffice_papers.tables import CLASSES, of_cells
from tests.comparison.synthetic import make_cell

AMAZON = of_cells("own", "Reviews", "v2 table 9", "amazon", "amazon", (4,), CLASSES)


@pytest.fixture(autouse=True)
def there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digest.cache_clear()


def write(name: str, text: str = "a") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# a recipe


def test_a_recipe_reads_the_users_files():
    made = of_user(recipe("amazon"), "mine.jsonl")
    assert files_of(made) == ["mine.jsonl"]
    assert of_user(made, "other").task_options == (
        *recipe("amazon").task_options,
        ("path", "other"),
    )
    assert files_of(recipe("amazon")) == []


def test_a_task_without_files_of_the_user_says_which_have():
    with pytest.raises(
        ConfigError, match="--data x: task imdb reads its own data; leave it out, o"
    ):
        of_user(recipe("imdb"), "x")
    able = [name for name in RECIPES if recipe(name).task in ("amazon", "translation_es")]
    assert all(files_of(of_user(recipe(name), "x")) == ["x"] for name in able)
    assert "image_folder" in TASKS


# which files


def test_a_path_is_whole_wherever_it_was_given(tmp_path, monkeypatch):
    write("all.jsonl")
    path = str(tmp_path / "all.jsonl")
    assert resolve("all.jsonl") == resolve(path) == path
    write("corpus/eu.en")
    assert resolve("corpus/eu") == str(tmp_path / "corpus" / "eu")
    write("data/vision/own/train/a/1.png")
    monkeypatch.setenv("SUFFICE_DATA", "data")
    assert resolve("vision/own") == str(tmp_path / "data" / "vision" / "own")
    with pytest.raises(DataError, match="--data nowhere: no such file"):
        resolve("nowhere")


def test_what_a_file_holds_is_distinguished():
    first = digest(str(write("a.jsonl", "one").absolute()))
    same, longer, other = (
        digest(str(write(f"{name}.jsonl", text).absolute()))
        for name, text in (("b", "one"), ("c", "one "), ("d", "two"))
    )
    assert first == same
    assert len({first, longer, other}) == 3
    assert len(first) == 16


def test_a_change_at_the_end_of_a_large_file_is_seen():
    ends = {digest(str(write(f"{n}.x", "x" * (1 << 18) + n).absolute())) for n in "ab"}
    assert len(ends) == 2


def test_both_sides_of_a_translation_count():
    def both(name, english, spanish):
        write(f"{name}.en", english), write(f"{name}.es", spanish)
        return digest(str(Path(name).absolute()))

    assert both("one", "a", "b") == both("two", "a", "b")
    assert len({both("one3", "a", "b"), both("four", "b", "a"), both("five", "a", "c")}) == 3


def test_of_a_folder_names_and_sizes_count():
    write("top/train/cat/1.png", "1"), write("top/train/dog/2.png", "2")
    first = digest(str(Path("top").absolute()))
    Path("top").rename("moved")
    assert digest(str(Path("moved").absolute())) == first
    digest.cache_clear()
    Path("moved/train/dog/2.png").rename("moved/train/cat/2.png")
    assert digest(str(Path("moved").absolute())) != first
    for number in range(70):
        write(f"many/{number}", "x")
    before = digest(str(Path("many").absolute()))
    digest.cache_clear()
    write("many/3", "xx")
    assert digest(str(Path("many").absolute())) != before


def test_a_name_that_is_not_utf_8_counts(tmp_path):
    (tmp_path / "top").mkdir()
    first = digest(str(tmp_path / "top"))
    (tmp_path / "top" / os.fsdecode(b"\xff.jpg")).touch()
    digest.cache_clear()
    assert digest(str(tmp_path / "top")) != first


def test_files_that_cannot_be_read_are_reported(monkeypatch):
    path = write("a.jsonl")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("suffice.data.files._ends", refuse)
    with pytest.raises(
        DataError, match=r"--data .*a.jsonl cannot be read .Permission denied.; giv"
    ):
        digest(str(path.absolute()))


# their cells


def test_their_cells_have_a_folder_of_their_own():
    write("all.jsonl")
    own, usual = request_cells(AMAZON, data="all.jsonl"), request_cells(AMAZON)
    assert own.folder.name == f"own-all.jsonl-{digest(own.data)[:8]}"
    assert usual.folder.name == "own"
    small = request_cells(AMAZON, data="all.jsonl", scale="small")
    assert small.folder.name.startswith("own-small-all.jsonl-")
    assert files_of(own.recipe) == [own.data] == [str(Path("all.jsonl").absolute())]
    assert (own.recipe.scale, usual.data) == ("paper", None)


def test_nothing_published_counts_for_them(monkeypatch):
    write("all.jsonl")
    monkeypatch.setattr(
        "suffice_papers.request.published", lambda _: kept([make_cell()], scale="small")
    )
    request = request_cells(AMAZON, data="all.jsonl")
    assert (request.published, request.finished, request.recipe.scale) == (None, (), "paper")
    assert cells_of(kept([make_cell()]), request.recipe) == []


def trained(request) -> None:
    claim(request.folder, request.plan, command="", started="2025", threads=1)
    for key in request.plan.cells:
        write_cell(request.folder, make_cell(*key))


def test_cells_of_other_data_are_never_mixed():
    write("all.jsonl")
    request = request_cells(AMAZON, data="all.jsonl", out=Path("run"))
    trained(request)
    assert request.again().missing == []
    assert read_provenance(request.folder).data == digest(request.data)
    with pytest.raises(ConfigError, match="run holds cells of other settings"):
        request_cells(AMAZON, out=Path("run"))
    write("more.jsonl")
    with pytest.raises(ConfigError, match="run holds cells of other settings"):
        request_cells(AMAZON, data="more.jsonl", out=Path("run"))
    write("all.jsonl", "changed")
    digest.cache_clear()
    with pytest.raises(ConfigError, match="trained on other data: .*all.jsonl"):
        request_cells(AMAZON, data="all.jsonl", out=Path("run"))
    with pytest.raises(ConfigError, match="trained on other data"):
        claim(Path("run"), request.plan, command="", started="", threads=1)
    assert request_cells(AMAZON, data="all.jsonl").folder != request.folder


def test_a_folder_from_before_there_were_own_data_goes_on():
    request = request_cells(AMAZON, out=Path("run"))
    trained(request)
    content = json.loads(Path("run", RAN).read_text())
    del content["data"]
    Path("run", RAN).write_text(json.dumps(content))
    assert len(in_folder(Path("run"), request.plan)) == len(request.plan.cells)


def test_titles_and_data_name_them():
    write("all.jsonl")
    shown = cell_table(request_cells(AMAZON, data="all.jsonl"))
    assert shown.sheet().title.endswith("; data of the user: all.jsonl")
    assert shown.to_json()["data"] == str(Path("all.jsonl").absolute())
    assert cell_table(request_cells(AMAZON)).to_json()["data"] is None
