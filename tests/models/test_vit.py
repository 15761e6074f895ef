from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.layers import sinusoidal
from suffice.models import ViTConfig
from suffice.presets import needs_length
from suffice.testing import assert_close, bits, drawn, normal

from . import formulas

SMALL = ViTConfig(
    image_size=6,
    patch_size=2,
    num_classes=3,
    d_model=8,
    depth=2,
    mlp_width=12,
    channels=2,
    head_widths=(7, 5),
)


def build(config, mechanism="standard", heads=2):
    length = {"length": config.length} if needs_length(mechanism) else {}
    model = config.build(preset(mechanism, config.d_model, heads, **length))
    return drawn(model, seed=1).double().eval()


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("pooling", ["mean", "flatten", "class_token", "distilled"])
def test_forward_is_the_formula(pooling, norm, positions):
    model = build(replace(SMALL, pooling=pooling, norm=norm, positions=positions))
    assert any(name == "positions" for name in model.state_dict()) is (positions == "learned")
    images = normal(4, 2, 6, 6, seed=2)
    want = torch.stack([formulas.vit(model, image) for image in images])
    assert_close(model(images), want)


def test_sinusoidal_angles_survive_half_types():
    config = replace(SMALL, positions="sinusoidal")
    model = build(config).bfloat16()
    x = torch.zeros(1, 9, 8)
    want = sinusoidal(9, 8, dtype=torch.float64)
    assert_close(model._add_positions(x.bfloat16())[0], want)
    assert_close(build(config)._add_positions(x.double())[0], want, "exact")


def test_a_model_starts_as_it_is_written():
    torch.manual_seed(5)
    config = ViTConfig(image_size=32, patch_size=4, num_classes=4, d_model=64, depth=1, mlp_width=8)
    model = replace(config, pooling="class_token").build(preset("standard", 64, 2))
    assert torch.equal(model.class_token, torch.zeros(64))
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.05)
    bound = (6 / (16 + 64)) ** 0.5
    assert bound * 0.98 < model.patches.weight.abs().max().item() <= bound
    for layer in (model.patches, model.head[-1]):
        assert torch.equal(layer.bias, torch.zeros_like(layer.bias))


def test_dropout_is_where_the_config_says():
    config = replace(SMALL, dropout=0.1, head_dropout=0.3)
    model = config.build(preset("standard", 8, 2))
    drops = {name: m.p for name, m in model.named_modules() if type(m).__name__ == "Dropout"}
    for block in ("blocks.0.", "blocks.1."):
        assert drops.pop(f"{block}attention.dropout") == 0.0
        for place in ("dropout", "mlp.inner_dropout", "mlp.dropout"):
            assert drops.pop(f"{block}{place}") == 0.1
    assert drops == {"head_dropout": 0.3, "head.2": 0.3, "head.5": 0.3}


# padding


def masks(pooling):
    holes = bits(4, 9, seed=4)
    holes[:, 3] = True
    right = torch.arange(9) < torch.tensor([[9], [5], [2], [1]])
    return {"holes": holes, "right": right, "left": right.flip(1)}


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
@pytest.mark.parametrize(
    "mechanism", ["standard", "sliding_window", "super_attention", "linformer", "linear"]
)
def test_what_a_padded_patch_holds_never_matters(mechanism, pooling):
    model = build(replace(SMALL, pooling=pooling), mechanism)
    images = normal(4, 2, 6, 6, seed=2)
    for side, valid in masks(pooling).items():
        want = model(images, valid=valid)
        pixels = valid.view(4, 1, 3, 1, 3, 1).expand(4, 2, 3, 2, 3, 2).reshape(4, 2, 6, 6)
        for junk in (1e30, torch.nan, torch.inf):
            got = model(images.masked_fill(~pixels, junk), valid=valid)
            assert_close(got, want, "exact")
        assert torch.isfinite(want).all(), side


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
def test_padded_patches_are_as_if_they_were_not_there(pooling):
    model = build(replace(SMALL, pooling=pooling))
    images = normal(4, 2, 6, 6, seed=2)
    for valid in masks(pooling).values():
        want = []
        for image, real in zip(images, valid, strict=True):
            x = formulas.linear(model._patches_of(image[None])[0], model.patches)
            positions = model.positions
            if pooling == "class_token":
                x = torch.cat([model.class_token[None], x])
                real = torch.cat([torch.tensor([True]), real])
            x = (x + positions)[real]
            for block in model.blocks:
                x = formulas.block(x, block, torch.ones(len(x)), formulas.gelu)
            x = formulas.norm(x, model.norm)
            pooled = x.mean(dim=0) if pooling == "mean" else x[0]
            want.append(formulas.head(pooled, model.head, formulas.gelu))
        assert_close(model(images, valid=valid), torch.stack(want))


# sizes of the papers


def test_imagenet_of_version_2():
    sizes = ViTConfig(
        image_size=112,
        patch_size=8,
        num_classes=1000,
        d_model=768,
        depth=1,
        mlp_width=3072,
        channels=3,
        pooling="class_token",
        head_widths=(2048,),
    )
    assert (sizes.length, replace(sizes, pooling="mean").length) == (197, 196)
    model = sizes.build(preset("standard", 768, 12))
    wide = sizes.build(preset("super_attention", 768, 12, length=197))
    assert count(model.blocks[0].attention) == 2_362_368
    assert count(wide.blocks[0].attention) == 1_220_190
    # 8 blocks; table 7 prints 60.54M, a head of 2048 gives 0.1M more
    assert count(model) + 7 * count(model.blocks[0]) == pytest.approx(60.54e6, rel=0.002)


# what is refused


def test_images_of_another_size_are_refused():
    with pytest.raises(ShapeError, match=r"images has shape \[1, 2, 6, 8\]"):
        build(SMALL)(torch.zeros(1, 2, 6, 8))


def test_a_mask_that_does_not_fit_is_refused():
    model, images = build(SMALL), torch.zeros(2, 2, 6, 6).double()
    with pytest.raises(ShapeError, match=r"valid has shape \[2, 10\]"):
        model(images, valid=torch.ones(2, 10, dtype=torch.bool))
    with pytest.raises(MaskError, match="valid has dtype torch.float32"):
        model(images, valid=torch.ones(2, 9))
    flat = build(replace(SMALL, pooling="flatten"))
    with pytest.raises(ConfigError, match="pooling='flatten'"):
        flat(images, valid=torch.ones(2, 9, dtype=torch.bool))
