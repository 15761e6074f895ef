"""Nothing outside the chosen folders is opened."""

from __future__ import annotations

import json

import pytest

from suffice.errors import ConfigError, DataError
from suffice.studio import Folders, served
from suffice.studio.folders import below, rooted
from tests.studio.models import write_lm
from tests.studio.test_server import question


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
def test_names_that_lead_elsewhere_are_refused(root, name):
    with pytest.raises(DataError, match="lies outside the folders|is not there"):
        below(root, name)


@pytest.mark.parametrize("name", NOTHING)
def test_names_that_are_none_are_refused(root, name):
    with pytest.raises(DataError, match="names nothing"):
        below(root, name)


def test_names_inside_are_opened(root):
    assert below(root, "deep") == (root / "deep").resolve()
    assert below(root, ".") == root.resolve()
    assert rooted((root,), 0) == root
    with pytest.raises(DataError, match="folder True was not chosen"):
        rooted((root,), True)


def test_folders_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="--results .*absent is no folder"):
        Folders(results=(tmp_path / "absent",))
    with pytest.raises(ConfigError, match="--checkpoints .*absent is no folder"):
        Folders(checkpoints=tmp_path / "absent")


def test_the_server_opens_nothing_outside(root, tmp_path):
    write_lm(tmp_path / "other")
    (root / "model").symlink_to(tmp_path / "other")
    with served(Folders(results=(root,), checkpoints=root)) as studio:
        assert question(studio, "checkpoints", {}) == (200, {"chosen": True, "checkpoints": []})
        for name in (*OUTSIDE, *NOWHERE, *NOTHING[:4], "model"):
            for ask, request in (
                ("comparison", {"root": 0, "name": name}),
                ("checkpoint", {"checkpoint": name}),
                ("maps", {"checkpoint": name, "text": "a"}),
            ):
                status, told = question(studio, ask, request)
                assert status == 400, (ask, name)
                assert "private" not in json.dumps(told)
        found = question(studio, "comparisons", {})[1]["found"]
        assert all(one["root"] == -1 for one in found)
        assert question(studio, "comparison", [])[0] == 400
