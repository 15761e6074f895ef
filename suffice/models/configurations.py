"""Language models by name: their sizes and the attention of each block."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from suffice.encoders import HeadRMS, ProjectionRMS
from suffice.errors import ConfigError, unknown
from suffice.kernels import Softmax
from suffice.models.lm import LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import Llama3Scaling, NoPosition, Position, Rope
from suffice.presets import PRESETS, Shares, schedule, share
from suffice.presets.sparse import checked
from suffice.spec import AttentionSpec

Configured = tuple[LMConfig, list[AttentionSpec]]
"""The sizes of a model and the attention of each of its blocks: `config.build(specs)`."""


OF_THE_MAPS = ("head_dim", "scale", "norm")
"""Fields of a spec that belong to Standard's maps of queries and keys."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A row of `CONFIGURATIONS`.

    Args:
        config: the sizes.
        num_heads: query heads.
        mechanism: of the attention.
        num_kv_heads: for mechanisms that share key/value heads.
        attention: fields of every layer's spec, where the mechanism leaves them as they are.
        local: further fields of all layers but each `period`th, which is the last of its group.
        period: 1 = every layer is the same.
        options: fields of the config that a caller may change.
    """

    config: LMConfig
    num_heads: int
    mechanism: str = "standard"
    num_kv_heads: int | None = None
    attention: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    period: int = 1
    options: tuple[str, ...] = ("vocabulary_size", "length", "dropout")


def _gpt(d_model: int, depth: int, num_heads: int, **sizes: Any) -> Configuration:
    """GPT-2's architecture: learned positions, layer norms, GELU, a tied head."""
    config = LMConfig(d_model=d_model, depth=depth, mlp_width=4 * d_model, bias=False, **sizes)
    options = ("vocabulary_size", "length", "dropout", "bias")
    return Configuration(config=config, num_heads=num_heads, options=options)


def _llama(
    d_model: int, depth: int, num_heads: int, mlp_width: int, **others: Any
) -> Configuration:
    """Llama's architecture: rotary positions, RMS norms, SwiGLU, no biases, Llama 2's tokens."""
    names = ("mechanism", "num_kv_heads", "local", "period")
    row = {name: others.pop(name) for name in names if name in others}
    attention = {"position": Rope(), **others.pop("attention", {})}
    fields = {"vocabulary_size": 32_000, "activation": "swiglu", "norm": "rms", "bias": False}
    sizes = {"d_model": d_model, "depth": depth, "mlp_width": mlp_width, "positions": "none"}
    config = LMConfig(**(sizes | fields | others))
    return Configuration(config=config, num_heads=num_heads, attention=attention, **row)


def _gemma_3(
    d_model: int, depth: int, num_kv_heads: int, mlp_width: int, **others: Any
) -> Configuration:
    """Gemma 3: five windows to one full layer, which rotates slower; norms on all sides."""
    attention = {"head_dim": 256, "norm": HeadRMS(eps=1e-6), "position": Rope(theta=1e6)}
    return _llama(
        d_model,
        depth,
        4,
        mlp_width,
        mechanism="gqa",
        num_kv_heads=num_kv_heads,
        attention=attention | {"scale": 256**-0.5},
        local={"pattern": Window(512) & Causal(), "position": Rope(theta=1e4)},
        period=6,
        vocabulary_size=262_144,
        length=32_768,
        activation="geglu_tanh",
        residual="both",
        eps=1e-6,
        **others,
    )


CONFIGURATIONS: dict[str, Configuration] = {
    # nanoGPT, config/train_shakespeare_char.py; 65 are the characters of Tiny Shakespeare
    "nanogpt_char": _gpt(384, 6, 6, vocabulary_size=65, length=256, dropout=0.2),
    # nanoGPT, README, "I only have a macbook"
    "nanogpt_char_cpu": _gpt(128, 4, 4, vocabulary_size=65, length=64),
    # nanoGPT, train.py: 124,373,760 parameters, of which 786,432 are positions; GPT-2's 50,257
    # tokens are rounded up to a multiple of 64
    "gpt2_124m": _gpt(768, 12, 12, vocabulary_size=50_304, length=1024),
    # llama2.c, README, "models": stories15M and stories110M
    "llama_15m": _llama(288, 6, 6, mlp_width=768, length=256),
    "llama_110m": _llama(768, 12, 12, mlp_width=2048, length=1024),
    # TinyLlama; Zhang et al. 2024, arXiv:2401.02385, table 2
    "tinyllama_1b": _llama(
        2048, 22, 32, mlp_width=5632, length=2048, tied=False, mechanism="gqa", num_kv_heads=4
    ),
    # One wide head; published by the authors of Hosseini et al. 2024, arXiv:2403.01643
    "efficient_1b": _llama(
        3072, 10, 1, mlp_width=8192, length=2048, tied=False, eps=1e-6, mechanism="efficient"
    ),
    # Grattafiori et al. 2024, arXiv:2407.21783, table 3, and the published configuration
    "llama_3_2_1b": _llama(
        2048,
        16,
        32,
        mlp_width=8192,
        length=131_072,
        vocabulary_size=128_256,
        mechanism="gqa",
        num_kv_heads=8,
        attention={
            "position": Rope(
                theta=5e5,
                scaling=Llama3Scaling(factor=32.0),
            )
        },
    ),
    # Qwen Team 2025, arXiv:2505.09388, table 1
    "qwen3_0_6b": _llama(
        1024,
        28,
        16,
        mlp_width=3072,
        length=40_960,
        vocabulary_size=151_936,
        eps=1e-6,
        mechanism="gqa",
        num_kv_heads=8,
        attention={"head_dim": 128, "norm": HeadRMS(eps=1e-6), "position": Rope(theta=1e6)},
    ),
    # Gemma Team 2024, arXiv:2408.00118, table 1: every second layer has a window
    "gemma2_2b": _llama(
        2304,
        26,
        8,
        mlp_width=9216,
        length=8192,
        vocabulary_size=256_000,
        activation="geglu_tanh",
        residual="both",
        eps=1e-6,
        logit_cap=30.0,
        mechanism="gqa",
        num_kv_heads=4,
        attention={"head_dim": 256, "scale": 256**-0.5, "kernel": Softmax(cap=50.0)},
        local={"pattern": Window(4096) & Causal()},
        period=2,
    ),
    # Gemma Team 2025, arXiv:2503.19786, section 2, and the published configurations
    "gemma3_270m": _gemma_3(640, 18, 1, mlp_width=2048),
    "gemma3_1b": _gemma_3(1152, 26, 1, mlp_width=6912),
    # Hugging Face 2025, the published configuration: each fourth layer has no positions
    "smollm3_3b": _llama(
        2048,
        36,
        16,
        mlp_width=11_008,
        length=65_536,
        vocabulary_size=128_256,
        eps=1e-6,
        mechanism="gqa",
        num_kv_heads=4,
        attention={"position": NoPosition()},
        local={"position": Rope(theta=5e6)},
        period=4,
    ),
    # OLMo Team 2025, arXiv:2501.00656: norms behind the branches, of queries and keys over heads
    "olmo2_1b": _llama(
        2048,
        16,
        16,
        mlp_width=8192,
        length=4096,
        vocabulary_size=100_352,
        eps=1e-6,
        residual="out",
        tied=False,
        attention={"norm": ProjectionRMS(eps=1e-6), "position": Rope(theta=5e5)},
    ),
}


def configuration(
    name: str, mechanism: str | None = None, *, num_heads: int | None = None, **options: Any
) -> Configured:
    """Return a named language model's sizes and the attention of each of its blocks.

    Args:
        name: of the model, see `CONFIGURATIONS`.
        mechanism: of its attention; None = the model's own.
        num_heads: query heads; None = the model's own.
        **options: `vocabulary_size`, `length`, `dropout`, `bias` for GPTs, options of the
            mechanism, and those of `layers`, such as `window` and `full_every`.

    Raises:
        ConfigError: for an unknown name, mechanism or option, or sizes that do not fit.

    Example:
        >>> config, specs = configuration("gpt2_124m", "efficient", window=256, full_every=6)
        >>> sum(p.numel() for p in config.build(specs, device="meta").parameters())
        110217984
    """
    if name not in CONFIGURATIONS:
        raise unknown("configuration", name, CONFIGURATIONS)
    row = CONFIGURATIONS[name]
    sizes = {option: options.pop(option) for option in row.options if option in options}
    config = replace(row.config, **sizes)
    return config, attention_of(name, config, mechanism, num_heads=num_heads, **options)


def attention_of(
    name: str,
    config: LMConfig,
    mechanism: str | None = None,
    *,
    num_heads: int | None = None,
    **options: Any,
) -> list[AttentionSpec]:
    """Return the attention of a named model's blocks in other sizes.

    Args and errors: of `configuration`.
    """
    row = CONFIGURATIONS[name]
    if "pattern" in row.local and (given := {"window", "full_every"} & options.keys()):
        raise ConfigError(
            f"{', '.join(sorted(given))}: {name} says itself which of its layers have windows."
        )
    mechanism = row.mechanism if mechanism is None else mechanism
    if row.num_kv_heads is not None and "num_kv_heads" in _options_of(mechanism):
        options = {"num_kv_heads": row.num_kv_heads, **options}
    heads = row.num_heads if num_heads is None else num_heads
    specs = layers(mechanism, config, heads, **options)
    return [
        _filled(spec, {**row.attention, **(row.local if number % row.period else {})})
        for number, spec in enumerate(specs, start=1)
    ]


def _filled(spec: AttentionSpec, fields: Mapping[str, Any]) -> AttentionSpec:
    """Return a spec with the fields that its mechanism leaves as they are in standard attention."""
    plain = AttentionSpec(d_model=spec.d_model, num_heads=spec.num_heads, pattern=Causal())
    own = () if spec.encoder == plain.encoder else OF_THE_MAPS
    left = {
        name: value
        for name, value in fields.items()
        if name not in own and getattr(spec, name) == getattr(plain, name)
    }
    return replace(spec, **left)


def layers(
    mechanism: str,
    config: LMConfig,
    num_heads: int,
    *,
    position: Position | None = None,
    window: int | None = None,
    full_every: int | None = None,
    num_kv_heads: int | None = None,
    softmax_every: int | None = None,
    shares: Shares | None = None,
    **options: Any,
) -> list[AttentionSpec]:
    """Return causal specs of a published mechanism for each block of a model.

    Biases, dropout and the longest input are the config's, where the mechanism has them.

    Args:
        mechanism: its name, see `suffice.presets.PRESETS`.
        config: the sizes.
        num_heads: query heads.
        position: of each layer whose mechanism has none of its own.
        window: keys at a distance below it are visible, the query's own included. A mechanism
            with a window takes it as its own, any other one is restricted to it as well.
        full_every: layers n - 1, 2 n - 1, ... see every earlier position instead; 6 gives five
            windows to one full layer.
        num_kv_heads: of each layer, whether or not the mechanism shares heads by itself.
        softmax_every: layers n - 1, 2 n - 1, ... are standard attention instead; 4 gives three
            layers of the mechanism to one of standard attention.
        shares: which layers read keys and values of others, see `suffice.presets.share`.
        **options: others of the mechanism's function; unknown ones are refused.

    Raises:
        ConfigError: for an unknown mechanism or option, sizes that do not fit, or a full_every
            that changes nothing.

    Example:
        >>> sizes = dict(vocabulary_size=9, length=32, d_model=8, depth=3, mlp_width=8)
        >>> specs = layers("efficient", LMConfig(**sizes), 2, window=4, full_every=3)
        >>> [str(s.pattern) for s in specs][1:]
        ['And(parts=(Window(size=4), Causal()))', 'Causal()']
    """
    if mechanism not in PRESETS:
        raise unknown("mechanism", mechanism, PRESETS)
    legal = _options_of(mechanism)
    defaults = {"bias": config.bias, "dropout": config.dropout, "length": config.length}
    optional = {"window": window, "full_every": full_every, "num_kv_heads": num_kv_heads}
    options = {
        **{name: value for name, value in defaults.items() if name in legal},
        **options,
        **{name: v for name, v in optional.items() if name in legal and v is not None},
    }
    specs = schedule(
        mechanism, config.d_model, num_heads, depth=config.depth, causal=True, **options
    )
    if window is not None and "window" not in legal:
        specs = [replace(spec, pattern=Window(window) & spec.pattern) for spec in specs]
    if full_every is not None and "full_every" not in legal:
        checked("full_every", full_every)
        if all(spec.pattern == Causal() for spec in specs):
            raise ConfigError(
                f"full_every={full_every}: every layer sees all earlier positions already; give a "
                "window= for the others."
            )
        full = [replace(spec, pattern=Causal()) for spec in specs]
        specs = _interleaved(specs, full, full_every)
    if num_kv_heads is not None and "num_kv_heads" not in legal:
        specs = [replace(spec, num_kv_heads=num_kv_heads) for spec in specs]
    if softmax_every is not None:
        checked("softmax_every", softmax_every)
        standard = layers("standard", config, num_heads, num_kv_heads=num_kv_heads)
        specs = _interleaved(specs, standard, softmax_every)
    if position is not None:
        specs = [replace(s, position=position) if s.position == NoPosition() else s for s in specs]
    return specs if shares is None else share(specs, shares)


def _options_of(mechanism: str) -> frozenset[str]:
    preset = PRESETS.get(mechanism)
    return frozenset() if preset is None else frozenset(inspect.signature(preset).parameters)


def _interleaved(
    specs: list[AttentionSpec], others: list[AttentionSpec], every: int
) -> list[AttentionSpec]:
    pairs = enumerate(zip(specs, others, strict=True), start=1)
    return [spec if number % every else other for number, (spec, other) in pairs]
