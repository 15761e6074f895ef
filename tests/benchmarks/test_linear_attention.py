"""ONNX Runtime's LinearAttention computes our recurrence, and benchmarks print its version."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch.nn.functional as F

from benchmarks import report
from suffice.ops.recurrence import Sequence, stepwise
from suffice.testing import assert_close, normal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

B, H, T, D, E = 2, 4, 70, 8, 16


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("decays", [0, 1, D])
def test_the_operator_computes_the_reference(decays, corrects):
    from benchmarks.peers.linear_attention import linear_attention

    q, k, v, state = (
        normal(B, H, *shape, seed=seed)
        for seed, shape in enumerate([(T, D), (T, D), (T, E), (D, E)])
    )
    decay = -normal(B, H, T, decays, seed=5).abs() if decays else None
    beta = normal(B, H, T, 1, seed=6).sigmoid() if corrects else None
    parts = (0.3 * q, F.normalize(k, dim=-1), v, decay, beta)
    parts = tuple(None if x is None else x.float() for x in parts)
    out, after = linear_attention(*parts, state.float())()
    exact = Sequence(*(None if x is None else x.double() for x in parts), None)
    want_out, want_after = stepwise(exact, state.float().double())
    assert_close(out, want_out, n=T)
    assert_close(after, want_after, n=T)


def test_machines_are_printed_with_the_versions_of_peers(monkeypatch):
    assert report.peer_versions()["onnxruntime"] == version("onnxruntime")
    told = []
    monkeypatch.setattr(report.CONSOLE, "print", lambda text, **_: told.append(text))
    report.print_machine()
    assert f"onnxruntime {version('onnxruntime')}" in told[0]
