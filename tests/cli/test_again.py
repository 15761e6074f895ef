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


def test_the_bare_name_serves_where_the_shell_finds_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/env/bin/suffice", "compare"])
    found(monkeypatch, {"suffice": "/opt/env/bin/suffice"})
    assert _program() == ["suffice"]


@pytest.mark.parametrize("places", [{}, {"suffice": "/usr/bin/suffice"}])
def test_else_the_path_that_was_given_is_named(monkeypatch, places):
    monkeypatch.setattr(sys, "argv", [".venv/bin/suffice", "compare"])
    found(monkeypatch, places)
    assert _program() == [".venv/bin/suffice"]


def test_a_relative_path_and_the_shell_may_mean_the_same_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/suffice", "compare"])
    found(monkeypatch, {"suffice": str(tmp_path / "bin" / "suffice")})
    assert _program() == ["suffice"]


def test_the_module_is_started_as_a_module(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/any/suffice/__main__.py", "compare"])
    found(monkeypatch, {"python": sys.executable})
    assert _program() == ["python", "-m", "suffice"]
    found(monkeypatch, {"python": "/usr/bin/python"})
    assert _program() == [sys.executable, "-m", "suffice"]


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
