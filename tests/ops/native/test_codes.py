"""Matrices in codes: there and back, what is refused, and products of every set of instructions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from suffice.errors import ConfigError, ShapeError
from suffice.ops.native.matrix import (
    COLUMNS,
    Codes,
    check_group,
    decoded_rows,
    in_panels,
    multiply,
    numbers_of,
    structure_of,
)
from suffice.testing import assert_close
from tests.ops.native.codings import (
    coded_inputs,
    drawn_codes,
    drawn_inputs,
    isa,
    needs_kernels,
    plain_numbers,
)

__all__ = ["isa"]

DRAWS = 24


def drawn_sizes(seed):
    pick = random.Random(seed)
    bits = pick.choice((8, 4))
    group = COLUMNS[bits] * pick.randint(1, 20)
    return pick.randint(1, 70), group * pick.randint(1, 6), bits, group


@pytest.mark.parametrize("seed", range(DRAWS))
def test_what_is_packed_comes_back(seed):
    outputs, inputs, bits, group = drawn_sizes(seed)
    packed, codes, scales = drawn_codes(outputs, inputs, bits, group, seed)
    want = plain_numbers(codes, scales, bits)
    assert_close(numbers_of(packed).double(), want, "exact")
    rows = torch.randint(outputs, (2, 3))
    got = decoded_rows(packed.codes, packed.scales, bits, rows)
    assert_close(got.double(), want[rows], "exact")
    assert packed.group == group
    padded = -(-outputs // 16) * 16
    assert packed.nbytes == padded * inputs * bits // 8 + padded * inputs // group * 2


@needs_kernels
@pytest.mark.parametrize("seed", range(DRAWS // 3))
def test_products_of_any_bytes_and_sizes(isa, seed):
    outputs, inputs, bits, group = drawn_sizes(100 + seed)
    packed, codes, scales = drawn_codes(outputs, inputs, bits, group, seed)
    weight = plain_numbers(codes, scales, bits)
    bias = torch.randn(outputs) if seed % 2 else None
    matrix = structure_of(packed, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 27):
        flat = torch.zeros(rows * inputs + 1)
        x = flat[1:].view(rows, inputs)  # four bytes off any larger boundary
        x.copy_(drawn_inputs(rows, inputs, group=group))
        want = coded_inputs(x, group) @ weight.t()
        want = want if bias is None else want + bias
        assert_close(multiply(matrix, x), want, n=inputs)


@needs_kernels
def test_threads_share_rows_and_inputs(isa):
    packed, codes, scales = drawn_codes(130, 64, 4, 32)
    x = drawn_inputs(41, 64, group=32)
    before, got = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            got.append(multiply(structure_of(packed, None), x))
    finally:
        torch.set_num_threads(before)
    assert_close(got[0], got[1], "exact")
    assert_close(got[0], coded_inputs(x, 32) @ plain_numbers(codes, scales, 4).t(), n=64)


@needs_kernels
@pytest.mark.parametrize("bits", [8, 4])
def test_every_panel_of_a_tall_matrix_has_its_own_scales(isa, bits):
    """From 512 outputs on, a product of one input reads several panels at each of four places."""
    packed, codes, scales = drawn_codes(700, 64, bits, 16)
    x = drawn_inputs(1, 64, group=16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        got = multiply(structure_of(packed, None), x)
    finally:
        torch.set_num_threads(threads)
    assert_close(got, coded_inputs(x, 16) @ plain_numbers(codes, scales, bits).t(), n=64)


@needs_kernels
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
@pytest.mark.parametrize("rows", [1, 9])
def test_what_is_no_number_is_not_hidden(isa, odd, rows):
    packed, _, _ = drawn_codes(20, 64, 8, 32)
    x = torch.randn(rows, 64)
    x[0, 40] = odd
    y = multiply(structure_of(packed, None), x)
    assert not y[0].isfinite().any()
    assert y[1:].isfinite().all()


@needs_kernels
def test_inputs_of_zeros_and_of_the_extremes(isa):
    packed, codes, scales = drawn_codes(16, 256, 8, 128)
    weight = plain_numbers(codes, scales, 8)
    bias = torch.randn(16)
    assert_close(multiply(structure_of(packed, bias), torch.zeros(7, 256)), bias.expand(7, 16))
    extreme = torch.full((7, 256), -1e30)
    want = coded_inputs(extreme, 128) @ weight.t()
    got = multiply(structure_of(packed, None), extreme)
    assert_close(got / 1e30, want / 1e30, n=256)
    assert multiply(structure_of(packed, bias), torch.empty(0, 256)).shape == (0, 16)


def test_groups_that_do_not_fit_are_refused():
    codes, scales = torch.zeros(3, 24, dtype=torch.int32), torch.ones(3, 2)
    assert in_panels(codes, scales, 8).group == 12
    with pytest.raises(ConfigError, match="group=12.*24 inputs"):
        in_panels(codes, scales, 4)
    with pytest.raises(ConfigError, match="group=16.*24 inputs"):
        check_group(8, 24, 16)
    with pytest.raises(ConfigError, match="bits=5: give 8 or 4"):
        in_panels(codes, scales, 5)
    wide = torch.zeros(1, 1 << 16, dtype=torch.int32)
    with pytest.raises(ConfigError, match="that divides the inputs, at most 32,768"):
        in_panels(wide, torch.ones(1, 1), 8)


def test_malformed_tensors_are_refused():
    good, _, _ = drawn_codes(20, 64, 8, 32)
    with pytest.raises(ShapeError, match="20 x.*64 matrix.*8 bits"):
        replace(good, codes=good.codes.view(torch.int8))
    with pytest.raises(ShapeError, match=r"20 x.*\[2, 2, 15\]"):
        replace(good, scales=good.scales[..., :15])
    with pytest.raises(ShapeError, match="scales are not contiguous"):
        replace(good, scales=good.scales.transpose(1, 2).contiguous().transpose(1, 2))
    for shape in ((33, 64), (20, 128), (16, 64)):
        with pytest.raises(ShapeError, match="codes of a"):
            replace(good, shape=shape)


def test_any_change_of_the_tensors_is_refused_or_read_within_them():
    pick = random.Random(5)
    good, _, _ = drawn_codes(20, 64, 4, 32)
    fields = {
        "bits": [8, 4, 2],
        "group": [32, 64, 16, 0, -8],
        "shape": [(20, 64), (64, 20), (0, 64)],
    }
    for _ in range(200):
        name = pick.choice([*fields, "codes", "scales"])
        if name in fields:
            changed = {name: pick.choice(fields[name])}
        else:
            old = getattr(good, name)
            sizes = [max(0, n + pick.choice((-1, 0, 0, 1))) for n in old.shape]
            changed = {name: torch.zeros(sizes, dtype=old.dtype)}
        try:
            changed_codes = replace(good, **changed)
        except (ConfigError, ShapeError):
            continue
        assert isinstance(changed_codes, Codes)
        assert numbers_of(changed_codes).shape == changed_codes.shape


def test_matrices_the_kernels_cannot_read_are_refused():
    with pytest.raises(ConfigError, match="torch.float64"):
        structure_of(torch.zeros(2, 2, dtype=torch.float64), None)
    with pytest.raises(ConfigError, match="biases are torch.float16"):
        structure_of(torch.zeros(2, 2), torch.zeros(2).half())
    with pytest.raises(ConfigError, match="a tensor on meta with strides"):
        structure_of(torch.zeros(2, 2, device="meta"), None)
    with pytest.raises(ConfigError, match="kernels read contiguous ones of the CPU"):
        structure_of(torch.zeros(2, 3).t(), None)
    good, _, _ = drawn_codes(20, 64, 8, 32)
    with pytest.raises(ConfigError, match="a tensor on meta with strides"):
        structure_of(replace(good, scales=good.scales.to("meta")), None)
    with pytest.raises(ShapeError, match=r"weights have shape \[4\]"):
        structure_of(torch.zeros(4), None)
    for weight, outputs in ((torch.zeros(2, 3), 2), (good, 20)):
        for shape in ((outputs - 1,), (outputs, 1), ()):
            with pytest.raises(ShapeError, match=f"for {outputs} outputs; give one number for ea"):
                structure_of(weight, torch.zeros(shape))


@needs_kernels
def test_inputs_of_another_width_are_refused():
    for wrong in (2, 4):
        with pytest.raises(ShapeError, match=f"x has {wrong} features; this matrix reads 3"):
            multiply(structure_of(torch.zeros(2, 3), None), torch.zeros(5, wrong))
