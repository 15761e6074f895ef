"""Which models belong together, and in which order their features stand."""

from __future__ import annotations

import copy

import pytest
import torch

from suffice import preset
from suffice.convert.feature_permutation import permuted
from suffice.convert.heal.pairing import check_unlike, feature_order, paired
from suffice.errors import ConfigError
from suffice.models import LMConfig, ViTConfig
from suffice.quantise import quantise
from suffice.testing import assert_close, drawn

from .small import SIZES, student, teacher

ROWS = torch.randint(9, (3, 12), generator=torch.Generator().manual_seed(0))


def test_a_permutation_of_the_features_is_found_even_after_training():
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    moved = permuted(teacher(), order)
    assert feature_order(moved, teacher()).tolist() == order.tolist()
    with torch.no_grad():
        draws = torch.Generator().manual_seed(2)
        noise = torch.randn(moved.embedding.tokens.weight.shape, generator=draws)
        moved.embedding.tokens.weight += 0.1 * moved.embedding.tokens.weight.std() * noise
    assert feature_order(moved, teacher()).tolist() == order.tolist()
    assert feature_order(copy.deepcopy(teacher()), teacher()) is None
    nearly = copy.deepcopy(teacher())
    with torch.no_grad():
        nearly.embedding.tokens.weight *= 1.01
    assert feature_order(nearly, teacher()) is None


def test_the_teacher_is_permuted_to_the_students_order_and_predicts_the_same():
    one = student("efficient")
    assert feature_order(one, teacher()) is not None
    found = paired(one, teacher())
    assert_close(found.teacher(ROWS), teacher()(ROWS), n=16)
    assert torch.equal(found.teacher.embedding.tokens.weight, found.student.embedding.tokens.weight)
    assert not any(p.requires_grad for p in found.teacher.parameters())
    assert found.student is not one
    check_unlike(found, ROWS)


def test_layers_that_differ_are_named():
    other = copy.deepcopy(teacher())
    assert paired(other, teacher()).layers == ()
    with torch.no_grad():
        other.blocks[1].attention.o_proj.weight[0, 0] += 1.0
    assert paired(other, teacher()).layers == ("blocks.1.attention",)


def test_unrelated_models_are_refused():
    lm = teacher()
    wide = LMConfig(**SIZES | {"depth": 1}).build(preset("mqa", 16, 4, causal=True))
    with pytest.raises(ConfigError, match="depth"):
        paired(wide, lm)
    strange = drawn(copy.deepcopy(lm), seed=5)
    with pytest.raises(ConfigError, match="embeddings"):
        paired(strange, lm)
    sparse = LMConfig(**SIZES).build(preset("efficient", 16, 4, causal=True))
    other = copy.deepcopy(sparse)
    with torch.no_grad():
        other.embedding.tokens.weight.copy_(sparse.embedding.tokens.weight.flip(1))
    with pytest.raises(ConfigError, match="order"):
        paired(other, sparse)


def test_models_that_cannot_be_trained_on_text_are_refused():
    lm = teacher()
    packed = copy.deepcopy(lm)
    quantise(packed, bits=8)
    config = ViTConfig(image_size=4, patch_size=2, num_classes=2, d_model=4, depth=1, mlp_width=4)
    with pytest.raises(ConfigError, match="the teacher is a ViT, and only language models"):
        paired(lm, config.build(preset("standard", 4, 1)))
    with pytest.raises(ConfigError, match="student.*packed"):
        paired(packed, lm)
    broken = copy.deepcopy(lm)
    with torch.no_grad():
        broken.norm.weight[0] = float("nan")
    with pytest.raises(ConfigError, match="norm.weight"):
        paired(broken, lm)
