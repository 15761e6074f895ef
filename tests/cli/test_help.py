"""Help is there at once: it imports no torch, and its constants are those of the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from typer import Argument, Option, Typer
from typer.testing import CliRunner

from docs.catalogue import FILE, catalogue
from suffice.cli import _load, options
from suffice.cli.export import FORMS, GGUF
from suffice.cli.options import Parsed, options_from_fields
from suffice.comparison.plan import MARGIN
from suffice.presets import PRESETS, TITLES
from suffice.runtime import WRITTEN
from tests.cli.introspect import CORE

HELP = dict.fromkeys(["--help", "list", *(f"{verb} --help" for verb in CORE)], 0)
ANSWERS = {
    "verdict a.csv b.csv --chance 0.5": 0,
    "verdict a.csv b.csv --looks 3,5 --state looks.json": 0,
    "verdict a.csv nowhere.csv": 2,
    "verdict a.csv b.csv --margin wide": 2,
    "fits 'Qwen3 8b2'": 2,
    "fits 'Qwen3 8B' --engine llama": 2,
    "fits 'Qwen3 8B' --memory 24GiB": 0,
    "fits DeepSeek-V3 --train --gpus 9": 0,
    "verdcit a.csv b.csv": 2,
    "compare --seedz 3": 2,
    **{f"compare {wrong}": 2 for wrong in (
        "--mechanisms standard,gqaa", "--task digitz", "--recipe digits", "--metric speed",
        "--scale large", "--data nowhere.csv", "--margin wide", "--seeds many", "--heads few",
    )},
    "train --recipe nano": 2,
    "show gqaa": 2,
    "advise --task write": 2,
    **{f"{verb} nowhere": 2 for verb in ("predict", "evaluate", "generate", "bench",
        "quantise", "convert --to mqa", "heal", "export --format hf", "run")},
    "export . --format gguff": 2,
}  # fmt: skip


def program(lines, heavy):
    """Return a program that runs command lines and names what it has imported after each."""
    return f"""
import shlex, sys
from suffice.cli import main

for line, code in {lines}.items():
    sys.argv = ["suffice", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == code, (line, end.code)
    heavy = [name for name in {heavy} if name in sys.modules]
    assert not heavy, f"{{line}} imports {{heavy}}"
"""


def test_help_and_list_import_nothing_heavy():
    environment = {**os.environ, "COLUMNS": "80"}
    code = program(HELP, ("torch", "numpy", "matplotlib", "scipy", "safetensors"))
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(b"Usage:") == len(CORE) + 1


def test_verdicts_fits_refusals_and_misspelt_names_import_no_torch(tmp_path):
    for name, shift in (("a", 0), ("b", 3)):
        rows = "".join(f"{seed},0.9{seed + shift}\n" for seed in range(5))
        (tmp_path / f"{name}.csv").write_text(f"seed,accuracy\n{rows}")
    code = program(ANSWERS, ("torch", "matplotlib", "scipy.stats", "transformers"))
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr


def test_constants_of_help_are_those_of_the_library():
    assert (*WRITTEN, GGUF) == FORMS
    assert pytest.approx(100 * MARGIN) == options.MARGIN_POINTS


def test_the_catalogue_on_disk_is_what_the_presets_say():
    stored = json.loads(FILE.read_text("utf-8"))
    assert stored == json.loads(json.dumps(catalogue()))
    assert {row["name"] for row in stored["mechanisms"]} == set(PRESETS) == set(TITLES)
    assert all(PRESETS[name].__name__ == name for name in PRESETS)


def several(text):
    return tuple(map(int, text.split(",")))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    model: Annotated[str, Argument()]
    heads: Annotated[tuple[int, ...] | None, Option(), Parsed(several)] = None
    width: Annotated[int, Option(help="Width.")] = 8
    names: Annotated[list[str] | None, Option("--name")] = None
    settings: dict[str, int] = field(default_factory=dict)


def test_fields_of_a_dataclass_are_options_of_the_command():
    received = []

    @options_from_fields
    def command(sizes: Sizes, seed: Annotated[int, Option()] = 0):
        received.append((sizes, seed))

    app = Typer()
    app.command()(command)
    words = ["mine", "--width", "4", "--heads", "2,8", "--name", "a", "--name", "b", "--seed", "3"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["mine"]).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["mine", "--settings", "x"]).exit_code == 2
    command(model="mine", width=2)
    assert received == [
        (Sizes(model="mine", heads=(2, 8), width=4, names=["a", "b"]), 3),
        (Sizes(model="mine"), 0),
        (Sizes(model="mine", width=2), 0),
    ]


@pytest.mark.parametrize("verb", CORE)
def test_one_set_of_option_names(verb):
    parameters = {name: parameter for parameter in _load(verb).params for name in parameter.opts}
    assert "--max-new-tokens" not in parameters
    assert parameters["--json"].is_flag
    if "--quiet" in parameters:
        assert parameters["--quiet"].is_flag
    for name in ("--seeds", "--seed", "--tokens"):
        assert name not in parameters or not parameters[name].is_flag


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_a_name_is_imported(enabled):
    code = (
        "import gc, sys, suffice\n"
        f"gc.{'enable' if enabled else 'disable'}()\n"
        "states = set()\n"
        "def note(event, args):\n"
        "    if event == 'import' and args[0] == 'suffice.errors':\n"
        "        states.add(gc.isenabled())\n"
        "sys.addaudithook(note)\n"
        "suffice.AttentionSpec\n"
        "print(states, gc.isenabled())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == f"{{False}} {enabled}", result.stderr
