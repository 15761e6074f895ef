"""The program as a whole: usage, exit codes, how it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import typer

from suffice import cli
from suffice.cli.terminal import Stopped, is_first, stoppable
from suffice.errors import ConfigError
from suffice.presets import PRESETS


def start(*words, code=0):
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_the_module_is_the_program():
    done = start("-m", "suffice", "show", "mqua", code=2)
    assert done.stderr.splitlines() == [
        f"error: unknown mechanism 'mqua'; did you mean 'mqa'? Legal: {', '.join(sorted(PRESETS))}."
    ]
    assert done.stdout == ""


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help"], ["show", "--help"]])
def test_help_is_a_good_end(suffice, words):
    result = suffice(*words)
    assert result.exit_code == 0
    assert "Usage: suffice" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stderr == ""


def test_h_is_help_of_every_verb(suffice):
    for words in ([], ["compare"], ["convert"]):
        result = suffice(*words, "-h")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == suffice(*words, "--help").stdout


def test_the_version_is_printed(suffice):
    result = suffice("--version")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"suffice \d+\.\d+\.\d+, torch \S+\n", result.stdout)
    with pytest.raises(typer.Exit, match="^$") as end:  # what makes it end well
        cli._print_versions(True)
    assert end.value.exit_code == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [("suffice con", ["convert"]), ("suffice show lin", ["linear", "linformer"])],
)
def test_a_shell_completes_verbs_and_names(suffice, monkeypatch, words, names):
    monkeypatch.setenv("_SUFFICE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert suffice().stdout.split() == names


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["comprae"], "No such command 'comprae'. Did you mean 'compare'?"),
        (
            ["compare", "--sead", "3"],
            "No such option: --sead (Possible options: --heads, --seeds",
        ),
        (["compare", "--seeds", "few"], "--seeds few: give a number such as 5"),
        (["compare", "--out"], "Option '--out' requires an argument"),
        (["compare", "digits"], "Got unexpected extra argument(s) (digits)"),
        (["show"], "Missing argument 'mechanism'"),
        (["list", "--jason"], "No such option: --jason"),
    ],
)
def test_usage_errors_end_with_2(suffice, words, wanted):
    result = suffice(*words)
    assert result.exit_code == 2
    assert wanted in result.message
    assert result.stdout == ""


# ends


@pytest.mark.parametrize(("rank", "first"), [("0", True), ("1", False)])
def test_torchrun_numbers_its_processes(monkeypatch, rank, first):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert is_first(), "another program's number says nothing"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert is_first() is first


def test_ctrl_c_anywhere_ends_with_130(suffice, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice.cli.list.catalogue", press)
    result = suffice("list")
    assert (result.exit_code, result.message, result.stdout) == (130, "interrupted.", "")


def test_a_stoppable_command_keeps_its_name_and_arguments():
    def command(word, *, times=1):
        """Say it."""
        raise KeyboardInterrupt

    wrapped = stoppable(command)
    assert (wrapped.__name__, wrapped.__doc__) == ("command", "Say it.")
    with pytest.raises(Stopped, match=r"^interrupted\.$") as end:
        wrapped("a", times=2)
    assert end.value.code == 130


def second(monkeypatch):
    """Be the second process of torchrun."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")


def test_other_processes_wait_so_that_the_first_one_speaks(suffice, monkeypatch):
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)

    def refuse(*_):
        raise ConfigError("not so.")

    monkeypatch.setattr("suffice.cli.list.catalogue", refuse)
    result = suffice("list")
    assert (result.exit_code, result.stderr, waited) == (2, "error: not so.\n", [])
    second(monkeypatch)
    result = suffice("list")
    assert (result.exit_code, result.stderr, waited) == (2, "error: not so.\n", [cli.GRACE])


def test_other_processes_say_nothing_when_all_are_interrupted(suffice, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice.cli.list.catalogue", press)
    monkeypatch.setattr(cli.time, "sleep", pytest.fail)
    second(monkeypatch)
    result = suffice("list")
    assert (result.exit_code, result.stderr) == (130, "")


def test_a_bug_is_not_hidden(suffice, monkeypatch):
    def bug(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("suffice.cli.list.catalogue", bug)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        suffice("list")


def test_a_message_is_printed_as_it_is(suffice, monkeypatch):
    def refuse(*_):
        raise ConfigError(f"[red]{'long ' * 40}[/red]")

    monkeypatch.setattr("suffice.cli.list.catalogue", refuse)
    result = suffice("list")
    assert result.stderr == f"error: [red]{'long ' * 40}[/red]\n"
