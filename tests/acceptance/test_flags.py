"""Flags never change the maths: not the op, the batch, a mode, strides or what ran before."""

from __future__ import annotations

import pytest
import torch

from suffice.ops import call as masks_kept
from suffice.testing import assert_close, bits, documents, normal, padded

from .mechanisms import (
    D_MODEL,
    LENGTH,
    NAMES,
    RECURRENT,
    SPECS,
    layer_of,
    takes,
)

# inputs so large that features vanish
pytestmark = pytest.mark.filterwarnings("ignore:.*vanish:RuntimeWarning")


def data_of(name):
    """What may restrict a call of this mechanism; `test_refusals` has the rest."""
    valid, segments = padded(4, LENGTH, "inside"), documents(4, LENGTH)
    cases = {
        "plain": {},
        "valid": {"valid": valid},
        "segments": {"segments": segments},
        "both": {"valid": valid, "segments": segments},
        "mask": {"mask": bits(4, 1, LENGTH, LENGTH, seed=7)},
    }
    return {key: data for key, data in cases.items() if takes(SPECS[name], data)}


@pytest.mark.parametrize("name", NAMES)
def test_a_first_call_in_inference_mode_does_not_spoil_training(name):
    """Masks are kept between calls; one made in inference mode could not be saved for backward."""
    masks_kept._cached_mask.cache_clear()
    masks_kept._cached_restriction.cache_clear()
    for data in data_of(name).values():
        x = normal(4, LENGTH, D_MODEL, seed=1)
        layer = layer_of(name, impl="auto" if name.endswith(RECURRENT) else "matmul")
        with torch.inference_mode():
            layer(x, **data)
        layer(x.clone().requires_grad_(), **data).square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_earlier_calls_leave_no_trace(name):
    """Plans and masks are kept by size: another size, mode or data in between changes nothing."""
    x, cases = normal(4, LENGTH, D_MODEL, seed=1), data_of(name)
    fresh = {key: layer_of(name)(x, **data) for key, data in cases.items()}
    layer = layer_of(name)
    for order in (cases, reversed(cases)):
        for key in order:
            assert_close(layer(x, **cases[key]), fresh[key])
            layer(x[:, :4])
