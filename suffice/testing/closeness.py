"""Comparison of tensors in tests: the kind of claim sets the tolerance.

No kind takes a tolerance. What may differ follows from the dtype, from the length of the sums,
from a codec's step or from the spread of the samples, so a bound cannot be chosen to pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suffice.errors import ConfigError, check_known

ROUNDINGS = 8  # what a few dozen operations of one layer add up to, in units of eps * sqrt(n)
HALF_ROUNDINGS = 2  # sums are fp32 inside: only a result and its few intermediates are rounded


KINDS = ("exact", "same_math", "quantised", "statistical")


def assert_close(
    got: Tensor,
    want: Tensor,
    kind: str = "same_math",
    *,
    n: int = 1,
    step: Tensor | float | None = None,
) -> None:
    """Raise AssertionError unless `got` agrees with `want` within the tolerance of the kind.

    exact: every bit, NaN equal to NaN.
    same_math: the same real number by other roundings: 1e-12 in float64, 8 eps sqrt(n) in
    float32, 2 eps in half types (whose sums run in float32), times the largest magnitude of
    `want`, or 1.
    quantised: half a step of the codec, and the rounding of same_math.
    statistical: `got` holds samples along its first axis; their mean lies within four standard
    errors of `want`.

    Args:
        got: the result.
        want: expected value, in the same dtype or in float64.
        kind: exact, same_math, quantised or statistical.
        n: length of the longest sum behind one element, for same_math.
        step: step of the codec, for quantised.

    Raises:
        AssertionError: with the largest difference, the relative RMS, the place and both values.
        ConfigError: for an unknown kind, a number the kind does not use, or nothing to compare.

    Example:
        >>> assert_close(torch.tensor([0.1]) * 3, torch.tensor([0.3]))
        >>> assert_close(torch.ones(1), torch.zeros(1) + 2, "exact")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: not exact: max abs 1 (allowed 0), ... at [0]: got 1, want 2
    """
    _check(got, want, kind, n, step)
    got, want, dtype = got.detach(), want.detach(), got.dtype
    allowed = torch.zeros((), dtype=torch.float64)
    if kind == "exact":
        good = (got == want) | ((got != got) & (want != want))  # noqa: PLR0124
    else:
        terms = n
        if kind == "quantised":
            allowed = torch.as_tensor(step, dtype=torch.float64) / 2
        elif kind == "statistical":
            terms = len(got)
            if terms < 2:  # noqa: PLR2004
                raise ConfigError("statistical needs two samples or more along the first axis.")
            samples = got.double()
            allowed, got = 4 * samples.std(dim=0) / math.sqrt(terms), samples.mean(dim=0)
        scale = want.double().abs().max().clamp(min=1)
        allowed = (allowed + _rounding(dtype, terms) * scale).to(want.device)
        good = (got.double() - want.double()).abs() <= allowed  # never of a NaN or an infinity
    if not bool(good.all()):
        _fail(kind, got, want, allowed, good)


def _check(got: Tensor, want: Tensor, kind: str, n: int, step: Tensor | float | None) -> None:
    check_known("kind of closeness", kind, KINDS)
    if (step is not None) != (kind == "quantised") or (n != 1 and kind != "same_math"):
        raise ConfigError(
            f"kind={kind!r} with n={n}, step={step}: n belongs to same_math and step to "
            "quantised; give only what the kind uses."
        )
    shape = got.shape[1:] if kind == "statistical" else got.shape
    if shape != want.shape:
        raise AssertionError(f"not {kind}: shape {list(shape)}, want {list(want.shape)}")
    if want.numel() == 0 or got.numel() == 0:
        raise ConfigError("nothing to compare: a tensor is empty; check its shape instead.")
    if want.dtype not in (got.dtype, torch.float64):
        raise AssertionError(f"not {kind}: dtype {got.dtype}, want {want.dtype}")


def _rounding(dtype: torch.dtype, n: int) -> float:
    if not dtype.is_floating_point:
        raise ConfigError(f"{dtype} does not round; compare it with kind='exact'.")
    eps = torch.finfo(dtype).eps
    if dtype is torch.float64:
        return 1e-12
    return ROUNDINGS * eps * math.sqrt(n) if dtype is torch.float32 else HALF_ROUNDINGS * eps


def _fail(kind: str, got: Tensor, want: Tensor, allowed: Tensor, good: Tensor) -> None:
    gap = (got.double() - want.double()).abs()
    badness = torch.where(good, -1.0, gap.nan_to_num(nan=torch.inf))
    flat = int(badness.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(flat), gap.shape)]
    limit = float(allowed.expand(gap.shape).reshape(-1)[flat])
    rms = float((gap.square().mean() / want.double().square().mean()).sqrt())
    raise AssertionError(
        f"not {kind}: max abs {float(gap.reshape(-1)[flat]):.6g} (allowed {limit:.3g}), relative "
        f"RMS {rms:.3g}, {int((~good).sum())} of {good.numel()} elements, at {where}: "
        f"got {got.reshape(-1)[flat].item():.9g}, want {want.reshape(-1)[flat].item():.9g}"
    )
