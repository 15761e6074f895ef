"""The program as a whole: usage, exit codes, how it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from suffice import cli
from suffice.cli.terminal import is_first
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


@pytest.mark.parametrize("verb", cli.SIBLINGS)
def test_a_verb_without_its_package_names_it_and_imports_no_torch(verb):
    code = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"
        "from suffice.cli import main\n"
        f"sys.argv = ['suffice', '{verb}', 'anything']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    (line,) = start("-c", code, code=2).stderr.splitlines()
    name, folder = cli.SIBLINGS[verb]
    assert line.startswith("error: ")
    assert name in line
    assert line.endswith((f"/{folder}.", f"pip install {name}.", f"#subdirectory={folder}'."))


def sections(text):
    """Return the words that begin the lines of each section of a help."""
    found, name = {}, ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-zA-Z]*:", line):
            name = line[:-1]
        elif name and re.match("  [^ ]", line):
            found.setdefault(name, []).append(line.strip())
    return {name: [line.split()[0].rstrip(",") for line in lines] for name, lines in found.items()}


def test_without_words_the_program_shows_its_help(suffice):
    shown, bare = suffice("--help"), suffice()
    assert (bare.exit_code, suffice("-h").stdout) == (2, shown.stdout)
    assert bare.stdout + bare.stderr == shown.stdout


def test_help_of_compare_has_every_option_in_one_panel_and_examples_that_parse(suffice, tmp_path):
    shown = suffice("compare", "--help")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    found, command = sections(shown.stdout), cli._load("compare")
    panels = ["Data", "Mechanisms", "Training", "Cluster", "Output"]
    assert list(found) == [*panels, "Examples"]
    options = {param.opts[0] for param in command.params} | {"-h"}
    assert sorted(option for panel in panels for option in found[panel]) == sorted(options)
    assert {"--cells", "--engine", "--address"} <= set(found["Cluster"])
    (tmp_path / "reviews.csv").touch()
    examples = re.findall("  suffice compare (.*)", shown.stdout)
    assert len(examples) == 3
    for words in examples:
        command.make_context("compare", words.split())


def test_the_version_is_printed(suffice):
    result = suffice("--version")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"suffice \d+\.\d+\.\d+, torch \S+\n", result.stdout)


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


def second(monkeypatch):
    """Be the second process of torchrun."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")


def test_other_processes_wait_so_that_the_first_one_speaks(suffice, monkeypatch):
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)

    def refuse(*_):
        raise ConfigError("not so.")

    monkeypatch.setattr("suffice.cli.options.catalogue", refuse)
    result = suffice("list")
    assert (result.exit_code, result.stderr, waited) == (2, "error: not so.\n", [])
    second(monkeypatch)
    result = suffice("list")
    assert (result.exit_code, result.stderr, waited) == (2, "error: not so.\n", [cli.GRACE])


def test_ctrl_c_anywhere_ends_with_130_and_one_sentence(suffice, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice.cli.options.catalogue", press)
    result = suffice("list")
    assert (result.exit_code, result.message, result.stdout) == (130, "interrupted.", "")
    monkeypatch.setattr(cli.time, "sleep", pytest.fail)
    second(monkeypatch)
    result = suffice("list")
    assert (result.exit_code, result.stderr) == (130, "")


def test_a_bug_is_not_hidden(suffice, monkeypatch):
    def bug(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("suffice.cli.options.catalogue", bug)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        suffice("list")


def test_a_message_is_printed_as_it_is(suffice, monkeypatch):
    def refuse(*_):
        raise ConfigError(f"[red]{'long ' * 40}[/red]")

    monkeypatch.setattr("suffice.cli.options.catalogue", refuse)
    result = suffice("list")
    assert result.stderr == f"error: [red]{'long ' * 40}[/red]\n"
