"""The kernels of this processor, tested by the C++ program beside references in double."""

from __future__ import annotations

import shutil

import pytest

from suffice.ops.native.library import library, why_not
from tests.native import run

pytestmark = [
    pytest.mark.slow,  # every instruction set is compiled
    pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler"),
    pytest.mark.skipif(bool(why_not()), reason=f"no native kernels: {why_not()}"),
]


def test_all_sets_of_this_processor_agree_with_the_references():
    native = run.RUNS["native"]
    if reason := run.absent(native):
        pytest.skip(reason)
    done = run.execute(native, ["--seed", "1", "--rounds", "20"])
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.endswith(" checks passed")
    sets = library().suffice_isas().decode().split()
    for name in sets:
        for function in ("multiply", "decode", "step", "attend", "linear", "recur"):
            assert f"{name:8} {function:8}" in done.stdout


def test_a_wrong_option_is_no_success():
    native = run.RUNS["native"]
    if reason := run.absent(native):
        pytest.skip(reason)
    assert run.execute(native, ["--set", "no such set"]).returncode == 2
