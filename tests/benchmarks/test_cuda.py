"""The harness of `make check-cuda`, at sizes of a CPU."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import cuda
from benchmarks.cuda import Check, Setting, main, run_all

SETTING = Setting(device=torch.device("cpu"), tiny=True)


def ran(*todo, seconds=60.0):
    return run_all(todo, SETTING, seconds, lambda *_: None)


def test_without_a_gpu_it_says_what_it_would_do(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 0
    told = capsys.readouterr().out
    assert told.startswith("No CUDA device here.")
    assert f"{len(cuda.checks())} in all, within 8.5 minutes" in told
    assert {check.group for check in cuda.checks()} == set(cuda.SHARES)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "only",
    [
        "mechanisms: causal mistral, ",
        "Elu(), bf16",
        "decode, K = V, GQA",
        "linear, T=16384, backward",
    ],
)
def test_checks_of_a_cpu(tmp_path, only):
    assert main(["--device", "cpu", "--only", only, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "check-cuda.json").read_text())
    assert report["results"]
    for result in report["results"]:
        assert result["standing"] == "passed"
        assert result["numbers"]
        assert result["name"] in (tmp_path / "check-cuda.md").read_text()


def test_a_wrong_layer_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "streamed", lambda layer, x, state: layer(x) * 1.01)
    arguments = [
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--only",
        "mechanisms: causal mqa, fp32",
    ]
    assert main(arguments) == 1
    page = (tmp_path / "check-cuda.md").read_text()
    assert "AssertionError: relative error streamed 1.0e-02 > 0.0001" in page


def test_a_check_that_breaks_is_a_finding():
    def broken(*_):
        raise RuntimeError("no kernel image")

    (result,) = ran(Check("ops", "broken", broken))
    assert (result.standing, result.detail) == ("FAILED", "RuntimeError: no kernel image")
