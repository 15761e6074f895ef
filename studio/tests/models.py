"""Small checkpoints of every kind that the studio opens, and a picture."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from suffice import preset
from suffice.models import ClassifierConfig, LMConfig, ViTConfig, checkpoint, folder
from suffice.models.folder import CONFIG, WEIGHTS
from suffice.text import Characters
from suffice.train.recipes import recipe

LETTERS = "abcdefgh ,."


def write_lm(path: Path, mechanism: str = "standard", **options) -> Path:
    """A language model as `suffice train` leaves one."""
    torch.manual_seed(0)
    config = LMConfig(
        vocabulary_size=len(LETTERS), length=32, d_model=16, depth=2, mlp_width=16, start=0.5
    )
    spec = preset(mechanism, 16, 2, causal=True, **options)
    folder.save(path, config.build(spec), Characters(LETTERS))
    return path


def write_vit(path: Path, **sizes) -> Path:
    """An image classifier as `suffice convert` leaves one."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 2, "num_classes": 3, "mlp_width": 8} | sizes
    config = ViTConfig(d_model=8, depth=2, **sizes)
    specs = [preset("super_attention", 8, 2, length=config.length)] * 2
    return _described(path, config, specs, "image classifier")


def write_classifier(path: Path) -> Path:
    """A text classifier as `suffice convert` leaves one: without a tokenizer."""
    torch.manual_seed(0)
    config = ClassifierConfig(
        vocabulary_size=20, length=12, num_classes=2, d_model=8, depth=1, mlp_width=8
    )
    return _described(
        path, config, [preset("linformer", 8, 2, length=12, rank=4)], "text classifier"
    )


def _described(path: Path, config, specs, kind: str) -> Path:
    path.mkdir(parents=True)
    model = config.build(specs)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    facts = {
        "model": config.to_json(),
        "specs": [spec.to_json() for spec in specs],
        "kind": kind,
    }
    (path / CONFIG).write_text(json.dumps(facts))
    checkpoint.save_model(path / WEIGHTS, model, facts)
    return path


def write_cell(path: Path, mechanism: str = "longformer") -> Path:
    """A model as `suffice compare` leaves one."""
    from suffice.comparison.plan import describe

    torch.manual_seed(0)
    small = recipe("digits_vit")
    facts = {
        "recipe": describe(small),
        "specs": [spec.to_json() for spec in small.specs(mechanism, 4)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save_model(path, small.build(mechanism, 4), facts)
    return path


def picture(path: Path | None = None) -> str:
    """A picture as base64, and in a file."""
    pixels = np.add.outer(np.arange(16), np.arange(16)) * 8
    png = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(png, "PNG")
    if path is not None:
        path.write_bytes(png.getvalue())
    return base64.b64encode(png.getvalue()).decode()
