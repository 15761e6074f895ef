"""Facts of a mechanism in words: its axes, what it stores, and the parts of its docstring.

`catalogue.json` holds those of all mechanisms, so that `suffice list` and the completion of the
shell need not import torch. `docs.catalogue` writes it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from suffice.presets import PRESETS, preset, takes_length
from suffice.spec import AttentionSpec
from suffice.spec.cost import Cost
from suffice.view.drawing import brief

DEFAULTS = {
    "encoder": "Standard",
    "pattern": "Full",
    "mixing": "NoMixing",
    "kernel": "Softmax",
    "norm": "NoNorm",
    "past": "NoPast",
    "combine": "Concat",
}
"""The axes of multi-head attention over every key."""
WITH_SEGMENTS, SEGMENTS_DRAWN = ("infini",), 4
SHARING = ("cla",)  # mechanisms whose second layer reads the cache of the first


def sized(
    name: str, d_model: int, num_heads: int, /, *, length: int, **options: object
) -> AttentionSpec:
    """Return the spec of a mechanism, made for this length if it is made for one."""
    if name in PRESETS and takes_length(name):
        options["length"] = length
    return preset(name, d_model, num_heads, **options)


def drawn_spec(
    name: str, d_model: int, num_heads: int, /, *, length: int, **options: object
) -> AttentionSpec:
    """Return the spec of a mechanism for a drawing, with four segments or a shared layer if any."""
    if name in WITH_SEGMENTS:
        options.setdefault("segment", max(1, length // SEGMENTS_DRAWN))
    if name in SHARING:
        options.setdefault("layer", 1)
    return sized(name, d_model, num_heads, length=length, **options)


def state(cost: Cost, numbers: str = "", fixed: str = " fixed") -> str:
    """Return how many numbers a streaming layer stores, per token or in all; "none": it cannot."""
    counts = [f"{cost.state_numbers:,}{numbers}"] if cost.state_numbers else []
    if cost.state_fixed:
        counts.append(f"{cost.state_fixed:,}{fixed}")
    return " + ".join(counts) or "none"


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key."""
    changed = [a for a, default in DEFAULTS.items() if type(getattr(spec, a)).__name__ != default]
    names = [brief(getattr(spec, axis)) for axis in changed]
    if spec.kv_heads != spec.num_heads:
        heads = f"{spec.kv_heads} KV head{'s' if spec.kv_heads > 1 else ''}"
        names.insert(len({"encoder", "pattern"} & set(changed)), heads)
    if spec.position.absolute:
        names.append(brief(spec.position))
    if spec.shares is not None:
        names.append(f"keys and values of layer {spec.shares}")
    return ", ".join(names) or "Standard"


@dataclass(frozen=True, kw_only=True)
class Description:
    """The parts of a mechanism's docstring."""

    paragraphs: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]  # name and meaning
    cost: str
    source: str

    @property
    def identifier(self) -> str:
        """The shortest name of the source: its arXiv number if it has one."""
        number = re.search(r"arXiv:\d+\.\d+", self.source)
        return number.group() if number else self.source

    @property
    def citation(self) -> str:
        """Authors, year and identifier, without the section."""
        before, identifier, _ = self.source.partition(self.identifier)
        return before + identifier


_SECTION = re.compile(r"^(Args|Shapes|Returns|Raises|Example|Cost|Source):", re.MULTILINE)
_ARGUMENT = re.compile(r"^ {4}\*{0,2}(\w+): (.*(?:\n(?! {4}\S).*)*)", re.MULTILINE)


def describe(documented: object) -> Description:
    """Split the docstring of a function or a class into its parts.

    By hand because "Cost: ..." and "Source: ..." begin on the line of their title, which the
    parsers of Google's style do not read.
    """
    prose, *rest = _SECTION.split(inspect.getdoc(documented) or "")
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    return Description(
        paragraphs=tuple(filter(None, map(_one_line, re.split(r"\n\s*\n", prose)))),
        arguments=tuple(
            (name, _one_line(meaning))
            for name, meaning in _ARGUMENT.findall(sections.get("Args", ""))
        ),
        cost=_one_line(sections.get("Cost", "")),
        source=_one_line(sections.get("Source", "")).rstrip("."),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
