"""A drawing of a layer's computation, from x to y: maps, heads, mixing, kernel, memory.

A pattern shows which queries attend to which keys; many mechanisms see the same and differ in how
they compute it. The drawing is made from the spec alone, so every composition has one. Three lanes
carry queries, keys and values from x to the heads; lines between the heads say which query heads
read which key heads; a tag marks what a KV cache keeps for each token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from suffice.view.drawing import FAINT, INK, PAGE, brief

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec

Q, K, V = range(3)  # lanes

KINDS = {
    "map": ("learned map", "#e6eff8", "#1a62a5"),
    "copy": ("columns of x, nothing learned", "#ffffff", "#5f6775"),
    "along": ("learned map along the sequence", "#fdf1de", "#b0650a"),
    "function": ("function of each token", "#e6f4ee", "#00704f"),
    "core": ("weights or sums over keys", "#f0ecf8", "#6a51a3"),
    "memory": ("memory", "#f9eaf3", "#a8437e"),
}
"""What a box stands for: its words in the legend, its fill and its line."""
CACHE, CACHED = "#a8437e", "kept in the KV cache, for each token"
HEAD_COLOURS = (
    "#1a62a5",
    "#c2700a",
    "#00855f",
    "#a8437e",
    "#6a51a3",
    "#7a6a00",
    "#b23a12",
    "#5f6775",
)
NAMES = {
    "q_proj": "W_Q",
    "k_proj": "W_K",
    "v_proj": "W_V",
    "q_a_proj": "W_DQ",
    "q_b_proj": "W_UQ",
    "kv_a_proj": "W_DKV,KR",
    "kv_b_proj": "W_UK",
}
"""The maps of queries, keys and values; outputs of an encoder's others are cached with the keys."""
MOST_HEADS = 16  # drawn one by one


@dataclass(frozen=True, kw_only=True)
class Box:
    """One step of a lane, or of what follows the heads."""

    kind: str  # a key of KINDS
    title: str
    note: str = ""
    cached: bool = False  # a KV cache keeps what leaves it


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What a layer computes.

    Args:
        lanes: the steps of queries, keys and values, from x to the heads.
        heads: number of heads of queries, keys and values.
        values_from_keys: number of steps of the key lane after which the values leave it; None:
            the values come from x.
        core: box that weighs or sums the keys.
        memory: a memory that is read as well; None: no memory.
        through_memory: whether the core reads keys and values through that memory alone.
        after: the steps behind it, up to the output map.
    """

    lanes: tuple[tuple[Box, ...], tuple[Box, ...], tuple[Box, ...]]
    heads: tuple[int, int, int]
    values_from_keys: int | None
    core: Box
    memory: Box | None
    through_memory: bool
    after: tuple[Box, ...]

    @property
    def boxes(self) -> Iterator[Box]:
        """Every step."""
        for lane in self.lanes:
            yield from lane
        yield self.core
        if self.memory is not None:
            yield self.memory
        yield from self.after


def flow(spec: AttentionSpec, length: int | None = None) -> Flow:
    """Return what a layer computes.

    Example:
        >>> from suffice import preset
        >>> drawn = flow(preset("efficient", 64, 4))
        >>> [box.title for box in drawn.lanes[0]], [box.title for box in drawn.lanes[1]]
        (['W_Q'], ['x'])
        >>> drawn.values_from_keys
        1
    """
    queries, keys, values, from_keys = _projections(spec)
    if spec.norm.norms:
        name = brief(spec.norm)
        queries.append(Box(kind="function", title="norm", note=name))
        if spec.shares is None:
            keys.append(Box(kind="function", title="norm", note=name))
    if "mixing" in spec.beyond_pairs:
        along = _along(spec, length)
        values.append(along)
        if not spec.mixing.keeps_keys:
            keys.append(along)
    if spec.position.rotates:
        part = spec.encoder.rotary_width(spec)
        note = "all features" if part == spec.head_width else f"{part} features a head"
        queries.append(Box(kind="function", title="rotate", note=note))
        if spec.shares is not None:
            pass
        elif part < spec.head_width and from_keys:  # the rotary key is a part of what is cached
            note = f"{part} features, for all heads"
            keys.append(Box(kind="function", title="join rotated key", note=note))
        else:
            keys.append(Box(kind="function", title="rotate", note=note))
    core, memory = _core(spec)
    if spec.lane == "recurrence":
        _add_recurrence(spec.kernel, queries, keys, values)
    elif spec.lane == "sums":
        count = spec.kernel.num_features(spec.head_width)
        name = Box(kind="function", title="φ", note=f"{brief(spec.kernel)}, {count} features")
        queries.append(name)
        keys.append(name)
    keys, values = _cached(spec, keys, values, from_keys)
    keys += [
        Box(kind="map", title=f"W_{name[0].upper()}", note=f"{m.inputs} × {m.outputs}", cached=True)
        for name, m in spec.encoder.maps(spec).items()
        if name not in NAMES
    ]
    return Flow(
        lanes=(tuple(queries), tuple(keys), tuple(values)),
        heads=(spec.query_heads, spec.key_heads, spec.kv_heads),
        values_from_keys=from_keys,
        core=core,
        memory=memory,
        through_memory=spec.lane != "pairs",
        after=tuple(_after(spec)),
    )


def _add_recurrence(kernel: Any, queries: list[Box], keys: list[Box], values: list[Box]) -> None:
    if kernel.convolution is not None:
        along = Box(kind="along", title="convolve", note=f"{kernel.convolution} tokens, SiLU")
        for lane in (queries, keys, values):
            lane.append(along)
    if kernel.corrects:
        for lane in (queries, keys):
            lane.append(Box(kind="function", title="norm", note="length 1"))


def _map(name: str, inputs: int, outputs: int) -> Box:
    return Box(kind="map", title=name, note=f"{inputs} × {outputs}")


def _projections(spec: AttentionSpec) -> tuple[list[Box], list[Box], list[Box], int | None]:
    maps = {name: _map("", m.inputs, m.outputs).note for name, m in spec.encoder.maps(spec).items()}
    boxes = {
        key: Box(kind="map", title=NAMES[key], note=note)
        for key, note in maps.items()
        if key in NAMES
    }
    queries = [boxes[key] for key in ("q_proj", "q_a_proj", "q_b_proj") if key in boxes]
    if "kv_a_proj" in boxes:
        rank, outputs = spec.encoder.maps(spec)["kv_b_proj"][:2]
        of_values = spec.num_heads * spec.value_width
        down = boxes["kv_a_proj"]
        keys = [replace(down, note=f"{down.note}, norm"), _map("W_UK", rank, outputs - of_values)]
        return queries, keys, [_map("W_UV", rank, of_values)], 1
    if spec.shares is not None:
        keys, values = (
            Box(kind="memory", title=f"{name} of layer {spec.shares}") for name in ("K", "V")
        )
        return queries, [keys], [values], None
    columns = Box(kind="copy", title="x", note="a slice a head")
    keys = [boxes.get("k_proj", columns)]
    if spec.encoder.shares:
        if spec.encoder.learns_keys:
            keys = [replace(boxes["k_proj"], title="W_C")]
        return queries, keys, [], 1
    return queries, keys, [boxes.get("v_proj", columns)], None


def _along(spec: AttentionSpec, length: int | None) -> Box:
    name = brief(spec.mixing)
    if not spec.mixing.keeps_keys:
        rows = "" if length is None else f"{length} tokens to {spec.mixing.reads(length)}"
        return Box(kind="along", title="E", note=rows or name)
    causal = ", lower triangle" if spec.pattern.causal else ""
    return Box(kind="along", title="W_A", note=f"{name}{causal}")


def _core(spec: AttentionSpec) -> tuple[Box, Box | None]:
    pattern = brief(spec.pattern)
    if spec.lane == "recurrence":
        kernel: Any = spec.kernel
        change = "S ← a S + b k (v − a Sᵀk)ᵀ" if kernel.corrects else "S ← a S + k vᵀ"
        memory = Box(kind="memory", title=change, note="one state a head")
        return Box(kind="core", title="Sᵀ q", note=pattern), memory
    if spec.lane != "pairs":
        sums = "Σ φ(k) vᵀ, Σ φ(k)"
        memory = Box(kind="memory", title=sums, note="one running sum a head")
        return Box(kind="core", title="φ(q) Σ φ(k) vᵀ / φ(q) Σ φ(k)", note=pattern), memory
    kernel = type(spec.kernel).__name__
    title = "softmax(q kᵀ / √d) v" if kernel == "Softmax" else f"{kernel}(q, k) v"
    if spec.combine.maps > 1:
        title = "two softmaxes of each head" if kernel == "Softmax" else f"two of {title} a head"
    core = Box(kind="core", title=title, note=pattern)
    if "past" not in spec.beyond_pairs:
        return core, None
    note = f"earlier segments of {spec.past.segment}"
    return core, Box(kind="memory", title="M = Σ φ(k) vᵀ", note=note)


def _cached(
    spec: AttentionSpec, keys: list[Box], values: list[Box], from_keys: int | None
) -> tuple[list[Box], list[Box]]:
    if not spec.cached_widths:
        return keys, values
    keys, values = list(keys), list(values)
    if len(spec.cached_widths) == 1:
        at = (from_keys or len(keys)) - 1
        keys[at] = replace(keys[at], cached=True)
        return keys, values
    keys[-1] = replace(keys[-1], cached=True)
    if values:
        values[-1] = replace(values[-1], cached=True)
    return keys, values


def _after(spec: AttentionSpec) -> Iterator[Box]:
    if "past" in spec.beyond_pairs:
        yield Box(kind="function", title="gate", note="a number a head")
    for title, note in spec.combine.steps():
        yield Box(kind="function", title=title, note=note)
    width = spec.num_heads * spec.value_width
    yield _map("W_O", width, spec.d_model)


# Text

LANES = ("queries", "keys", "values")


def flow_text(drawn: Flow) -> list[str]:
    """Return the drawing as lines of text: a lane a line, then what follows.

    Example:
        >>> from suffice import preset
        >>> print(*flow_text(flow(preset("mqa", 64, 4))), sep="\\n")
        queries  x -> W_Q 64 × 64 -> 4 heads
        keys     x -> W_K 64 × 16 [cached] -> 1 head, read by 4
        values   x -> W_V 64 × 16 [cached] -> 1 head, read by 4
        output   softmax(q kᵀ / √d) v over Full -> concatenate -> W_O 64 × 64 -> y
    """
    lines = []
    for lane, (name, boxes, heads) in enumerate(zip(LANES, drawn.lanes, drawn.heads, strict=True)):
        steps = ["x", *map(_words, boxes)]
        if lane == V and drawn.values_from_keys is not None:
            number = drawn.values_from_keys
            steps[0] = f"the keys' {drawn.lanes[K][number - 1].title}"
        if boxes and boxes[0].kind == "memory":
            del steps[0]
        shared = drawn.heads[Q] // heads if lane else 1
        one = f"{heads} head{'s' * (heads > 1)}"
        steps.append(one + (f", {'each ' * (heads > 1)}read by {shared}" if shared > 1 else ""))
        lines.append(f"{name:<9}{' -> '.join(steps)}")
    if drawn.memory is not None:
        lines.append(f"{'memory':<9}{_words(drawn.memory)}")
    over = f"{drawn.core.title} over {drawn.core.note}"
    steps = [over, *map(_words, drawn.after[:-1]), "concatenate", _words(drawn.after[-1]), "y"]
    return [*lines, f"{'output':<9}{' -> '.join(steps)}"]


def _words(box: Box) -> str:
    return " ".join(filter(None, [box.title, box.note, "[cached]" if box.cached else ""]))


# SVG

FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
TITLE, NOTE = 13, 10  # font sizes, pixels
HIGH, GAP, PITCH, MARGIN = 46, 26, 84, 20
TOP = 52
DOT = 15  # radius of x and y
STYLES = re.compile(r' (fill|stroke|stroke-width|stroke-dasharray|font-size|font-family)="[^"]*"')
"""Attributes that a page with a style sheet replaces."""


@dataclass(frozen=True)
class _Placed:
    x: float
    y: float  # of the middle
    width: float

    @property
    def end(self) -> float:
        return self.x + self.width


def flow_svg(drawn: Flow, title: str = "", *, standalone: bool = True) -> str:
    """Return the drawing as an SVG document.

    Args:
        title: text above the drawing, and its name for those who cannot see it; "": no text above.
        standalone: whether it has a coloured page and a legend; else the page around it styles the
            classes of its elements.
    """
    document = "\n".join(_Page(drawn, title, standalone).document())
    return document if standalone else STYLES.sub("", document)


class _Page:
    def __init__(self, drawn: Flow, title: str, standalone: bool) -> None:
        self.drawn, self.title, self.standalone = drawn, title, standalone
        self.top = TOP if title and standalone else 20
        self.parts: list[str] = []
        self.middle = self.top + HIGH / 2 + PITCH
        self.lane_y = [self.top + HIGH / 2 + PITCH * lane for lane in range(3)]

    def document(self) -> list[str]:
        """Return the lines of the document."""
        start = MARGIN + 2 * DOT
        heads_x = self._lanes(start)
        right = self._core(heads_x)
        kinds = dict.fromkeys(box.kind for box in self.drawn.boxes)
        cached = any(box.cached for box in self.drawn.boxes)
        bottom = self.lane_y[V] + HIGH / 2 + (30 if self.drawn.memory is None else 34)
        width = right + MARGIN
        legend, height = [], bottom
        if self.standalone:
            legend, height = _legend(list(kinds), cached, max(width, 420), bottom)
        width, height = round(max(width, 420)), round(height + 8)
        name = escape(self.title or "data flow")
        page = f'<rect width="{width}" height="{height}" fill="{PAGE}"/>' if self.standalone else ""
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="flow" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" font-family="{FONTS}">',
            f"<title>{name}</title>",
            page,
        ]
        if self.title and self.standalone:
            head.append(_text(MARGIN, 30, self.title, 15, INK, anchor="start", bold=True))
        return [*filter(None, head), *self.parts, *legend, "</svg>", ""]

    def _lanes(self, start: float) -> float:
        """Draw x, the lanes and the heads; return where the heads end."""
        lanes = self.drawn.lanes
        placed: list[list[_Placed]] = []
        for lane, boxes in enumerate(lanes):
            x = start + GAP + 8
            if lane == V and self.drawn.values_from_keys is not None:
                x = placed[K][self.drawn.values_from_keys - 1].end + GAP
            row = []
            for box in boxes:
                row.append(_Placed(x, self.lane_y[lane], _width(box)))
                x = row[-1].end + GAP
            placed.append(row)
        heads_x = max(row[-1].end for row in placed if row) + GAP
        self._arrows_from_x(placed)
        for lane, row in enumerate(placed):
            for earlier, later in zip(row, row[1:], strict=False):
                self._arrow(earlier.end, earlier.y, later.x, later.y)
            if row:
                self._arrow(row[-1].end, row[-1].y, heads_x, row[-1].y)
            for place, box in zip(row, lanes[lane], strict=True):
                self._box(place, box)
        if not placed[V]:  # the values are the keys
            at = placed[K][self.drawn.values_from_keys - 1]
            self._elbow(at.end, at.y, heads_x, self.lane_y[V], heads_x - GAP / 2 - 4)
        self._dot(MARGIN + DOT, self.middle, "x")
        return self._heads(heads_x)

    def _arrows_from_x(self, placed: list[list[_Placed]]) -> None:
        x, bend = MARGIN + 2 * DOT, MARGIN + 2 * DOT + GAP / 2 - 3
        for lane, row in enumerate(placed):
            if not row or self.drawn.lanes[lane][0].kind == "memory":  # of another layer
                continue
            if lane == V and self.drawn.values_from_keys is not None:
                at = placed[K][self.drawn.values_from_keys - 1]
                self._elbow(at.end, at.y, row[0].x, row[0].y, (at.end + row[0].x) / 2)
            else:
                self._elbow(x, self.middle, row[0].x, row[0].y, bend)

    def _heads(self, x: float) -> float:
        """Draw the heads, and which query heads read which key heads; return where they end."""
        wide = 78.0
        queries, keys, values = self.drawn.heads
        groups = keys if keys <= values else values
        for lane, count in enumerate(self.drawn.heads):
            y = self.lane_y[lane]
            for number, left, width in _stripes(count, wide):
                colour = HEAD_COLOURS[(number * groups // count) % len(HEAD_COLOURS)]
                self.parts.append(
                    f'<rect class="head head-{(number * groups // count) % len(HEAD_COLOURS) + 1}" '
                    f'x="{x + left:g}" y="{y - 13}" width="{width:g}" height="26" rx="2" '
                    f'fill="{colour}"/>'
                )
            words = f"{count} {('query', 'key', 'value')[lane]} head{'s' * (count != 1)}"
            self.parts.append(_text(x + wide / 2, y + 26, words, NOTE, FAINT))
        self._readers(x, wide, queries, keys)
        return x + wide

    def _readers(self, x: float, wide: float, queries: int, keys: int) -> None:
        top, bottom = self.lane_y[Q] + 31, self.lane_y[K] - 15
        ends = {number: x + left + width / 2 for number, left, width in _stripes(keys, wide)}
        for number, left, width in _stripes(queries, wide):
            own = number * keys // queries
            start = x + left + width / 2
            self.parts.append(
                f'<line class="reads" x1="{start:g}" y1="{top:g}" x2="{ends[own]:g}" '
                f'y2="{bottom:g}" stroke="{FAINT}" stroke-width="1"/>'
            )

    def _core(self, heads_end: float) -> float:
        core = self.drawn.core
        place = _Placed(heads_end + GAP + 10, self.middle, _width(core))
        bend = heads_end + GAP / 2 + 2
        through, memory = self.drawn.through_memory, self.drawn.memory
        self._elbow(heads_end + 3, self.lane_y[Q], place.x, self.middle, bend)
        if not through:
            self._elbow(heads_end + 3, self.lane_y[V], place.x, self.middle, bend)
            self._arrow(heads_end + 3, self.lane_y[K], place.x, self.middle)
        x = place.end
        if memory is not None:
            below = _Placed(place.x, self.lane_y[V], max(_width(memory), 90))
            x = max(x, below.end)
            middle = below.x + min(place.width, below.width) / 2
            self._vertical(middle, below.y - HIGH / 2, place.y + HIGH / 2)
            self._arrow(heads_end + 3, below.y, below.x, below.y)
            if through:
                down = bend - 5
                self._elbow(heads_end + 3, self.lane_y[K], below.x, below.y, down, head=False)
            self._box(below, memory)
        self._box(place, core)
        start = place.end
        for box in self.drawn.after:
            here = _Placed(start + GAP, self.middle, _width(box))
            self._arrow(start, self.middle, here.x, self.middle)
            self._box(here, box)
            start = here.end
        self._arrow(start, self.middle, start + GAP, self.middle)
        self._dot(start + GAP + DOT, self.middle, "y")
        return max(x, start + GAP + 2 * DOT)

    def _box(self, place: _Placed, box: Box) -> None:
        _, fill, line = KINDS[box.kind]
        dash = ' stroke-dasharray="4 3"' if box.kind == "copy" else ""
        middle = place.x + place.width / 2
        self.parts.append(
            f'<g class="{box.kind}"><rect x="{place.x:g}" y="{place.y - HIGH / 2:g}" '
            f'width="{place.width:g}" height="{HIGH}" rx="6" fill="{fill}" stroke="{line}"{dash}/>'
        )
        self.parts.append(_text(middle, place.y - (3 if box.note else -5), box.title, TITLE, INK))
        if box.note:
            self.parts.append(_text(middle, place.y + 14, box.note, NOTE, FAINT))
        self.parts.append("</g>")
        if box.cached:
            x, y = place.end - 44, place.y - HIGH / 2 - 8
            self.parts.append(
                f'<g class="cached"><rect x="{x:g}" y="{y:g}" width="48" height="15" rx="7.5" '
                f'fill="{CACHE}"/>'
            )
            self.parts.append(_text(x + 24, y + 11, "cached", NOTE, PAGE) + "</g>")

    def _dot(self, x: float, y: float, name: str) -> None:
        self.parts.append(
            f'<circle class="end" cx="{x:g}" cy="{y:g}" r="{DOT}" fill="{PAGE}" stroke="{INK}"/>'
            + _text(x, y + 5, name, TITLE, INK)
        )

    def _arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self._line(f"M{x:g} {y:g}L{to_x - 1:g} {to_y:g}")
        self._tip(to_x, to_y)

    def _elbow(
        self, x: float, y: float, to_x: float, to_y: float, bend: float, *, head: bool = True
    ) -> None:
        self._line(f"M{x:g} {y:g}H{bend:g}V{to_y:g}H{to_x - 1:g}")
        if head:
            self._tip(to_x, to_y)

    def _vertical(self, x: float, y: float, to_y: float) -> None:
        self._line(f"M{x:g} {y:g}V{to_y:g}")
        self.parts.append(f'<path class="tip" fill="{FAINT}" d="M{x:g} {to_y:g}l-4 7h8z"/>')

    def _line(self, path: str) -> None:
        self.parts.append(
            f'<path class="wire" d="{path}" fill="none" stroke="{FAINT}" stroke-width="1.3"/>'
        )

    def _tip(self, x: float, y: float) -> None:
        self.parts.append(f'<path class="tip" fill="{FAINT}" d="M{x:g} {y:g}l-7-4v8z"/>')


def _stripes(count: int, wide: float) -> Iterator[tuple[int, float, float]]:
    drawn = min(count, MOST_HEADS)
    gap = 4 if drawn <= MOST_HEADS // 2 else 2
    width = (wide - gap * (drawn - 1)) / drawn
    for place in range(drawn):
        yield place * count // drawn, place * (width + gap), width


def _width(box: Box) -> float:
    return max(54.0, 7.9 * len(box.title.replace("_", "")) + 22, 6.2 * len(box.note) + 18)


def _text(
    x: float,
    y: float,
    words: str,
    size: int,
    colour: str,
    *,
    anchor: str = "middle",
    bold: bool = False,
) -> str:
    """Return words; a letter behind `_` stands below the line."""
    name, below, index = words.partition("_")
    inner = escape(words)
    if below and " " not in words:
        inner = f'{escape(name)}<tspan font-size="{size - 3}" dy="3">{escape(index)}</tspan>'
    kind = "note" if size == NOTE else "word"
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{inner}</text>'
    )


def _legend(kinds: Sequence[str], cached: bool, width: float, y: float) -> tuple[list[str], float]:
    entries = [(KINDS[kind][0], *KINDS[kind][1:], kind == "copy") for kind in kinds]
    if cached:
        entries.append((CACHED, CACHE, CACHE, False))
    parts, x, y = [], float(MARGIN), y + 6
    for words, fill, line, dashed in entries:
        need = 22 + 6.2 * len(words)
        if x + need > width - MARGIN and x > MARGIN:
            x, y = float(MARGIN), y + 20
        dash = ' stroke-dasharray="3 2"' if dashed else ""
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="12" height="12" rx="3" fill="{fill}" '
            f'stroke="{line}"{dash}/>'
        )
        parts.append(_text(x + 18, y + 10, words, NOTE, FAINT, anchor="start"))
        x += need + 16
    return parts, y + 16
