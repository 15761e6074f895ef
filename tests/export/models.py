"""Small models with drawn weights, and folders of them."""

from __future__ import annotations

from dataclasses import replace

from suffice import AttentionSpec, preset
from suffice.encoders import Efficient, HeadRMS
from suffice.kernels import Softmax
from suffice.models import LMConfig, folder
from suffice.models.classifier import ClassifierConfig
from suffice.models.vit import ViTConfig
from suffice.patterns import Causal, Global, Window
from suffice.positions import Alibi, Rope
from suffice.presets import share
from suffice.testing import drawn
from suffice.text import Characters

TEXT = "to be or not to be, that is the question. "
SIZES = {"vocabulary_size": 19, "length": 80, "d_model": 32, "depth": 2, "mlp_width": 48}
ROTARY = {"activation": "swiglu", "norm": "rms", "positions": "none", "bias": False}
SPEC = AttentionSpec(d_model=32, num_heads=4, pattern=Causal(), encoder=Efficient())
TURNING = replace(SPEC, position=Rope(layout="interleaved"), bias=False)
NEAR = Window(5) & Causal()


def language(spec=SPEC, *, seed=1, **sizes):
    return drawn(LMConfig(**{**SIZES, **sizes}).build(spec), seed=seed).eval().requires_grad_(False)


def classifier(spec=None, **sizes):
    spec = spec or AttentionSpec(d_model=32, num_heads=4, encoder=Efficient())
    config = ClassifierConfig(**{**SIZES, "num_classes": 3, **sizes})
    return drawn(config.build(spec), seed=2).eval().requires_grad_(False)


def bert(spec=None, **sizes):
    like = {"pooling": "first", "head_widths": (32,), "head_activation": "tanh"}
    return classifier(spec, **{**like, "embedding_norm": True, "activation": "gelu", **sizes})


def modern(spec=None, **sizes):
    near = AttentionSpec(d_model=32, num_heads=4, pattern=Window(5), position=Rope(50.0))
    wide = AttentionSpec(d_model=32, num_heads=4, encoder=Efficient(), position=Rope())
    like = {"norm": "pre", "activation": "geglu", "positions": "none", "embedding_norm": True}
    like |= {"head_widths": (32,), "head_activation": "gelu", "head_norm": True, "bias": False}
    like |= {"first_norm": False, "final_norm": True, "eps": 1e-5}
    return classifier(spec or [wide, near], **{**like, **sizes})


def pictures(spec=None, **sizes):
    spec = spec or AttentionSpec(d_model=32, num_heads=4, encoder=Efficient())
    small = {"image_size": 8, "patch_size": 4, "num_classes": 5, "d_model": 32, "depth": 1}
    config = ViTConfig(
        **{**small, "mlp_width": 48, "channels": 3, "pooling": "class_token"} | sizes
    )
    return drawn(config.build(spec), seed=3).eval().requires_grad_(False)


def saved(path, lm=None):
    """Write a language model of the characters of TEXT and return it."""
    tokenizer = Characters.of([TEXT])
    lm = lm or language(TURNING, **ROTARY, depth=1, vocabulary_size=tokenizer.vocabulary_size)
    folder.save(path, lm, tokenizer)
    return lm


STREAMING = {
    "efficient": (SPEC, {}),
    "turning": (TURNING, ROTARY),
    "window": (replace(SPEC, pattern=NEAR, num_kv_heads=2), {}),
    "sinks": (replace(SPEC, pattern=(Window(4) | Global(2)) & Causal(), position=Alibi()), {}),
    "mixed layers": (
        [SPEC, replace(TURNING, pattern=NEAR, bias=True)],
        {"positions": "sinusoidal"},
    ),
    "super": (preset("super_attention", 32, 4, length=80, causal=True), {}),
    "toeplitz": (replace(preset("toeplitz_super", 32, 4, causal=True), position=Rope()), {}),
    "shared": (share([replace(TURNING, num_kv_heads=2)] * 2, 2), ROTARY),
    "shared and mixed": (
        share([preset("super_attention", 32, 4, length=80, causal=True)] * 3, 2),
        {"depth": 3},
    ),
    "normalised": (replace(TURNING, norm=HeadRMS(1e-2), num_kv_heads=2), ROTARY),
    "caps and sinks": (
        replace(TURNING, kernel=Softmax(cap=2.0, sink=True), num_kv_heads=2, pattern=NEAR),
        {**ROTARY, "residual": "both", "logit_cap": 3.0},
    ),
    "standard alignment": (
        replace(
            preset("super_attention", 32, 4, length=80, causal=True),
            encoder=preset("standard", 32, 4).encoder,
        ),
        {},
    ),
}
