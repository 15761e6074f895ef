from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.cli.doctor import facts
from suffice.ops import OPS
from suffice.ops.fused import FOLDED
from suffice.ops.native import library
from suffice.ops.reference import REFERENCE
from suffice.testing import oracle


@pytest.fixture
def small(monkeypatch):
    """Few cases; only the specification and an op that shares heads."""
    monkeypatch.setattr(oracle, "TOLERANCES", {torch.float32: 2e-5, torch.bfloat16: 2e-2})
    monkeypatch.setattr(oracle, "SIZES", ((2, 5),))
    monkeypatch.setattr(oracle, "OPS", {"reference": REFERENCE, "folded": FOLDED})


def rows(told):
    start = next(i for i, line in enumerate(told) if line.startswith("ops on "))
    return told[start + 1 :]


def test_a_sound_machine_ends_with_0(suffice, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = suffice("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "ops on cpu: outputs and gradients against the float64 specification" in lines
    for name in ("python", "torch", "cpu", "cores", "threads", "memory", "gpu", "linear maps"):
        assert sum(line.strip().startswith(f"{name}  ") for line in lines) == 1, name
    found = [line.split()[:3] for line in rows(lines) if line[4:6] != "  "]
    dtypes = ("float32", "bfloat16", "float16")
    native = dtypes if library.available() else ()
    wanted = dict.fromkeys(OPS, dtypes) | {"flex": (), "native": native}
    assert found == [
        ["ok" if dtype in wanted[op] else "--", op, dtype] for dtype in dtypes for op in OPS
    ]


def test_a_wrong_op_ends_with_1(suffice, monkeypatch, small):
    def wrong(*inputs):
        return FOLDED.run(*inputs) + 1e-3

    broken = {"reference": REFERENCE, "folded": replace(FOLDED, run=wrong)}
    monkeypatch.setattr(oracle, "OPS", broken)
    result = suffice("doctor")
    assert result.exit_code == 1
    assert result.stderr == ""
    lines = [line.split()[:3] for line in rows(result.stdout.splitlines())]
    assert ["BAD", "folded", "float32"] in lines
    assert ["ok", "reference", "float32"] in lines
    assert ["ok", "folded", "bfloat16"] in lines
    assert sum(line[0] == "wrong:" for line in lines) == 12
    said = " ".join(result.stdout.split())
    assert "wrong: folded float32 Softmax() Full() 2 of 5 keys, 2 of 4 heads: error " in said
    assert said.endswith("Results of these ops cannot be trusted here.")


def test_a_device_that_is_not_there_is_refused(suffice, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = suffice("doctor", "--device", "cuda")
    assert result.exit_code == 2
    assert result.message.startswith(
        "error: device='cuda', but torch finds no CUDA device here; give"
    )
    result = suffice("doctor", "--device", "gpu")
    assert "unknown device 'gpu'" in result.message


def test_unknown_facts_are_named_as_unknown(monkeypatch):
    found = {"cpu": None, "gpu": None, "memory_bytes": None, "cores": 2}
    monkeypatch.setattr("suffice.measure.machine.machine_facts", lambda: dict(found))
    told = facts()
    assert told["memory"] == told["cpu"] == "unknown"
    assert told["cores"] == "2"
    assert told["gpu"].startswith("none: torch")
    found |= {"memory_bytes": 3 * 2**30, "gpu": "H1"}
    assert (facts()["memory"], facts()["gpu"]) == ("3.0 GiB", "H1")


def test_the_native_kernels_are_printed(monkeypatch):
    from suffice.ops.native import library

    if library.available():
        used, present = facts()["native kernels"].split(", of ")
        assert used == library.instructions()
        assert present.replace(",", "") == library.library().suffice_isas().decode()
        assert present.endswith("portable")
    monkeypatch.setattr(library, "_loaded", lambda: (None, "they were not built"))
    told = facts()["native kernels"]
    assert told == "none: they were not built; everything runs through torch"
