"""Bars of speed, drawn from what `python -m benchmarks.speed` measured."""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

MEASURED = Path(__file__).parents[1] / "benchmarks/measured/speed.json"
FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
WIDTH, LEFT, LONGEST, TOP, GROUP, BAR = 720, 10, 450, 10, 66, 18  # pixels
OURS, THEIRS = "#1a6faf", "#b8bec6"


def bars() -> str:
    """Return the bars as SVG: seconds of the fastest peer and of this library, one scale a case."""
    cases = json.loads(MEASURED.read_text("utf-8"))["cases"].values()
    height = TOP + GROUP * len(cases)
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="{FONTS}" font-size="13" fill="#24292f">',
        "<title>Time of this library and of the fastest peer, shorter is better</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for index, case in enumerate(cases):
        elements += _group(TOP + GROUP * index, case)
    return "\n".join([*elements, "</svg>", ""])


def _group(y: int, case: dict) -> list[str]:
    seconds = case["seconds"]
    slowest = max(seconds.values())
    title = f"{case['title']}: {case['ratio']:.1f} times as fast"
    elements = [f'<text x="{LEFT}" y="{y + 12}" font-weight="bold">{escape(title)}</text>']
    for row, (side, name, colour) in enumerate(
        (("ours", "suffice", OURS), ("peer", case["peer"], THEIRS))
    ):
        top = y + 18 + row * (BAR + 2)
        length = LONGEST * seconds[side] / slowest
        text = escape(f"{name}, {1e3 * seconds[side]:.3g} ms")
        elements += [
            f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{top + 13.5}">{text}</text>',
        ]
    return elements
