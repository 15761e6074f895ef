"""A picture of the axes and of one composed layer, for the site."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from suffice import AttentionSpec, memory
from suffice.encoders import Optimised
from suffice.memory import Memory
from suffice.patterns import Causal, Global, Window
from suffice.positions import Rope
from suffice.spec import AXES
from suffice.view import expression

FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
SPEC = AttentionSpec(
    d_model=512,
    num_heads=8,
    num_kv_heads=2,
    encoder=Optimised(),
    position=Rope(),
    pattern=(Window(256) | Global(1)) & Causal(),
)
CHOSEN = {"Window", "Global", "Causal", "GQA", "Rolling", "Quantised"}
QUESTIONS = {  # what each axis decides
    "pattern": "which keys",
    "encoder": "projections, cache",
    "mixing": "along the sequence",
    "kernel": "scores to weights",
    "norm": "norm of q and k",
    "position": "order",
    "past": "earlier segments",
    "combine": "heads to output",
    "heads": "who shares keys",
    "memory": "KV cache policy",
}
WIDTH, CELL, GAP, TOP = 118, 22, 5, 64  # pixels


def picture() -> str:
    """Return the picture as SVG; axis values are those that are registered."""
    columns = _columns()
    tallest = max(len(names) for names in columns.values())
    width = len(columns) * (WIDTH + GAP) + GAP + 10
    height = TOP + tallest * (CELL + GAP) + 78
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONTS}" font-size="11">',
        "<title>The axes of an attention layer, one composed layer highlighted</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for place, (axis, names) in enumerate(columns.items()):
        elements += _column(GAP + 5 + place * (WIDTH + GAP), axis, names)
    elements += _sentence(height, width)
    return "\n".join([*elements, "</svg>", ""])


def _columns() -> dict[str, list[str]]:
    """Return the names of the values of each axis, those of the composed layer first."""
    columns = {axis: _ours(family.table) for axis, family in AXES.items()}
    columns["heads"] = ["MHA", "GQA", "MQA"]
    memories = (getattr(memory, name) for name in memory.__all__)
    columns["memory"] = sorted(
        cls.__name__ for cls in memories if issubclass(cls, Memory) and cls is not Memory
    )
    return {
        axis: sorted(names, key=lambda name: name not in _chosen())
        for axis, names in columns.items()
    }


def _ours(table: dict[str, type]) -> list[str]:
    names = (name for name, kind in table.items() if kind.__module__.startswith("suffice."))
    return sorted(name for name in names if name not in ("And", "Or"))


def _chosen() -> set[str]:
    return CHOSEN | {type(getattr(SPEC, axis)).__name__ for axis in AXES}


def _column(left: int, axis: str, names: Sequence[str]) -> list[str]:
    middle = left + WIDTH // 2
    elements = [
        f'<text x="{middle}" y="28" text-anchor="middle" font-size="13" font-weight="bold" '
        f'fill="#1f2933">{axis}</text>',
        f'<text x="{middle}" y="46" text-anchor="middle" fill="#62707d">{QUESTIONS[axis]}</text>',
    ]
    for row, name in enumerate(names):
        top = TOP + row * (CELL + GAP)
        fill, ink = ("#0f766e", "#ffffff") if name in _chosen() else ("#eef2f5", "#3e4c59")
        elements.append(
            f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{CELL}" rx="4" fill="{fill}"/>'
            f'<text x="{middle}" y="{top + 15}" text-anchor="middle" fill="{ink}">{name}</text>'
        )
    return elements


def _sentence(height: int, width: int) -> list[str]:
    """Return the code of the highlighted composition and its counts."""
    code = (
        f"pattern={expression(SPEC.pattern)}, encoder={expression(SPEC.encoder)}, "
        f"position={expression(SPEC.position)}, num_heads=8, num_kv_heads=2"
    )
    cost = SPEC.cost(length=4096)
    counts = (
        f"one legal composition of many: {cost.parameters:,} parameters at d_model 512, "
        f"{cost.flops / 1e9:.1f} GFLOPs for 4,096 tokens"
    )
    return [
        f'<text x="{width // 2}" y="{height - 42}" text-anchor="middle" font-size="12" '
        f'font-family="DejaVu Sans Mono, Menlo, monospace" fill="#0f766e">{escape(code)}</text>',
        f'<text x="{width // 2}" y="{height - 20}" text-anchor="middle" fill="#62707d">'
        f"{escape(counts)}</text>",
    ]
