from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from suffice.cli.terminal import _program, command_line, resume_command

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["suffice", "compare"])


def found(monkeypatch, places):
    monkeypatch.setattr(shutil, "which", places.get)


@pytest.mark.parametrize(
    ("started", "places", "wanted"),
    [
        ("/opt/env/bin/suffice", {"suffice": "/opt/env/bin/suffice"}, ["suffice"]),
        ("bin/suffice", {"suffice": "{cwd}/bin/suffice"}, ["suffice"]),
        (".venv/bin/suffice", {}, [".venv/bin/suffice"]),
        (".venv/bin/suffice", {"suffice": "/usr/bin/suffice"}, [".venv/bin/suffice"]),
        ("/any/__main__.py", {"python": sys.executable}, ["python", "-m", "suffice"]),
        ("/any/__main__.py", {"python": "/usr/bin/python"}, [sys.executable, "-m", "suffice"]),
    ],
)
def test_a_program_is_named_as_the_shell_finds_it(monkeypatch, tmp_path, started, places, wanted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started, "compare"])
    found(monkeypatch, {name: place.format(cwd=tmp_path) for name, place in places.items()})
    assert _program() == wanted


def test_torchrun_starts_as_many_processes_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/any/suffice/__main__.py", "compare"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    found(monkeypatch, {"torchrun": "/opt/bin/torchrun"})
    assert _program() == ["torchrun", "--nproc-per-node", "3", "-m", "suffice"]
    found(monkeypatch, {})
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    assert _program() == [*words, "-m", "suffice"]


def words_again(monkeypatch, *words, folder="runs/x"):
    monkeypatch.setattr(sys, "argv", ["suffice", *words])
    found(monkeypatch, {})
    return shlex.split(resume_command(Path(folder)))


def test_the_folder_and_resume_are_added(monkeypatch):
    got = words_again(monkeypatch, "compare", "--seeds", "3")
    assert got == ["suffice", "compare", "--seeds", "3", "--out", "runs/x", "--resume"]


@pytest.mark.parametrize("out", [["--out", "runs/x"], ["--out=runs/x"]])
def test_a_folder_that_was_named_is_not_named_twice(monkeypatch, out):
    got = words_again(monkeypatch, "compare", "--resume", *out, "--quiet")
    assert got == ["suffice", "compare", *out, "--quiet", "--resume"]


def test_words_with_spaces_are_quoted(monkeypatch):
    got = words_again(monkeypatch, "compare", "--mechanisms", "a, b", folder="my runs/it's")
    assert got[2:] == ["--mechanisms", "a, b", "--out", "my runs/it's", "--resume"]


def test_the_command_of_the_results_is_what_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/suffice", "compare", "--heads", "1, 2"])
    assert command_line() == "suffice compare --heads '1, 2'"
