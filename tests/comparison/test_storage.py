from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from suffice.comparison.results import (
    cell_path,
    read_cell,
    read_results,
    write_cell,
    write_results,
)
from suffice.errors import DataError
from suffice.utils.files import write_atomic

from .synthetic import make_cell, make_results, realistic


def test_a_cell_is_written_to_its_own_file_and_read_back(tmp_path):
    cell = make_cell("efficient", 4, 2, epochs=3)
    path = write_cell(tmp_path, cell)
    assert path == tmp_path / "cells" / "efficient-h4-s2.json"
    assert read_cell(tmp_path, "efficient", 4, 2) == cell
    assert sorted(os.listdir(tmp_path / "cells")) == ["efficient-h4-s2.json"]


def test_a_path_that_is_not_utf_8_can_be_printed(tmp_path):
    results = make_results([make_cell()], command="suffice compare --out x\udcff")
    write_results(tmp_path / "results.json", results)
    assert b"x\\udcff" in (tmp_path / "results.json").read_bytes()
    assert read_results(tmp_path / "results.json") == results


def test_a_cell_that_was_not_trained_is_none(tmp_path):
    assert read_cell(tmp_path, "efficient", 4, 2) is None


@pytest.mark.parametrize("name", ["../../up", "a/b", "ö ä", "..", 'x"<y>'])
def test_any_name_stays_inside_the_folder(tmp_path, name):
    path = write_cell(tmp_path, make_cell(name))
    assert path.parent == tmp_path / "cells"
    assert path.is_file()
    assert read_cell(tmp_path, name, 4, 0).mechanism == name


def test_cells_of_different_names_have_different_files(tmp_path):
    assert cell_path(tmp_path, "a b", 1, 0) != cell_path(tmp_path, "a%20b", 1, 0)


def test_every_truncation_is_noticed(tmp_path):
    path = write_cell(tmp_path, make_cell())
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 3, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"standard-h4-s0\.json is truncated or not JSON"):
            read_cell(tmp_path, "standard", 4, 0)


def test_an_edited_number_is_noticed(tmp_path):
    path = write_cell(tmp_path, make_cell(test_accuracy=0.976))
    path.write_text(path.read_text().replace("0.976", "0.999"))
    with pytest.raises(DataError, match=r"was altered: .* Delete this file; its model will be tr"):
        read_cell(tmp_path, "standard", 4, 0)


def test_another_layout_of_the_same_content_is_accepted(tmp_path):
    path = write_cell(tmp_path, make_cell())
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read_cell(tmp_path, "standard", 4, 0) == make_cell()


@pytest.mark.parametrize("content", ["[]", "{}", '{"cell": {}}', "null"])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = cell_path(tmp_path, "standard", 4, 0)
    write_atomic(path, content)
    with pytest.raises(DataError, match="is not a cell file: it must hold sha256 and cell"):
        read_cell(tmp_path, "standard", 4, 0)


def test_a_cell_with_a_right_digest_but_a_wrong_content_is_refused(tmp_path, monkeypatch):
    path = write_cell(tmp_path, make_cell())
    given = json.loads(path.read_text())
    del given["cell"]["seed"]
    monkeypatch.setattr("suffice.comparison.results._sha256", lambda content: given["sha256"])
    path.write_text(json.dumps(given))
    with pytest.raises(DataError, match=r"s0\.json lacks seed; .* Delete this file"):
        read_cell(tmp_path, "standard", 4, 0)


def test_a_renamed_cell_is_refused(tmp_path):
    path = write_cell(tmp_path, make_cell(seed=3))
    path.rename(cell_path(tmp_path, "standard", 4, 0))
    with pytest.raises(DataError, match=r"holds mechanism 'standard', 4 heads, seed 3, which does"):
        read_cell(tmp_path, "standard", 4, 0)


def test_the_whole_is_written_and_read_back(tmp_path):
    results = realistic(heads=(1,), seeds=2, epochs=3)
    write_results(tmp_path / "deep" / "results.json", results)
    assert read_results(tmp_path / "deep" / "results.json") == results


def test_reading_an_absent_file_says_so(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*results\.json"):
        read_results(tmp_path / "results.json")


def test_a_truncated_whole_says_what_to_do(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match=r"truncated or not JSON .* Compare with --resume"):
        read_results(tmp_path / "results.json")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="truncated or not JSON"):
        read_results(tmp_path / "results.json")


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_results(path, make_results())

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("suffice.utils.files.os.fsync", full)
    with pytest.raises(DataError, match=r"cannot write .*results\.json: No space left on device"):
        write_results(path, replace(make_results(), title="other"))
    assert read_results(path).title == make_results().title
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_reader_of_the_old_file_keeps_it_whole(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match="cannot write .*; make room or choose another folder"):
        write_cell(tmp_path / "out", make_cell())


def test_a_system_that_cannot_sync_folders_still_writes(tmp_path, monkeypatch):
    def refuse(path, flags):
        raise OSError("folders cannot be opened here")

    monkeypatch.setattr("suffice.utils.files.os.open", refuse)
    write_atomic(tmp_path / "file", b"bytes")
    assert (tmp_path / "file").read_bytes() == b"bytes"
