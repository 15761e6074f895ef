"""The functional entry: what it refuses, and gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from suffice import attend, weights
from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.ops import OPS
from suffice.ops.call import AttentionCall
from suffice.patterns import Causal, Full, PerHead
from suffice.testing import assert_close, bits, documents, normal, padded

# CUDA; kernels of feature maps; float32; no gradients
ELSEWHERE = ("flex", "scan", "native", "native_decode", "native_scan")
ON_CPU = [name for name in OPS if name not in ELSEWHERE]
Q, K, V = normal(2, 4, 5, 3, seed=1), normal(2, 2, 7, 3, seed=2), normal(2, 2, 7, 3, seed=3)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q[0], K, V, r"q has shape \[4, 5, 3\]; legal: \[\*, \*, \*, \*\]\. Give heads as"),
        (Q, K[:1], V, r"k has shape \[1, 2, 7, 3\]; legal: \[2, \*, \*, 3\]"),
        (Q, K[..., :2], V, r"k has shape \[2, 2, 7, 2\]; legal: \[2, \*, \*, 3\]"),
        (Q, K[0], V, r"k has shape \[2, 7, 3\]; legal"),
        (Q, K, V[:, :1], r"v has shape \[2, 1, 7, 3\]; legal: \[2, 2, 7, \*\]"),
        (Q, K, V[:, :, :6], r"v has shape \[2, 2, 6, 3\]; legal: \[2, 2, 7, \*\]"),
        (Q[:, :3], K, V, "2 key/value heads do not divide 3 query heads"),
        (Q, K[:, :0], V[:, :0], "0 key/value heads do not divide 4 query heads"),
    ],
)
def test_shapes(q, k, v, message):
    with pytest.raises(ShapeError, match=message):
        attend(q, k, v)


def test_weights_check_the_same():
    with pytest.raises(ShapeError, match=r"\[1, 2, 7, 3\]"):
        weights(Q, K[:1])
    with pytest.raises(MaskError, match="torch.int64"):
        weights(Q, K, valid=torch.ones(2, 7).long())


@pytest.mark.parametrize("pattern", [None, "causal", Causal, True], ids=str)
def test_pattern_is_an_instance(pattern):
    with pytest.raises(ConfigError, match="is not a pattern"):
        attend(Q, K, V, pattern=pattern)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((torch.zeros(2, 4), torch.zeros(2, 7)), r"segments of the queries has shape \[2, 4\]"),
        ((torch.zeros(2, 5), torch.zeros(2, 5)), r"segments of the keys has shape \[2, 5\]"),
        ((torch.zeros(5), torch.zeros(2, 7)), r"segments of the queries has shape \[5\]"),
    ],
)
def test_segments(segments, message):
    with pytest.raises(ShapeError, match=message):
        attend(Q, K, V, segments=tuple(s.long() for s in segments))


@pytest.mark.parametrize("missing", [0, 1])
def test_half_of_the_segments_is_refused(missing):
    """Nothing given may be ignored."""
    segments = [torch.zeros(2, 5).long(), torch.zeros(2, 7).long()]
    segments[missing] = None
    with pytest.raises((ConfigError, ShapeError), match="segments"):
        attend(Q, K, V, segments=tuple(segments))


def test_values_of_another_width():
    v = normal(2, 2, 7, 5, seed=4)
    out = attend(Q, K, v)
    assert out.shape == (2, 4, 5, 5)
    assert_close(out, weights(Q, K) @ v.repeat_interleave(2, dim=1))


@pytest.mark.parametrize("impl", ["auto", "matmul", "reference"])
def test_no_queries(impl):
    out = attend(Q[:, :, :0], K, V, impl=impl)
    assert out.shape == (2, 4, 0, 3)
    assert weights(Q[:, :, :0], K).shape == (2, 4, 0, 7)


@pytest.mark.parametrize("impl", ON_CPU)
def test_no_rows(impl):
    assert attend(Q[:0], K[:0], V[:0], impl=impl).shape == (0, 4, 5, 3)


DATA = {
    "plain": {},
    "causal": {"pattern": Causal()},
    "and": {"pattern": Full() & Causal()},
    "valid": {"valid": padded(2, 7, "left")},
    "empty": {"valid": torch.tensor([[False] * 7, [True] * 7]), "pattern": Causal()},
    "mask": {"mask": bits(2, 4, 5, 7, seed=1)},
    "documents": {"segments": (documents(2, 5), documents(2, 7))},
    "scale": {"scale": -0.7},
}


PAIRWISE = ("mask", "documents")
CALLS = [(n, i) for n in DATA for i in ON_CPU if not (i == "blocked" and n in PAIRWISE)]


@pytest.mark.parametrize(("name", "impl"), CALLS)
def test_gradients_by_finite_differences(name, impl):
    leaves = [x.clone().requires_grad_() for x in (Q[:1, :, :3], K[:1, :, :4], V[:1, :, :4])]
    data = {key: cut(value) for key, value in DATA[name].items()}
    assert gradcheck(lambda q, k, v: attend(q, k, v, impl=impl, **data), leaves, fast_mode=True)


def cut(value):
    """The restriction of one row, three queries and four keys."""
    if not isinstance(value, torch.Tensor | tuple):
        return value
    if isinstance(value, tuple):
        return (value[0][:1, :3], value[1][:1, :4])
    return value[:1, :4] if value.dim() == 2 else value[:1, :, :3, :4]


@pytest.mark.parametrize("impl", ["matmul", "reference"])
@pytest.mark.parametrize("name", ["plain", "causal", "empty"])
def test_second_derivatives(name, impl):
    leaves = [x.clone().requires_grad_() for x in (Q[:1, :, :3], K[:1, :, :4], V[:1, :, :4])]
    data = {key: cut(value) for key, value in DATA[name].items()}
    assert gradgradcheck(lambda q, k, v: attend(q, k, v, impl=impl, **data), leaves, fast_mode=True)


@pytest.mark.parametrize("impl", ON_CPU)
def test_scale_of_zero_averages(impl):
    want = V.mean(dim=2, keepdim=True).repeat_interleave(2, dim=1).expand(2, 4, 5, 3)
    assert_close(attend(Q, K, V, scale=0.0, impl=impl), want)


@pytest.mark.parametrize("impl", ON_CPU)
def test_inputs_are_not_changed(impl):
    before = [x.clone() for x in (Q, K, V)]
    valid = padded(2, 7, "inside")
    mask = {} if impl == "blocked" else {"mask": bits(2, 1, 5, 7, seed=1)}
    attend(Q, K, V, valid=valid, **mask, impl=impl)
    assert all(torch.equal(a, b) for a, b in zip((Q, K, V), before, strict=True))
    assert torch.equal(valid, padded(2, 7, "inside"))


def test_mixed_dtypes_are_refused():
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(ConfigError, match="torch.float32"):
        attend(q, k, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_document_numbers_are_integers(dtype):
    q, numbers = torch.zeros(1, 1, 2, 4), torch.zeros(1, 2, dtype=dtype)
    with pytest.raises(ConfigError, match="segments of the queries have dtype .*are integers"):
        attend(q, q, q, segments=(numbers, numbers))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1", True, torch.tensor(0.5)])
def test_a_scale_is_a_finite_number(scale):
    message = r"is not a finite number; a learned one goes into q, as q \* scale"
    with pytest.raises(ConfigError, match=message):
        attend(Q, K, V, scale=scale)
    with pytest.raises(ConfigError, match=message):
        weights(Q, K, scale=scale)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_dtypes(dtype):
    with pytest.raises(ConfigError, match=f"have dtype {dtype}; give one of torch.float32"):
        attend(Q.to(dtype), K.to(dtype), V.to(dtype))


def test_devices():
    with pytest.raises(ConfigError, match="are on cpu, meta and cpu"):
        attend(Q, K.to("meta"), V)


@pytest.mark.parametrize("q", [Q[:, :0], Q[..., :0]], ids=["heads", "features"])
def test_nothing_to_compare(q):
    with pytest.raises(ShapeError, match="give at least one head of one feature"):
        attend(q, K[..., : q.shape[3]], V)


@pytest.mark.parametrize("q", [None, [1.0], Q.numpy()], ids=lambda q: type(q).__name__)
def test_what_is_no_tensor(q):
    with pytest.raises(ShapeError, match=r"q is a \w+"):
        attend(q, K, V)
    with pytest.raises(MaskError, match="valid is a list"):
        attend(Q, K, V, valid=[[True] * 7] * 2)


def test_a_pattern_of_other_heads():
    with pytest.raises(ConfigError, match="2 heads"):
        attend(Q, K, V, pattern=PerHead((Causal(), Full())))


@pytest.mark.parametrize("segments", [documents(2, 7), (documents(2, 7),) * 3, []], ids=type)
def test_segments_are_a_pair(segments):
    with pytest.raises(ConfigError, match=r"segments are a pair \(q_segments, k_segments\)"):
        attend(Q, K, V, segments=segments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_half_inputs_are_computed_in_float32(dtype):
    """Scores of about 100, rounded to a half type, are wrong by more than a result may be."""
    q, k, v = (normal(1, 2, 48, 64, seed=seed, dtype=dtype) for seed in (1, 2, 3))
    exact = attend(*(x.double() for x in (30 * q, k, v)))
    assert_close(attend(30 * q, k, v, impl="matmul"), exact)


@pytest.mark.parametrize("heads", [1, 3])
def test_sinks_are_one_logit_for_each_head(heads):
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ShapeError, match="sinks"):
        attend(q, q, q, sinks=torch.zeros(heads))


def test_a_description_from_the_cache_is_that_of_its_context():
    q, k, v = (normal(1, 2, 5, 4, seed=n, dtype=torch.float32) for n in range(3))
    with torch.no_grad():
        want = attend(q, k, v, scale=1.0)
    q.requires_grad_()
    out = attend(q, k, v, scale=1.0)
    out.sum().backward()
    assert q.grad is not None
    assert_close(out, want)
    by_transform = torch.func.grad(lambda q: attend(q, k, v, scale=1.0).sum())(q.detach())
    assert_close(by_transform, q.grad)
    with pytest.raises(ConfigError):
        attend(q, k, v, scale=True)


def test_descriptions_hash_by_their_fields():
    sizes = {"queries": 1, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "value_dim": 4}
    call = AttentionCall(keys=5, scale=0.5, **sizes)
    assert hash(call) == hash(AttentionCall(keys=5, scale=0.5, **sizes))
    longer = call.grown(6)
    assert longer == AttentionCall(keys=6, scale=0.5, **sizes)
    assert hash(longer) == hash(AttentionCall(keys=6, scale=0.5, **sizes))
