"""What a layer is to become: words such as "gqa:2" or "mqa,window:64+sinks"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.calibration import attentions
from suffice.encoders import Efficient, Latent, Optimised, Standard
from suffice.errors import ConfigError, DataError
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.spec import AttentionSpec
from suffice.text.documents import read_text

SINKS = 4  # first positions that a window keeps where it is asked for some
LEGAL = (
    "keep, standard, gqa:N, mqa, optimised, efficient, super, latent:R, input, window:W, "
    "window:W+sinks, window:W+sinks:N, several joined by commas"
)
NUMBERED = {"gqa": True, "latent": True, "window": True, "optimised": False, "efficient": False}
"""Names that take a number, and whether they need it."""
PLAIN = ("keep", "standard", "mqa", "super", "input")
WORD = re.compile(r"([a-z]+)(?::(\d{1,9}))?(?:\+sinks(?::(\d{1,9}))?)?")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of a layer.

    Args:
        name: "keep", "standard" (learned keys and values), "gqa", "optimised", "efficient",
            "super", "latent", "input" (keys and values are the layer's input itself), "window".
        number: key/value heads, the latent's width, or the window's size; None = as the layer has.
        sinks: first positions a window keeps.
    """

    name: str
    number: int | None = None
    sinks: int = 0

    def __str__(self) -> str:
        """Return the word."""
        sinks = "" if not self.sinks else f"+sinks:{self.sinks}"
        return f"{self.name}{'' if self.number is None else f':{self.number}'}{sinks}"


Steps = tuple[Step, ...]


def steps_of(text: str) -> Steps:
    """Return the changes that words name, in their order.

    Raises:
        ConfigError: with the legal words.

    Example:
        >>> [str(step) for step in steps_of("mqa,window:64+sinks")]
        ['gqa:1', 'window:64+sinks:4']
    """
    return tuple(_step(word.strip(), text) for word in text.split(","))


def _step(word: str, text: str) -> Step:
    found = WORD.fullmatch(word)
    name = found[1] if found else ""
    if found is None or name not in (*NUMBERED, *PLAIN):
        of = "" if word == text else f" in {text!r:.80}"
        said, names = word.partition(":")[0], [*NUMBERED, *PLAIN]
        near = [] if said in names else get_close_matches(said, names, n=1, cutoff=0.5)
        hint = f" did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown target {word!r:.80}{of};{hint} legal: {LEGAL}.")
    number = None if found[2] is None else int(found[2])
    if number == 0 or (number is None and NUMBERED.get(name, False)):
        given = "0" if number == 0 else "none"
        raise ConfigError(f"target {word!r} takes a number of at least 1, got {given}; as gqa:2.")
    if number is not None and name in PLAIN:
        raise ConfigError(f"target {word!r}: {name} takes no number.")
    sinks = 0
    if "+" in word:
        if name != "window":
            raise ConfigError(f"target {word!r}: only a window keeps sinks.")
        sinks = SINKS if found[3] is None else int(found[3])
    if name == "mqa":
        name, number = "gqa", 1
    return Step(name=name, number=number, sinks=sinks)


def spec_after(step: Step, spec: AttentionSpec, length: int | None) -> AttentionSpec:
    """Return the composition of a layer after one change.

    Args:
        step: the change.
        spec: before it.
        length: the longest input of the model, tokens; None = any.

    Raises:
        ConfigError: if there is no such layer, saying why.
    """
    if step.name == "keep":
        return spec
    if step.name == "window":
        return replace(spec, pattern=_window(spec.pattern, step))
    return _SPECS[step.name](spec, step.number, length)


def _shared(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    return replace(spec, encoder=Standard(), num_kv_heads=number)


def _standard(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    return replace(spec, encoder=Standard())


def _optimised(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    return replace(spec, encoder=Optimised(), num_kv_heads=number or spec.num_kv_heads)


def _efficient(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    return replace(spec, encoder=Efficient(), num_kv_heads=number or spec.num_kv_heads)


def _super(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    if length is None:
        raise ConfigError(
            "super fixes the longest input, and this layer stands in no model that has one; give "
            "length=."
        )
    if spec.mixing != NoMixing():
        raise ConfigError(f"super: the layer mixes its values already, by {spec.mixing!r}.")
    aligned = Alignment(length, bias=spec.bias, init="identity")
    return replace(_efficient(spec, None, None), mixing=aligned)


def _latent(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    _refuse_between(spec, f"latent:{number}")
    most = max(2 * spec.widths.kv, spec.widths.d_source)
    if number is not None and number > most:
        raise ConfigError(
            f"latent:{number} is wider than all that keys and values read; give at most {most}."
        )
    return _one_head(spec, number, Latent())


def _input(spec: AttentionSpec, number: int | None, length: int | None) -> AttentionSpec:  # noqa: ARG001
    _refuse_between(spec, "input")
    return _one_head(spec, spec.widths.d_source, Efficient())


def _one_head(spec: AttentionSpec, width: int | None, encoder: Latent | Efficient) -> AttentionSpec:
    one = {"num_kv_heads": 1, "head_dim": width, "scale": spec.score_scale}
    return replace(spec, encoder=encoder, **one)


def _refuse_between(spec: AttentionSpec, word: str) -> None:
    """Refuse layers in which something stands between the maps of queries and keys."""
    if spec.position.rotates:
        raise ConfigError(
            f"{word}: {type(spec.position).__name__} turns each head's keys by its own features, "
            "which cannot be taken into the queries' maps; share heads instead, by gqa:N or mqa."
        )
    if spec.norm.norms:
        raise ConfigError(
            f"{word}: {type(spec.norm).__name__} divides each head's keys by their size, so their "
            "map cannot be taken into the queries'; share heads instead, by gqa:N or mqa."
        )


_SPECS = {
    "gqa": _shared,
    "standard": _standard,
    "optimised": _optimised,
    "efficient": _efficient,
    "super": _super,
    "latent": _latent,
    "input": _input,
}


def _window(pattern: Pattern, step: Step) -> Pattern:
    """Return the pattern that sees so much less."""
    near: Pattern = Window(step.number)
    if step.sinks:
        near = near | Global(step.sinks)
    if isinstance(pattern, Causal):
        return near & Causal()
    return near & pattern


Target = str | Sequence[str] | Mapping[str, str]


def plan_of(model: nn.Module, target: Target) -> dict[str, Steps]:
    """Return the changes of each attention layer by the name of its module.

    Args:
        model: any with attention layers of this library.
        target: words for all layers, a list with words for each in order, or words by name, where
            a layer that is not named stays.

    Raises:
        ConfigError: if the words are not legal, or do not fit the layers.
    """
    names = list(attentions(model))
    if not names:
        raise ConfigError(
            f"{type(model).__name__} holds no attention layer of this library; convert a model of "
            "suffice.models, or read one by suffice.convert.open_source."
        )
    if isinstance(target, str):
        return dict.fromkeys(names, steps_of(target))
    if isinstance(target, Mapping):
        if strange := sorted(map(str, target.keys() - set(names))):
            raise ConfigError(
                f"the plan names {strange[0]!r}, which is no attention layer; there are "
                f"{', '.join(names[:8])}{' and more' if len(names) > 8 else ''}."  # noqa: PLR2004
            )
        return {name: steps_of(target.get(name, "keep")) for name in names}
    if len(target) != len(names):
        raise ConfigError(
            f"the plan is for {len(target)} layers and the model has {len(names)}; give one entry "
            "for each."
        )
    return {name: steps_of(words) for name, words in zip(names, target, strict=True)}


def read_plan(path: Path) -> list[str] | dict[str, str]:
    """Return the target in a file such as {"layers": ["keep", "gqa:2"]}.

    "layers" is a list in the model's order, or an object by name; "facts" may hold anything.

    Raises:
        DataError: if it is no such file.
    """
    try:
        content = read_text(path)
    except DataError as error:
        raise DataError(f"no plan can be read: {error} `suffice search` writes one.") from error
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error!s:.100}); give a plan.") from error
    layers = found.get("layers") if isinstance(found, dict) else None
    words = list(layers.values()) if isinstance(layers, dict) else layers
    legal = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not legal or found.keys() - {"layers", "facts"}:
        raise DataError(
            f'{path} is no plan; write {{"layers": ["keep", "gqa:2", ...]}} with one target for '
            'each layer, beside it only "facts".'
        )
    return layers


def plan_to_json(targets: Sequence[str], **facts: Any) -> dict[str, Any]:
    """Return what `read_plan` reads.

    Args:
        targets: words for each layer.
        **facts: what else is known of the plan.

    Raises:
        ConfigError: if words are not legal.
    """
    for words in targets:
        steps_of(words)
    return {"layers": list(targets), "facts": facts}
