"""What a layer computes as formulas, in LaTeX, made from the spec as the drawing of the flow is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suffice.view.flow import Box, Flow, K, Q, V, flow

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec

NAMES = {Q: "Q", K: "K", V: "V"}


def formulas(spec: AttentionSpec) -> list[str]:
    """Return the formulas of a layer, a line each, in LaTeX.

    Positions are rows of x; of grouped heads, head h reads key head g(h).

    Example:
        >>> from suffice import preset
        >>> print(*formulas(preset("optimised", 64, 4)), sep="\\n")
        Q = x W_{Q}
        K = x W_{K}
        V = x
        O_h = \\operatorname{softmax}\\left(\\frac{Q_h K_h^\\top}{\\sqrt{16}}\\right) V_h
        y = [O_1, \\dots, O_{4}]\\, W_O
    """
    drawn = flow(spec)
    if "kv_a_proj" in spec.encoder.maps(spec):
        return _latent(spec)
    lines = [f"{NAMES[lane]} = {_lane(drawn, lane)}" for lane in NAMES]
    lines += _heads(spec, drawn)
    return [*lines, rf"y = [O_1, \dots, O_{{{spec.num_heads}}}]\, W_O"]


def _latent(spec: AttentionSpec) -> list[str]:
    """Return the formulas of multi-head latent attention."""
    ranked = "q_a_proj" in spec.encoder.maps(spec)
    queries = r"c'" if ranked else "x"
    first = [r"c' = \operatorname{norm}(x W_{DQ})"] if ranked else []
    first.append(r"c = \operatorname{norm}(x W_{DKV}), \qquad r = \operatorname{rot}(x W_{KR})")
    return [
        *first,
        rf"Q_h = [{queries}\, W_{{UQ,h}},\; \operatorname{{rot}}({queries}\, W_{{QR,h}})]",
        r"K_h = [c\, W_{UK,h},\; r], \qquad V_h = c\, W_{UV,h}",
        *_heads(spec, flow(spec)),
        rf"y = [O_1, \dots, O_{{{spec.num_heads}}}]\, W_O",
    ]


def _lane(drawn: Flow, lane: int) -> str:
    """Return queries, keys or values as a term of x."""
    boxes, term = [box for box in drawn.lanes[lane] if box.title != "W_F"], "x"
    if lane == V and drawn.values_from_keys is not None:
        for box in drawn.lanes[K][: drawn.values_from_keys]:
            term = _applied(term, box)
        if not boxes and len(drawn.lanes[K]) == drawn.values_from_keys:
            return f"{term} = K"
    for box in boxes:
        term = _applied(term, box)
    return term


def _applied(term: str, box: Box) -> str:
    if box.kind == "copy":
        return term
    if box.kind == "memory":  # of another layer
        name, _, layer = box.title.partition(" of layer ")
        return f"{name}^{{({layer})}}"
    if box.kind == "map":
        inner = term if re.fullmatch(r"[\w{} ]+", term) else rf"\left({term}\right)"
        return rf"{inner} {_indexed(box.title)}"
    if box.kind == "along":
        return (
            rf"{_indexed(box.title)} \left({term}\right)"
            if " " in term
            else f"{_indexed(box.title)} {term}"
        )
    names = {"norm": r"\operatorname{norm}", "rotate": r"\operatorname{rot}", "φ": r"\phi"}
    return rf"{names[box.title]}\left({term}\right)"


def _indexed(title: str) -> str:
    name, _, index = title.partition("_")
    return f"{name}_{{{index}}}" if index else name


def _heads(spec: AttentionSpec, drawn: Flow) -> list[str]:
    queries, keys, _ = drawn.heads
    key = "h" if queries == keys else "{g(h)}" if keys > 1 else "{}"
    k, v = (rf"{name}_{key}" if keys > 1 else name for name in "KV")
    if drawn.through_memory:
        return [
            rf"S_h = {k}^\top {v} = \sum_s k_s v_s^\top, \qquad z_h = \sum_s k_s",
            r"O_h = \frac{Q_h\, S_h}{Q_h\, z_h}",
        ]
    scores = rf"\frac{{Q_h {k}^\top}}{{\sqrt{{{spec.encoder.scaled_width(spec)}}}}}"
    if spec.encoder.score_term:
        scores = f"{scores} + {spec.encoder.score_term}"
    masked = scores if type(spec.pattern).__name__ == "Full" else rf"{scores} + M"
    softmax = rf"\operatorname{{softmax}}\left({masked}\right)"
    if spec.combine.maps > 1:
        two = [softmax.replace("Q_h", f"Q_{{h{i}}}").replace(k, f"K_{{h{i}}}") for i in (1, 2)]
        return [
            rf"A_{{h1}} = {two[0]}, \qquad A_{{h2}} = {two[1]}",
            r"O_h = (1 - \ell)\, \operatorname{norm}\left((A_{h1} - \lambda A_{h2})\, V_h\right)",
        ]
    local = rf"{softmax} {v}"
    if "past" in spec.beyond_pairs:
        earlier = r"\sum_{\text{earlier } s}"
        memory = rf"S_h = {earlier} \phi(k_s) v_s^\top, \qquad z_h = {earlier} \phi(k_s)"
        remote = r"g_h\, \frac{\phi(Q_h)\, S_h}{\phi(Q_h)\, z_h}"
        return [memory, rf"O_h = {remote} + (1 - g_h)\, {local}"]
    return [rf"O_h = {local}"]
