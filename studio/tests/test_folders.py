"""Nothing outside the chosen folders is opened."""

from __future__ import annotations

import json

import pytest

from studio.tests.models import write_lm
from studio.tests.test_server import ask
from suffice.errors import ConfigError, DataError
from suffice_studio import Folders, served
from suffice_studio.folders import below, numbered


@pytest.fixture
def root(tmp_path):
    (tmp_path / "chosen" / "deep").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "results.json").write_text(json.dumps({"private": 1}))
    (tmp_path / "chosen" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "chosen" / "loop").symlink_to(tmp_path / "chosen" / "loop")
    return tmp_path / "chosen"


OUTSIDE = (
    "..",
    "../secret",
    "deep/../../secret",
    "/etc",
    "link",
    "link/results.json",
    "deep/../..",
)
NOWHERE = ("absent", "loop", "deep/absent", "~", "%2e%2e/secret", "..\\secret")
NOTHING = ("", None, 3, ["deep"], "a\0b")


@pytest.mark.parametrize("name", [*OUTSIDE, *NOWHERE])
def test_names_outside_the_folder_are_refused(root, name):
    with pytest.raises(DataError, match="outside the folders|not exist"):
        below(root, name)


@pytest.mark.parametrize("name", NOTHING)
def test_values_that_are_not_names_are_refused(root, name):
    with pytest.raises(DataError, match="not a name"):
        below(root, name)


def test_names_inside_are_opened(root):
    assert below(root, "deep") == (root / "deep").resolve()
    assert below(root, ".") == root.resolve()
    assert numbered((root,), 0) == root
    with pytest.raises(DataError, match="folder True"):
        numbered((root,), True)


def test_missing_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--results .*absent"):
        Folders(results=(tmp_path / "absent",))
    with pytest.raises(ConfigError, match="--checkpoints .*absent"):
        Folders(checkpoints=tmp_path / "absent")


def test_the_server_opens_nothing_outside(root, tmp_path):
    write_lm(tmp_path / "other")
    (root / "model").symlink_to(tmp_path / "other")
    with served(Folders(results=(root,), checkpoints=root)) as studio:
        assert ask(studio, "checkpoints", {}) == (200, {"chosen": True, "checkpoints": []})
        for name in (*OUTSIDE, *NOWHERE, *NOTHING[:4], "model"):
            for name_of_request, request in (
                ("comparison", {"root": 0, "name": name}),
                ("checkpoint", {"checkpoint": name}),
                ("maps", {"checkpoint": name, "text": "a"}),
            ):
                status, answer = ask(studio, name_of_request, request)
                assert status == 400, (name_of_request, name)
                assert "private" not in json.dumps(answer)
        listed = ask(studio, "comparisons", {})[1]["comparisons"]
        assert all(one["root"] == -1 for one in listed)
        assert ask(studio, "comparison", [])[0] == 400


def test_half_a_surrogate_is_no_name(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        below(tmp_path, "\ud800")
