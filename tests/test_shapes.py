"""What a shape error says."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import MaskError, ShapeError
from suffice.torch_compat import check, check_mask, spell


def test_legal_shapes_pass():
    assert check("x", torch.zeros(2, 3), (2, 3)) is None
    assert check("x", torch.zeros(2, 3), (5, 5), (None, 3)) is None
    assert check("x", torch.zeros(()), ()) is None


@pytest.mark.parametrize("legal", [(2, 4), (2, 3, 1), (2,), (None,), (3, None)])
def test_others_are_refused(legal):
    with pytest.raises(ShapeError, match=r"^x has shape \[2, 3\]; legal: .*\.$"):
        check("x", torch.zeros(2, 3), legal)


def test_the_message_lists_every_legal_shape_and_the_hint():
    with pytest.raises(ShapeError, match=r"legal: \[2, \*\] or \[\*, 9, 1\]\. Give words\.$"):
        check("x", torch.zeros(3, 3), (2, None), (None, 9, 1), hint="Give words.")


def test_spell():
    assert spell(()) == "[]"
    assert spell((1, None)) == "[1, *]"


def test_masks_are_boolean():
    assert check_mask("mask", torch.ones(1, dtype=torch.bool)) is None
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.bfloat16):
        with pytest.raises(MaskError, match=f"mask has dtype {dtype}; a mask is boolean.*from_hf"):
            check_mask("mask", torch.ones(1, dtype=dtype))
