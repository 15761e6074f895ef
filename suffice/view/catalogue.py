"""Every mechanism by its published name, with its composition, cost and source.

`write` stores it as `catalogue.json`, so that `suffice list` and the completion of the shell need
not import torch; `make docs` calls it, and a test compares the file with `catalogue()`.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from suffice.presets import PRESETS, TITLES, preset, schedule, takes_length
from suffice.spec import AttentionSpec
from suffice.spec.cost import Cost
from suffice.view.drawing import brief

FILE = Path(__file__).with_name("catalogue.json")
EVERY_PAIR, SOME_PAIRS = "Every pair", "Some pairs: sparse patterns"
MIXED, FEATURES = "Token mixing before attention", "Linear attention (no pairwise scores)"
RECURRENT = "No pairs: a state that decays or is corrected"
SEGMENTS = "Segments, and a memory of those before"
GROUPS = (EVERY_PAIR, MIXED, SOME_PAIRS, FEATURES, RECURRENT, SEGMENTS)
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
COUNTED_LAYERS = 2  # that costs are the means of
D_MODEL, HEADS, LENGTH = 256, 4, 1024


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
    """Return the spec of a mechanism for a drawing.

    With at least four segments if it has any, and of a layer that shares if one does.
    """
    if name in WITH_SEGMENTS:
        options.setdefault("segment", max(1, length // SEGMENTS_DRAWN))
    if name in SHARING:
        options.setdefault("layer", 1)
    return sized(name, d_model, num_heads, length=length, **options)


def mean_cost(name: str, d_model: int, num_heads: int, /, *, length: int) -> Cost:
    """Return the cost of a layer of a mechanism, the mean of two where layers differ.

    Example:
        >>> mean_cost("cla", 64, 4, length=9).state_numbers
        64
    """
    options = {"length": length} if takes_length(name) else {}
    specs = schedule(name, d_model, num_heads, depth=COUNTED_LAYERS, **options)
    costs = [spec.cost(length) for spec in specs]
    names = [field.name for field in fields(Cost)]
    return Cost(**{n: sum(getattr(cost, n) for cost in costs) // COUNTED_LAYERS for n in names})


def state(cost: Cost, numbers: str = "", fixed: str = " fixed") -> str:
    """Return how many numbers a streaming layer stores, per token or in all.

    "none" if it cannot stream.

    Example:
        >>> from suffice import preset
        >>> state(preset("standard", 64, 4).cost(9), numbers=" numbers per token")
        '128 numbers per token'
    """
    counts = [f"{cost.state_numbers:,}{numbers}"] if cost.state_numbers else []
    if cost.state_fixed:
        counts.append(f"{cost.state_fixed:,}{fixed}")
    return " + ".join(counts) or "none"


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key.

    Example:
        >>> from suffice import preset
        >>> axes(preset("efficient", 64, 4, causal=True))
        'Efficient, Causal'
    """
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


def group(spec: AttentionSpec) -> str:
    """Return the one of `GROUPS` that a mechanism belongs to."""
    if "past" in spec.beyond_pairs:
        return SEGMENTS
    if spec.lane != "pairs":
        return FEATURES if spec.lane == "sums" else RECURRENT
    if "mixing" in spec.beyond_pairs:
        return MIXED
    if type(spec.pattern).__name__ in ("Full", "Causal"):
        return EVERY_PAIR
    return SOME_PAIRS


def catalogue() -> dict[str, Any]:
    """Return the mechanisms in groups, as plain data, with the sizes that the counts are of."""
    base = sized("standard", D_MODEL, HEADS, length=LENGTH).cost(LENGTH)
    rows = sorted((_row(name, base) for name in PRESETS), key=lambda r: GROUPS.index(r["group"]))
    return {
        "d_model": D_MODEL,
        "heads": HEADS,
        "length": LENGTH,
        "mechanisms": rows,
    }


def write(path: Path = FILE) -> None:
    """Write the catalogue."""
    path.write_text(json.dumps(catalogue(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(name: str, base: Cost) -> dict[str, Any]:
    spec = drawn_spec(name, D_MODEL, HEADS, length=LENGTH)
    cost, about = mean_cost(name, D_MODEL, HEADS, length=LENGTH), describe(PRESETS[name])
    return {
        "name": name,
        "title": TITLES[name],
        "group": group(spec),
        "axes": axes(spec),
        "parameters": cost.parameters,
        "parameters_ratio": round(cost.parameters / base.parameters, 4),
        "flops": cost.flops,
        "flops_ratio": round(cost.flops / base.flops, 4),
        "state": f"{cost.state_numbers:,} + fixed"
        if cost.state_numbers and cost.state_fixed
        else state(cost),
        "source": about.source,
        "citation": about.citation,
        "identifier": about.identifier,
    }


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
