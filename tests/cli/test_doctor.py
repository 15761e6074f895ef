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


def row(result, op):
    (line, *_) = [line for line in result.stdout.splitlines() if line.startswith(f"{op:>17}  ")]
    return line.split(maxsplit=1)[1]


def test_the_first_line_of_a_sound_machine_is_the_result(suffice, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = suffice("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    kernels = f"{library.instructions()}, of " if library.available() else "none: "
    assert lines[0].startswith(f"all ops right on cpu; native kernels: {kernels}")
    assert "refused" not in result.stdout
    dtypes = ["float32", "bfloat16", "float16"]
    absent = {"flex"} if library.available() else {op for op in OPS if "native" in op} | {"flex"}
    for op in OPS:
        found = [words.split()[0] for words in row(result, op).split(", ")]
        assert found == (["not"] if op in absent else dtypes), op


def test_a_wrong_op_ends_with_1(suffice, monkeypatch, small):
    def wrong(*inputs):
        return FOLDED.run(*inputs) + 1e-3

    broken = {"reference": REFERENCE, "folded": replace(FOLDED, run=wrong)}
    monkeypatch.setattr(oracle, "OPS", broken)
    result = suffice("doctor")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("WRONG on cpu: folded; do not trust")
    said = " ".join(result.stdout.split())
    assert said.count("wrong: folded float32 ") == 12
    assert "wrong: folded float32 Softmax() Full() 2 of 5 keys, 2 of 4 heads: error " in said
    checks = list(oracle.check_ops("cpu"))
    for op, dtype in (("folded", "float32"), ("folded", "bfloat16"), ("reference", "float32")):
        of = [c.error for c in checks if (c.op, c.dtype) == (op, dtype) and c.error is not None]
        share = max(of) / {"float32": 2e-5, "bfloat16": 2e-2}[dtype]
        assert f"{dtype} {share:.0%} ({len(of)} cases)" in row(result, op)


def test_a_device_that_is_not_there_is_refused(suffice, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = suffice("doctor", "--device", "cuda")
    assert result.exit_code == 2
    assert "device='cuda', but torch finds no CUDA device here" in result.message
    result = suffice("doctor", "--device", "gpu")
    assert "unknown device 'gpu'" in result.message


def test_unknown_facts_are_named_as_unknown(monkeypatch):
    found = {"cpu": None, "gpu": None, "memory_bytes": None, "cores": 2}
    monkeypatch.setattr("suffice.utils.machine.machine_facts", lambda: dict(found))
    told = facts()
    assert told["memory"] == told["cpu"] == "unknown"
    assert told["cores"] == "2"
    assert told["gpu"].startswith("none: torch")
    found |= {"memory_bytes": 3 * 2**30, "gpu": "H1"}
    assert (facts()["memory"], facts()["gpu"]) == ("3.0 GiB", "H1")


def test_absent_kernels_are_named(monkeypatch):
    monkeypatch.setattr(library, "_loaded", lambda: (None, "they were not built"))
    told = facts()["native kernels"]
    assert told == "none: they were not built; everything runs through torch"
