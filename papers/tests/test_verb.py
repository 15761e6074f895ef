"""The verb as a user meets it: the bad values it refuses, and what its help imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.bad_values import models, place, wrong_answers
from tests.cli.introspect import parameters
from tests.cli.test_bad_values import STEP
from tests.cli.test_help import program

__all__ = ["models", "place"]

SHORT = ["TABLE=tab5", "--no-report", "--quiet"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
def test_bad_values_are_refused_in_a_sentence(step, suffice, place):
    values = [(parameter, number) for number, parameter in enumerate(parameters(["reproduce"]))]
    assert wrong_answers(suffice, place, SHORT, values, step=step, legal=set()) == []


def test_help_imports_nothing_heavy():
    code = program({"reproduce --help": 0}, ("torch", "numpy", "matplotlib", "scipy"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr
