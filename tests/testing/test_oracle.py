from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.ops import OPS, MaskInputs
from suffice.ops.reference import REFERENCE
from suffice.patterns import Full
from suffice.testing import oracle
from suffice.testing.oracle import Check, check_ops

EACH = 2 * len(oracle.GROUPS) * len(oracle.SIZES)  # cases of a kind, padded or not
CASES = len(oracle.KINDS) * EACH
SUMS = EACH * sum(kernel.lane != "pairs" for kernel, _ in oracle.KINDS)
CAUSAL = EACH * sum(pattern.causal for _, pattern in oracle.KINDS)
OWN = (CASES - SUMS) // len(oracle.GROUPS)  # a softmax whose heads share nothing
REFUSED = {  # in how many cases, and what is said there; the other ops refuse nothing
    "fused": (SUMS, ["Elu gives pairs no weights of their own"]),
    "blocked": (SUMS, ["Elu gives pairs no weights of their own"]),
    "native": (SUMS, ["Elu gives pairs no weights of their own"]),
    "native_decode": (
        CASES - (CASES - SUMS) // len(oracle.SIZES),  # one token is the only size of few queries
        ["Elu gives pairs no weights of their own", "it is for at most 8 queries, not"],
    ),
    "folded": (SUMS + OWN, ["Elu gives pairs no weights of their own", "nothing to fold"]),
    "flex": (CASES, ["FlexAttention is fast on CUDA only"]),
    "scan": (CASES - SUMS, ["Softmax weighs pairs: there are no features to sum"]),
    "native_scan": (CASES - SUMS, ["Softmax weighs pairs: there are no features to sum"]),
}


@pytest.fixture
def single(monkeypatch):
    monkeypatch.setattr(oracle, "TOLERANCES", {torch.float32: 2e-5})


def put(monkeypatch, run, name="broken"):
    """Leave the specification and one op that computes as `run` does, on short rows."""
    monkeypatch.setattr(oracle, "SIZES", ((3, 7), (7, 7), (1, 7)))
    monkeypatch.setattr(
        oracle, "OPS", {"reference": REFERENCE, name: replace(REFERENCE, name=name, run=run)}
    )


def failures(name="broken"):
    checks = [check for check in check_ops("cpu") if check.op == name]
    assert len(checks) == CASES
    return [check for check in checks if not check.passed]


@pytest.fixture(scope="module")
def checks():
    return list(check_ops(torch.device("cpu")))


def test_every_op_is_right_here(checks):
    assert [str(check) for check in checks if not check.passed] == []
    assert len(checks) == CASES * len(OPS) * len(oracle.TOLERANCES)
    assert len({(c.op, c.dtype, c.case) for c in checks}) == len(checks)
    assert {check.op for check in checks} == set(OPS)
    assert {check.dtype for check in checks} == {"float32", "bfloat16", "float16"}
    for check in checks:
        assert (check.error is None) == bool(check.refusal)


def test_ops_are_compared_and_not_only_refused(checks):
    compared = [c for c in checks if c.error is not None and c.dtype == "float32"]
    for op in OPS:
        want = CASES - REFUSED.get(op, (0, []))[0]
        assert len([check for check in compared if check.op == op]) == want, op


def test_a_refusal_has_a_reason_and_is_not_wrong(checks):
    refused = [c for c in checks if c.error is None and c.dtype == "float32"]
    assert {check.op for check in refused} == REFUSED.keys()
    for check in refused:
        assert check.passed
        assert any(sentence in check.refusal for sentence in REFUSED[check.op][1])
        assert ("nothing to fold" in check.refusal) == (
            check.op == "folded" and "4 of 4 heads" in check.case
        )
        assert str(check) == f"{check.op} float32 {check.case}: refused: {check.refusal}"


def test_padded_cases_hold_a_row_of_padding_alone():
    case = oracle._Case(torch.device("cpu"), torch.float32, None, None, 1, True, 2, 47)
    *_, where = case._data()
    assert where.valid.any(dim=1).tolist() == [True, True, False]
    assert not where.valid.all(dim=1).any()


def changed(q, k, v, where, problem, parts):
    return REFERENCE.run(q, k, v, where, problem, parts) * (1 + 1e-4)


def stale(q, k, v, where, problem, parts):
    return REFERENCE.run(q, k, v, MaskInputs(), problem, parts)


def flat(q, k, v, where, problem, parts):
    return REFERENCE.run(q, k, v, where, replace(problem, pattern=Full()), parts)


def tiled(q, k, v, where, problem, parts):
    k, v = (x.repeat(1, problem.group, 1, 1) for x in (k, v))
    problem = replace(problem, num_kv_heads=problem.num_heads)
    return REFERENCE.run(q, k, v, where, problem, parts)


def top_left(q, k, v, where, problem, parts):
    if not problem.pattern.causal:
        return REFERENCE.run(q, k, v, where, problem, parts)
    early = torch.ones(problem.queries, problem.keys, dtype=torch.bool).tril()
    where = replace(where, mask=early[None, None])
    return flat(q, k, v, where, problem, parts)


def empty_rows_are_means(q, k, v, where, problem, parts):
    out = REFERENCE.run(q, k, v, where, problem, parts)
    if where.valid is None:
        return out
    mean = v.mean(dim=2, keepdim=True).repeat_interleave(problem.group, dim=1)
    return torch.where(where.valid.any(dim=1)[:, None, None, None], out, mean)


def nan(q, k, v, where, problem, parts):
    out = REFERENCE.run(q, k, v, where, problem, parts)
    return out + torch.where(torch.arange(out.shape[3]) == 3, torch.nan, 0.0)


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def wrong_backward(q, k, v, where, problem, parts):
    return REFERENCE.run(q, Half.apply(k), v, where, problem, parts)


WRONG = {  # and in how many of the cases it shows
    changed: CASES,
    stale: CASES / 2,
    flat: CAUSAL * 2 / 3,  # one query sees all keys
    tiled: CASES / 3,  # between one head each and one for all
    top_left: CAUSAL * 2 / 3,  # as many queries as keys
    empty_rows_are_means: CASES / 2,
    nan: CASES,
    wrong_backward: CASES,
}


@pytest.mark.parametrize("run", list(WRONG), ids=lambda run: run.__name__)
def test_a_wrong_op_is_caught(monkeypatch, single, run):
    put(monkeypatch, run)
    found = failures()
    assert len(found) == WRONG[run]
    if run is nan:
        assert {check.error for check in found} == {float("inf")}


def test_the_right_op_under_another_name_passes(monkeypatch, single):
    put(monkeypatch, REFERENCE.run)
    assert failures() == []


def test_a_check_is_one_line():
    check = Check(op="fused", dtype="float32", case="Full()", error=3e-4, tolerance=2e-5)
    assert not check.passed
    assert str(check) == "fused float32 Full(): error 3.0e-04"
    assert replace(check, error=2e-5).passed
