"""Every form of W_A is the square its class defines: outputs, gradients, rows, cost and reach."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from suffice.layers.positions import positions
from suffice.mixing import (
    BandedAlignment,
    BlockAlignment,
    LowRank,
    Mixing,
    RowLayout,
    ToeplitzAlignment,
)
from suffice.ops import register_flops
from suffice.testing import assert_close, documents, padded

from .dense import FORMS, built, expected, square, values

LENGTHS = (1, 2, 9, 33, 34, 66)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
EACH = pytest.mark.parametrize("mixing", FORMS, ids=repr)


def rows_of(batch: int, length: int, kind: str, *, seed: int = 3) -> RowLayout:
    """Rows with padding, documents, or both."""
    valid = segments = None
    if kind != "packed":
        valid = padded(batch, length, kind.removesuffix("-packed"), seed=seed)
    if "packed" in kind:
        segments = documents(batch, length, seed=seed)
    return RowLayout(valid=valid, positions=positions(valid, segments), documents=segments)


def run(made, v, rows=RowLayout()):  # noqa: B008 - frozen
    k = v + 1
    same, mixed = made(k, v, rows)
    assert same is k
    return mixed


def slopes(out, keep, *sources):
    out = out if keep is None else out.transpose(1, 2)[keep]
    return torch.autograd.grad((out * out.detach().cos()).sum(), sources, allow_unused=True)


@CAUSAL
@EACH
def test_any_length(mixing, causal):
    made = built(mixing, causal=causal)
    for length in LENGTHS:
        v = values(2, length, seed=length).requires_grad_()
        got, want = run(made, v), expected(mixing, made, v, RowLayout(), causal=causal)
        assert_close(got, want)
        sources = [v, *made.parameters()]
        for a, b in zip(slopes(got, None, *sources), slopes(want, None, *sources), strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("kind", ["left", "right", "inside", "packed", "inside-packed"])
@CAUSAL
@EACH
def test_padded_and_packed_rows(mixing, causal, kind):
    """Real tokens get what their document gives them alone, with the same gradients."""
    made = built(mixing, causal=causal)
    for length in (4, 35):
        rows = rows_of(3, length, kind)
        v = values(3, length, seed=length).requires_grad_()
        got, want = run(made, v, rows), expected(mixing, made, v, rows, causal=causal)
        keep = torch.ones(3, length).bool() if rows.valid is None else rows.valid
        assert_close(got.transpose(1, 2)[keep], want.transpose(1, 2)[keep])
        sources = [v, *made.parameters()]
        for a, b in zip(slopes(got, keep, *sources), slopes(want, keep, *sources), strict=True):
            assert_close(a, b)


@CAUSAL
@EACH
def test_rows_without_a_real_token(mixing, causal):
    made = built(mixing, causal=causal)
    valid = torch.zeros(2, 7).bool()
    rows = RowLayout(valid=valid, positions=positions(valid, None))
    v = values(2, 7).fill_(torch.nan)
    assert torch.isfinite(run(made, v, rows)).all()
    assert run(made, values(2, 0)).shape == (2, 2, 0, 3)


@pytest.mark.parametrize("kind", [None, "inside", "inside-packed"])
@CAUSAL
@EACH
def test_nan_reaches_exactly_who_may_read_it(mixing, causal, kind):
    made = built(mixing, causal=causal)
    rows = RowLayout() if kind is None else rows_of(2, 40, kind)
    v = values(2, 40)
    keep = torch.ones(2, 40).bool() if rows.valid is None else rows.valid
    numbers = torch.zeros(2, 40) if rows.documents is None else rows.documents
    want = expected(mixing, made, v, rows, causal=causal)
    for poison, at in ((torch.nan, 0), (torch.inf, 17), (-torch.inf, 39)):
        bad = v.clone()
        bad[:, 1, at, 2] = poison
        got = run(made, bad, rows)
        for b in range(2):
            near = torch.nonzero((numbers[b] == numbers[b, at]) & keep[b])[:, 0].tolist()
            seen = torch.zeros(2, 40, 3).bool()
            if at in near:
                ones = torch.ones_like(made.weight[0])
                reads = square(mixing, ones, len(near), causal=causal)[:, near.index(at)] > 0
                seen[1, near, 2] = reads
            mine = got[b].transpose(0, 1)[keep[b]]
            clean = want[b].transpose(0, 1)[keep[b]]
            seen = seen.transpose(0, 1)[keep[b]]
            assert torch.equal(~mine.isfinite(), seen)
            assert_close(mine[~seen], clean[~seen])


@CAUSAL
@EACH
def test_flops_equal_an_execution(mixing, causal):
    made = built(mixing, causal=causal)
    for length in LENGTHS:
        register_flops()
        with FlopCounterMode(display=False) as counter:
            run(made, values(3, length))
        want = 3 * mixing.flops(length, value_width=6, causal=causal)
        assert counter.get_total_flops() == want


@CAUSAL
@EACH
def test_parameters_and_json(mixing, causal):
    made = built(mixing, causal=causal)
    counted = mixing.parameters(2, causal=causal)
    assert counted == sum(p.numel() for p in made.parameters())
    assert Mixing.from_json(json.loads(json.dumps(mixing.to_json()))) == mixing


class Largest(TorchDispatchMode):
    """Notes the most numbers any tensor has."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // 8)
        return out


@pytest.mark.parametrize("kind", [None, "left", "packed", "inside-packed"])
@pytest.mark.parametrize(
    "mixing",
    [BandedAlignment(4096, 4), ToeplitzAlignment(4), ToeplitzAlignment(50), BlockAlignment(4)],
    ids=repr,
)
def test_memory_grows_with_the_length_and_not_its_square(mixing, kind):
    made = built(mixing, causal=True, groups=1)
    largest = []
    for length in (2048, 4096):
        rows = RowLayout() if kind is None else rows_of(1, length, kind)
        v = values(1, length, groups=1).requires_grad_()
        with Largest() as mode:
            run(made, v, rows).square().sum().backward()
        largest.append(mode.numbers)
    assert largest[1] <= 2.2 * largest[0]
    assert largest[1] < 4096 * 4096 / 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@EACH
def test_other_dtypes(mixing, dtype):
    made = built(mixing, causal=True)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(p.to(dtype))
    rows = rows_of(2, 35, "inside-packed")
    v = values(2, 35).to(dtype)
    want = run(made, v.double(), rows).transpose(1, 2)[rows.valid]
    got = run(made.to(dtype), v, rows)
    assert got.dtype is dtype
    assert_close(got.transpose(1, 2)[rows.valid], want, n=35)


@pytest.mark.parametrize(
    ("mixing", "kind"),
    [(form, ("left", "inside-packed")[i % 2]) for i, form in enumerate(FORMS[::4])],
    ids=repr,
)
def test_compiled(mixing, kind):
    """A graph cannot branch on data; it gathers every padded row."""
    torch._dynamo.reset()
    causal = kind == "left"
    made = built(mixing, causal=causal)
    rows = rows_of(2, 11, kind)
    data = {"valid": rows.valid, "positions": rows.positions, "documents": rows.documents}
    v = values(2, 11)
    fast = torch.compile(
        lambda v: made(v, v, RowLayout(**data))[1], backend="eager", fullgraph=True
    )
    assert_close(
        fast(v).transpose(1, 2)[rows.valid], run(made, v, rows).transpose(1, 2)[rows.valid]
    )


def test_every_own_form_is_here():
    own = {v for v in Mixing.table.values() if v.__module__.startswith("suffice.")}
    seen = {type(mixing) for mixing in FORMS} | {LowRank}
    assert {value.__name__ for value in own - seen} == {"NoMixing"}
