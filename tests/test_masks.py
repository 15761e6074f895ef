"""Other libraries' masks turned into ours."""

from __future__ import annotations

import pytest
import torch

from suffice import masks
from suffice.errors import MaskError, ShapeError

BOOLEAN = torch.tensor([[True, False, True]])


def test_torch_masks_are_turned_over():
    assert masks.from_torch_mha(BOOLEAN).tolist() == [[False, True, False]]
    assert torch.equal(masks.from_torch_mha(masks.from_torch_mha(BOOLEAN)), BOOLEAN)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8], ids=str)
def test_torch_masks_are_boolean(dtype):
    with pytest.raises(MaskError, match=f"dtype {dtype}; from_torch_mha inverts a boolean mask"):
        masks.from_torch_mha(BOOLEAN.to(dtype))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("low", ["inf", "lowest", "half of it"])
def test_additive(dtype, low):
    number = {
        "inf": -torch.inf,
        "lowest": torch.finfo(dtype).min,
        "half of it": torch.finfo(dtype).min / 2,
    }[low]
    mask = torch.zeros(1, 3, dtype=dtype).masked_fill(~BOOLEAN, number)
    assert torch.equal(masks.from_additive(mask), BOOLEAN)


@pytest.mark.parametrize("number", [1.0, -1.0, 0.5, -10_000.0, torch.inf, torch.nan])
def test_a_bias_is_no_mask(number):
    with pytest.raises(MaskError, match="numbers other than 0 and -inf, so it is a bias"):
        masks.from_additive(torch.tensor([[0.0, number]]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
def test_additive_masks_are_floating_point(dtype):
    with pytest.raises(MaskError, match=f"dtype {dtype}; an additive mask is floating-point"):
        masks.from_additive(torch.zeros(1, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.float32], ids=str)
def test_hugging_face(dtype):
    got = masks.from_hf(BOOLEAN.to(dtype))
    assert torch.equal(got, BOOLEAN)
    assert got.dtype is torch.bool


def test_hugging_face_refusals():
    with pytest.raises(MaskError, match="attention_mask holds numbers other than 0 and 1"):
        masks.from_hf(torch.tensor([[1, 2]]))
    with pytest.raises(MaskError, match="numbers other than 0 and 1"):
        masks.from_hf(torch.tensor([[0.0, -torch.inf]]))
    with pytest.raises(ShapeError, match=r"\[3\]"):
        masks.from_hf(torch.ones(3))


def test_for_heads():
    two = torch.rand(5, 7) < 0.5
    assert torch.equal(masks.for_heads(two), two[None, None])
    three = torch.rand(6, 5, 7) < 0.5
    four = masks.for_heads(three, num_heads=3)
    assert four.shape == (2, 3, 5, 7)
    for row in range(2):
        for head in range(3):
            assert torch.equal(four[row, head], three[3 * row + head])


@pytest.mark.parametrize(
    ("shape", "num_heads", "message"),
    [
        ((6, 5, 7), None, r"\[6, 5, 7\] is neither .* \(give num_heads"),
        ((6, 5, 7), 4, r"\[6, 5, 7\] is neither \[T, S\] nor \[B \* H, T, S\]\.$"),
        ((7,), 4, r"\[7\] is neither"),
        ((1, 1, 5, 7), 1, r"\[1, 1, 5, 7\] is neither"),
    ],
)
def test_for_heads_refusals(shape, num_heads, message):
    with pytest.raises(ShapeError, match=message):
        masks.for_heads(torch.ones(shape, dtype=torch.bool), num_heads)


@pytest.mark.parametrize("convert", ["from_torch_mha", "from_hf"])
def test_the_given_mask_is_not_changed(convert):
    given = BOOLEAN.clone()
    getattr(masks, convert)(given)
    assert torch.equal(given, BOOLEAN)


@pytest.mark.parametrize("convert", [masks.from_additive, masks.from_torch_mha])
def test_masks_of_other_libraries_are_tensors(convert):
    with pytest.raises(MaskError, match="the mask is a list"):
        convert([[0.0]])
