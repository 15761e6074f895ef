"""Targets of a conversion, such as "gqa:2" or "mqa,window:64+sinks", and plans of them by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.calibration import attention_layers
from suffice.encoders import MLA, Efficient, Latent, Optimised, Standard
from suffice.errors import ConfigError, DataError
from suffice.kernels import Decayed, Elu
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.spec import AttentionSpec
from suffice.utils.files import read_json
from suffice.utils.grammar import parse_term

SINKS = 4  # of a window in a causal layer that does not say otherwise
NAMES_SHOWN = 8  # in one message
FORMS = (
    "keep",
    "standard",
    "gqa:N",
    "mqa",
    "optimised",
    "optimised:N",
    "efficient",
    "efficient:N",
    "super",
    "latent:R",
    "input",
    "linear",
    "gla",
    "mla:R",
    "window:W",
    "share:N",
)
LEARNED = ("linear", "gla", "mla")
"""Changes whose layers are trained on the calibration, as their weights are not a softmax's of its
queries and keys."""

ENCODERS = {
    "standard": Standard(),
    "gqa": Standard(),
    "optimised": Optimised(),
    "efficient": Efficient(),
    "super": Efficient(),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of a layer.

    Args:
        name: "keep", "standard" (learned keys and values), "gqa", "optimised", "efficient",
            "super", "latent", "input" (keys and values are the layer's input itself), "linear",
            "gla" (gated linear attention), "mla" (a latent and a rotary key), "window",
            "share" (of N neighbouring layers the first one makes keys and values for all).
        number: key/value heads, the latent's width, the window's size or N; None: as in the
            layer.
        sinks: first positions that a window always includes; None: 4 in a causal layer, else none.
    """

    name: str
    number: int | None = None
    sinks: int | None = None

    def __str__(self) -> str:
        sinks = "" if self.sinks is None else f"+sinks:{self.sinks}"
        return f"{self.name}{'' if self.number is None else f':{self.number}'}{sinks}"


Steps = tuple[Step, ...]
Target = str | Sequence[str] | Mapping[str, str]


def steps_of(text: str) -> Steps:
    """Return the changes that a target names, in order.

    Raises:
        ConfigError: naming the legal forms.

    Example:
        >>> [str(step) for step in steps_of("mqa,window:64+sinks")]
        ['gqa:1', 'window:64+sinks:4']
    """
    steps = tuple(_step(word.strip(), text) for word in text.split(","))
    if len(steps) > 1 and any(step.name == "share" for step in steps):
        raise ConfigError(
            f"target {text!r}: share relates layers, and stands alone; convert to the other "
            "changes first, and what comes out to share:N."
        )
    learned = [number for number, step in enumerate(steps) if step.name in LEARNED]
    if any(step.name != "window" for number in learned for step in steps[number + 1 :]):
        raise ConfigError(
            f"target {text!r}: {steps[learned[0]].name} comes last, as other changes read the maps "
            "of softmax attention; put them before it."
        )
    return steps


def _step(word: str, text: str) -> Step:
    head, plus, suffix = word.partition("+")
    term = parse_term(head, FORMS, kind="target", where=text)
    if term.number == 0:
        raise ConfigError(f"target {word!r}: give a number of at least 1, such as gqa:2.")
    if not plus:
        name, number = ("gqa", 1) if term.name == "mqa" else (term.name, term.number)
        return Step(name=name, number=number)
    if term.name != "window":
        raise ConfigError(f"target {word!r}: only a window has sinks, such as window:64+sinks:8.")
    sinks = parse_term(suffix, ("sinks", "sinks:N"), kind="addition to a window", where=word).number
    return Step(name=term.name, number=term.number, sinks=SINKS if sinks is None else sinks)


def spec_after(step: Step, spec: AttentionSpec, length: int | None) -> AttentionSpec:
    """Return the composition of a layer after one change.

    Args:
        step: the change.
        spec: composition before it.
        length: context length of the model, tokens; None: unlimited.

    Raises:
        ConfigError: if there is no such layer, saying why.
    """
    if step.name == "keep":
        return spec
    if step.name == "window":
        return replace(spec, pattern=_narrowed(spec.pattern, step))
    if step.name in LEARNED:
        return _learned(step, spec)
    if step.name in ("latent", "input"):
        return _one_head(step, spec)
    mixing = _alignment(spec, length) if step.name == "super" else spec.mixing
    kv_heads = step.number or spec.num_kv_heads
    return replace(spec, encoder=ENCODERS[step.name], num_kv_heads=kv_heads, mixing=mixing)


def _narrowed(pattern: Pattern, step: Step) -> Pattern:
    window: Pattern = Window(step.number)
    sinks = (SINKS if pattern.causal else 0) if step.sinks is None else step.sinks
    if sinks:
        window = window | Global(sinks)
    return window & Causal() if type(pattern) is Causal else window & pattern


def _alignment(spec: AttentionSpec, length: int | None) -> Alignment:
    if length is None:
        raise ConfigError(
            "super fixes the longest input, and this layer is in no model that has one; give "
            "length=."
        )
    if spec.mixing != NoMixing():
        raise ConfigError(f"super: the layer already mixes its values by {spec.mixing!r}.")
    return Alignment(length, bias=spec.bias, init="identity")


def _learned(step: Step, spec: AttentionSpec) -> AttentionSpec:
    if step.name != "mla":
        kernel = Elu() if step.name == "linear" else Decayed(per="feature")
        return replace(spec, kernel=kernel, scale=None)
    rope, source, width = spec.lower().rotary, spec.widths.d_source, spec.head_width
    if rope is None or spec.bias or step.number > source:
        raise ConfigError(
            f"{step}: the layer has position={spec.position!r}, bias={spec.bias} and {source} "
            f"input features; mla:R takes rotary positions, no biases, and R up to {source}. "
            "Without rotary positions take latent:R."
        )
    return replace(
        spec,
        encoder=MLA(rank=step.number, rotary_dim=rope.features or width, value_dim=width),
        num_kv_heads=None,
        head_dim=width,
        position=replace(rope, features=None),
        scale=spec.score_scale,
    )


def _one_head(step: Step, spec: AttentionSpec) -> AttentionSpec:
    between = spec.position if spec.position.rotates else spec.norm if spec.norm.norms else None
    if between is not None:
        raise ConfigError(
            f"{step}: {type(between).__name__} acts on each head's keys, so their map cannot be "
            "moved into the queries' map; share heads instead, by gqa:N or mqa."
        )
    width, encoder = spec.widths.d_source, Efficient()
    if step.name == "latent":
        widest = max(2 * spec.widths.kv, width)
        if step.number > widest:
            raise ConfigError(
                f"{step} is wider than keys and values together; give at most {widest}."
            )
        width, encoder = step.number, Latent()
    return replace(spec, encoder=encoder, num_kv_heads=1, head_dim=width, scale=spec.score_scale)


def plan_of(model: nn.Module, target: Target) -> dict[str, Steps]:
    """Return the changes of each attention layer by the name of its module.

    Args:
        model: a model with attention layers of this library.
        target: a target for all layers, a list with one for each in order, or targets by name,
            where layers without one stay.

    Raises:
        ConfigError: if a target is not legal, or the plan does not fit the layers.
    """
    names = list(attention_layers(model))
    if not names:
        raise ConfigError(
            f"{type(model).__name__} holds no attention layer of this library; convert a model of "
            "suffice.models, or open one by suffice.convert.sources.open_source."
        )
    if isinstance(target, str):
        return dict.fromkeys(names, steps_of(target))
    if isinstance(target, Mapping):
        if unknown := sorted(map(str, target.keys() - set(names))):
            more = " and more" if len(names) > NAMES_SHOWN else ""
            raise ConfigError(
                f"the plan names {unknown[0]!r}, which is not an attention layer; there are "
                f"{', '.join(names[:NAMES_SHOWN])}{more}."
            )
        return {name: steps_of(target.get(name, "keep")) for name in names}
    if len(target) != len(names):
        raise ConfigError(
            f"the plan is for {len(target)} layers and the model has {len(names)}; give one entry "
            "for each."
        )
    return {name: steps_of(words) for name, words in zip(names, target, strict=True)}


def read_plan(path: Path) -> list[str] | dict[str, str]:
    """Return the targets in a file such as {"layers": ["keep", "gqa:2"]}.

    "layers" is a list in the model's order, or an object by name; "facts" may hold anything.

    Raises:
        DataError: if it is not such a file.
    """
    plan = read_json(path, advice="Give a plan, such as `suffice search` writes.")
    layers = plan.get("layers") if isinstance(plan, dict) else None
    targets = list(layers.values()) if isinstance(layers, dict) else layers
    legal = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
    if not legal or plan.keys() - {"layers", "facts"}:
        raise DataError(
            f'{path} is not a plan; write {{"layers": ["keep", "gqa:2", ...]}} with one target for '
            'each layer, and nothing else but "facts".'
        )
    return layers


def plan_to_json(targets: Sequence[str], **facts: Any) -> dict[str, Any]:
    """Return the content of a file for `read_plan`.

    Args:
        targets: target of each layer.
        **facts: further entries.

    Raises:
        ConfigError: if a target is not legal.
    """
    for target in targets:
        steps_of(target)
    return {"layers": list(targets), "facts": facts}
