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

from suffice.cli import VERBS, _load, options
from suffice.cli.options import options_from_fields
from suffice.measure.advise.recipes import RECIPES
from suffice.measure.plan import MARGIN
from suffice.measure.planning import DEVICES
from suffice.presets import PRESETS, TITLES
from suffice.view.catalogue import FILE, catalogue

WITHOUT_JSON = {"serve", "studio"}
HEAVY = ("torch", "numpy", "matplotlib", "transformers")


PROGRAM = f"""
import sys
from suffice.cli import main

for line in {["--help", "list", *(f"{verb} --help" for verb in VERBS)]}:
    sys.argv = ["suffice", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
    heavy = [name for name in {HEAVY} if name in sys.modules]
    assert not heavy, f"{{line}} imports {{heavy}}"
"""


def test_help_and_list_import_nothing_heavy():
    environment = {**os.environ, "COLUMNS": "80"}
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=environment)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(b"Usage:") == len(VERBS) + 1


def test_a_mistyped_option_is_refused_before_torch_is_imported():
    program = (
        "import sys; sys.argv = ['suffice', 'compare', '--seedz', '3']\n"
        "from suffice.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.split() == ["2", "False"]
    assert "--seeds" in told.stderr


def test_constants_of_help_are_those_of_the_library():
    assert tuple(DEVICES) == options.GPUS
    assert tuple(RECIPES) == options.ADVICE_RECIPES
    assert pytest.approx(100 * MARGIN) == options.MARGIN_POINTS


def test_the_catalogue_on_disk_is_what_the_presets_say():
    stored = json.loads(FILE.read_text("utf-8"))
    assert stored == json.loads(json.dumps(catalogue()))
    assert {row["name"] for row in stored["mechanisms"]} == set(PRESETS) == set(TITLES)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    model: Annotated[str, Argument()]
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
    words = ["mine", "--width", "4", "--name", "a", "--name", "b", "--seed", "3"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["mine"]).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["mine", "--settings", "x"]).exit_code == 2
    command(model="mine", width=2)
    assert received == [
        (Sizes(model="mine", width=4, names=["a", "b"]), 3),
        (Sizes(model="mine"), 0),
        (Sizes(model="mine", width=2), 0),
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_one_set_of_option_names(verb):
    parameters = {name: parameter for parameter in _load(verb).params for name in parameter.opts}
    assert "--max-new-tokens" not in parameters
    if verb not in WITHOUT_JSON:
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
