"""Language models by name: their sizes and the attention of each block."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from suffice.errors import ConfigError, check_known
from suffice.models.lm import LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition, Position
from suffice.presets import PRESETS, Shares, schedule, share
from suffice.presets.sparse import checked
from suffice.spec import AttentionSpec
from suffice.utils.files import packaged

Configured = tuple[LMConfig, list[AttentionSpec]]
"""The sizes of a model and the attention of each of its blocks: `config.build(specs)`."""


OF_THE_MAPS = ("head_dim", "scale", "norm")
"""Fields of a spec that belong to Standard's maps of queries and keys."""
OF_THE_MODEL = (*OF_THE_MAPS, "pattern", "position", "kernel")
"""Fields of a spec that a model sets where its mechanism leaves them as in standard attention."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A row of `CONFIGURATIONS`."""

    make: Callable[[], Configured]  # returns the sizes and the attention of each block; called once
    mechanism: str = "standard"
    # fields of the config that a caller may change
    options: tuple[str, ...] = ("vocabulary_size", "length", "dropout")

    @cached_property
    def made(self) -> Configured:
        """The sizes and the attention of each block."""
        return self.make()

    def spec_of(self, block: int) -> AttentionSpec:
        """Return the attention of a block, also of one behind the last: kinds of layers repeat."""
        specs = self.made[1]
        repeats = (n for n in range(1, len(specs)) if specs[n:] == specs[:-n])
        return specs[block % next(repeats, len(specs))]


def published() -> list[dict[str, Any]]:
    """Return published decoders: a config.json, its parameters and their source.

    Rows with a "name" are complete and in `CONFIGURATIONS`; those with a "title" stand on the
    studio's page, with the sizes alone and, under "also", what a config.json cannot say.
    """
    return packaged("models", PUBLISHED)


def _gpt(d_model: int, depth: int, num_heads: int, **sizes: Any) -> Configuration:
    """Return GPT-2's architecture without biases, which no class of transformers has."""
    config = LMConfig(d_model=d_model, depth=depth, mlp_width=4 * d_model, bias=False, **sizes)
    return Configuration(
        make=lambda: (config, layers("standard", config, num_heads)),
        options=("vocabulary_size", "length", "dropout", "bias"),
    )


def _read(entries: dict[str, Any]) -> Configured:
    from suffice.models.architectures.architecture import ConfigReader
    from suffice.models.architectures.hugging_face import ARCHITECTURES

    config, specs = ARCHITECTURES[entries["model_type"]].sizes(ConfigReader(entries, PUBLISHED))
    return config, list(specs)


def _mechanism(entries: dict[str, Any]) -> str:
    heads = entries["num_attention_heads"]
    return "gqa" if entries.get("num_key_value_heads", heads) < heads else "standard"


PUBLISHED = "published.json"
CONFIGURATIONS: dict[str, Configuration] = {
    # nanoGPT, config/train_shakespeare_char.py; 65 are the characters of Tiny Shakespeare
    "nanogpt_char": _gpt(384, 6, 6, vocabulary_size=65, length=256, dropout=0.2),
    # nanoGPT, README, "I only have a macbook"
    "nanogpt_char_cpu": _gpt(128, 4, 4, vocabulary_size=65, length=64),
    # nanoGPT, train.py: 124,373,760 parameters, of which 786,432 are positions; GPT-2's 50,257
    # tokens are rounded up to a multiple of 64
    "gpt2_124m": _gpt(768, 12, 12, vocabulary_size=50_304, length=1024),
    **{
        row["name"]: Configuration(
            make=partial(_read, row["config"]),
            mechanism=row.get("mechanism", _mechanism(row["config"])),
        )
        for row in published()
        if "name" in row
    },
}


def configuration(
    name: str, mechanism: str | None = None, *, num_heads: int | None = None, **options: Any
) -> Configured:
    """Return a named language model's sizes and the attention of each of its blocks.

    Args:
        name: name of the model, see `CONFIGURATIONS`.
        mechanism: mechanism of its attention; None: the model's own.
        num_heads: query heads; None: the model's own.
        **options: `vocabulary_size`, `length`, `dropout`, `bias` for GPTs, options of the
            mechanism, and those of `layers`, such as `window` and `full_every`.

    Raises:
        ConfigError: for an unknown name, mechanism or option, or sizes that do not fit.

    Example:
        >>> config, specs = configuration("gpt2_124m", "efficient", window=256, full_every=6)
        >>> sum(p.numel() for p in config.build(specs, device="meta").parameters())
        110217984
    """
    check_known("configuration", name, CONFIGURATIONS)
    row = CONFIGURATIONS[name]
    sizes = {option: options.pop(option) for option in row.options if option in options}
    config = replace(row.made[0], **sizes)
    return config, attention_of(name, config, mechanism, num_heads=num_heads, **options)


def attention_of(
    name: str,
    config: LMConfig,
    mechanism: str | None = None,
    *,
    num_heads: int | None = None,
    **options: Any,
) -> list[AttentionSpec]:
    """Return the attention of a named model's blocks in other sizes; see `configuration`."""
    row = CONFIGURATIONS[name]
    own, given = row.made[1], {"window", "full_every"} & options.keys()
    if given and any(spec.pattern != Causal() for spec in own):
        raise ConfigError(
            f"{', '.join(sorted(given))}: {name} has a fixed window schedule; leave it out."
        )
    mechanism = row.mechanism if mechanism is None else mechanism
    if own[0].kv_heads < own[0].num_heads and "num_kv_heads" in _options_of(mechanism):
        options = {"num_kv_heads": own[0].kv_heads, **options}
    heads = own[0].num_heads if num_heads is None else num_heads
    specs = layers(mechanism, config, heads, **options)
    return [_filled(spec, row.spec_of(n)) for n, spec in enumerate(specs)]


def _filled(spec: AttentionSpec, model: AttentionSpec) -> AttentionSpec:
    """Return a spec with the model's fields that its mechanism leaves as in standard attention."""
    plain = AttentionSpec(d_model=spec.d_model, num_heads=spec.num_heads, pattern=Causal())
    names = set(OF_THE_MODEL) - set(() if spec.encoder == plain.encoder else OF_THE_MAPS)
    left = {n: getattr(model, n) for n in names if getattr(spec, n) == getattr(plain, n)}
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

    Biases, dropout and the longest input are the config's, where the mechanism has them. A
    `position` encodes where the mechanism has none. Keys at a distance below `window` are visible;
    a mechanism with a window takes it as its own, any other is restricted to it. Layers n - 1,
    2 n - 1, ... see every earlier position for full_every n, and are standard attention for
    softmax_every n.

    Example:
        >>> sizes = dict(vocabulary_size=9, length=32, d_model=8, depth=3, mlp_width=8)
        >>> specs = layers("efficient", LMConfig(**sizes), 2, window=4, full_every=3)
        >>> [str(s.pattern) for s in specs][1:]
        ['And(parts=(Window(size=4), Causal()))', 'Causal()']
    """
    check_known("mechanism", mechanism, PRESETS)
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
