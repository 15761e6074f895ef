"""The verb as a user meets it: its options, its help, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.cli.bad_values import PATHS, models, place, wrong_answers
from tests.cli.conftest import suffice
from tests.cli.introspect import parameters
from tests.cli.test_bad_values import STEP

__all__ = ["models", "place", "suffice"]

pytestmark = pytest.mark.skipif(
    not entry_points(group="suffice.verbs", name="serve"), reason="suffice-serve is not installed"
)
LEGAL = {(f"serve --{word}", name) for word in ("name", "api-key") for name in PATHS}  # any word


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
def test_bad_values_are_refused_in_a_sentence(step, suffice, place, monkeypatch):
    monkeypatch.setattr("suffice_serve.server.run", lambda _, listener, *__: listener.close())
    values = [(parameter, number) for number, parameter in enumerate(parameters(["serve"]))]
    short = ["MODEL=m", "--port", "0"]
    assert wrong_answers(suffice, place, short, values, step=step, legal=LEGAL) == []


def test_help_and_an_absent_model_import_no_torch(tmp_path):
    code = (
        "import sys\n"
        "from suffice.cli import main\n"
        "for words, code in ((['--help'], 0), (['nowhere'], 2)):\n"
        "    sys.argv = ['suffice', 'serve', *words]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert (end.code or 0) == code\n"
        "    assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
