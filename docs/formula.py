"""What a layer computes as formulas in LaTeX, made from its spec, in the symbols of the papers.

Vaswani et al. 2017 name maps W^Q, W^K, W^V, W^O, the width of keys d_k and the heads head_1 to
head_h; what a mechanism adds has the symbols of its own paper. Positions are rows of x.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from suffice.combine import Differential, Exclusive, Gated
from suffice.encoders import Forgetting
from suffice.kernels import Decayed, Delta
from suffice.view.flow import Box, Flow, K, Q, V, flow

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec

NAMES = {Q: "Q", K: "K", V: "V"}
FUNCTIONS = {
    "norm": r"\operatorname{norm}",
    "rotate": r"\operatorname{RoPE}",
    "convolve": r"\operatorname{conv}",
}
INSIDE = ("W_F", "φ")  # boxes of a lane that the formula of a head names
MEANINGS = {
    "+ M": r"\(M\) is 0 where the pattern allows a pair and \(-\infty\) elsewhere.",
    "+ D": r"\(D_{ts} = \sum_{l=s+1}^{t} \log f_l\), where"
    r" \(f_t = \operatorname{sigmoid}(x_t W^F + b)\).",
    "q_t": r"\(q_t\), \(k_t\), \(v_t\) and \(o_t\) are row t of \(Q_i\), \(K_i\), \(V_i\) and"
    r" \(\mathrm{head}_i\).",
    r"\operatorname{conv}": "conv is a short causal convolution of each feature, SiLU after it.",
    "g(i)": r"\(g(i)\) is the group of head \(i\).",
    r"\phi": r"\(\phi\) is the feature map of the kernel.",
    r"\sigma(Q": r"\(\sigma\) is ELU + 1; the sums run over the tokens of earlier segments.",
    r"\gamma": r"\(\gamma\) is a number of each head.",
    "= a_t": r"\(a_t = \exp(-A \Delta_t)\); \(q\), \(k\) and \(v\) are the paper's C, B and x.",
    r"\alpha_t": r"\(\alpha_t\) is the decay that the token sets.",
    r"\beta_t": r"\(\beta_t\) is the share by which a value is replaced.",
    r"\odot": r"\(\odot\) multiplies number by number.",
}
"""What a part of a formula means, for those that need a word."""


def formulas(spec: AttentionSpec) -> list[str]:
    """Return the formulas of a layer, a line each, in LaTeX.

    Of grouped heads, head i reads key head g(i).

    Example:
        >>> from suffice import preset
        >>> print(*formulas(preset("optimised", 64, 4))[:3], sep="\\n")
        Q = x W^Q
        K = x W^K
        V = x
    """
    drawn = flow(spec)
    if "kv_a_proj" in spec.encoder.maps(spec):
        return [*_latent(spec), _output(spec)]
    lines = [f"{NAMES[lane]} = {_lane(drawn, lane)}" for lane in NAMES]
    return [*lines, *_heads(spec, drawn), _output(spec)]


def meanings(lines: list[str]) -> str:
    """Return what the formulas of a layer do not explain themselves."""
    return " ".join(
        words for sign, words in MEANINGS.items() if any(sign in line for line in lines)
    )


def _latent(spec: AttentionSpec) -> list[str]:
    """Return the formulas of multi-head latent attention (DeepSeek-AI 2024, section 2.1)."""
    ranked = "q_a_proj" in spec.encoder.maps(spec)
    queries = "c^Q" if ranked else "x"
    first = [r"c^Q = \operatorname{norm}(x W^{DQ})"] if ranked else []
    latent = r"c^{KV} = \operatorname{norm}(x W^{DKV}), \qquad k^R = \operatorname{RoPE}(x W^{KR})"
    return [
        *first,
        latent,
        rf"Q_i = [{queries}\, W_i^{{UQ}};\; \operatorname{{RoPE}}({queries}\, W_i^{{QR}})]",
        r"K_i = [c^{KV} W_i^{UK};\; k^R], \qquad V_i = c^{KV} W_i^{UV}",
        *_heads(spec, flow(spec)),
    ]


def _lane(drawn: Flow, lane: int) -> str:
    """Return queries, keys or values as a term of x."""
    boxes, term = [box for box in drawn.lanes[lane] if box.title not in INSIDE], "x"
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
    if box.title in FUNCTIONS:
        return rf"{FUNCTIONS[box.title]}\left({term}\right)"
    if box.kind == "map":
        name, _, upper = box.title.partition("_")
        inner = term if re.fullmatch(r"[\w^{} ]+", term) else rf"\left({term}\right)"
        return f"{inner} {name}^{upper}"
    return f"{box.title} {term}"  # along the sequence: from the left


def _heads(spec: AttentionSpec, drawn: Flow) -> list[str]:
    """Return the formulas of a head."""
    lines = _recurrence(spec) if spec.lane == "recurrence" else _weighed(spec, drawn)
    if isinstance(spec.combine, Exclusive):
        lines[-1] = lines[-1].replace(r"\mathrm{head}_i", "O_i", 1)
        values = "V" if drawn.heads[V] == 1 else "V_{g(i)}" if _grouped(drawn) else "V_i"
        along = rf"\frac{{O_i \cdot {values}}}{{\lVert {values} \rVert^2}}\, {values}"
        lines.append(rf"\mathrm{{head}}_i = O_i - {along}")
    return lines


def _recurrence(spec: AttentionSpec) -> list[str]:
    """Return how the state of a head changes, and how it is read."""
    by_kernel = {
        Decayed(): r"S_t = \gamma\, S_{t-1} + k_t^\top v_t",
        Decayed(per="token"): r"S_t = a_t\, S_{t-1} + \Delta_t\, k_t^\top v_t",
        Decayed(per="feature"): r"S_t = \operatorname{Diag}(\alpha_t)\, S_{t-1} + k_t^\top v_t",
        Delta(gated=False): r"S_t = (I - \beta_t k_t^\top k_t)\, S_{t-1} + \beta_t k_t^\top v_t",
        Delta(): r"S_t = \alpha_t\, (I - \beta_t k_t^\top k_t)\, S_{t-1} + \beta_t k_t^\top v_t",
    }
    options = {name: None for name in ("convolution", "decays") if hasattr(spec.kernel, name)}
    state = by_kernel[replace(spec.kernel, **options)]
    return [rf"{state}, \qquad o_t = \frac{{q_t S_t}}{{\sqrt{{d_k}}}}"]


def _grouped(drawn: Flow) -> bool:
    return 1 < drawn.heads[K] < drawn.heads[Q]


def _weighed(spec: AttentionSpec, drawn: Flow) -> list[str]:
    """Return a head as weighted values."""
    index = "_{g(i)}" if _grouped(drawn) else "" if drawn.heads[K] == 1 else "_i"
    if drawn.through_memory:
        span = r"\sum_{s \le t}" if spec.pattern.causal else r"\sum_s"
        return [
            r"o_t = \frac{\phi(q_t)\, "
            rf"{span} \phi(k_s)^\top v_s}}{{\phi(q_t)\, {span} \phi(k_s)^\top}}"
        ]
    width = r"d_h + d_h^R" if "kv_a_proj" in spec.encoder.maps(spec) else "d_k"
    scores = rf"\frac{{Q_i K{index}^\top}}{{\sqrt{{{width}}}}}"
    scores += " + D" * isinstance(spec.encoder, Forgetting)
    scores += " + M" * (type(spec.pattern).__name__ != "Full")
    softmax = rf"\operatorname{{softmax}}\left({scores}\right)"
    if isinstance(spec.combine, Differential):
        first, second = (
            softmax.replace("Q_i", f"Q_{{i,{n}}}").replace(f"K{index}", f"K_{{i,{n}}}")
            for n in (1, 2)
        )
        return [
            rf"A_1 = {first}, \qquad A_2 = {second}",
            r"\mathrm{head}_i = (1 - \lambda_{\mathrm{init}})\, "
            r"\operatorname{LN}\left((A_1 - \lambda A_2)\, V_i\right)",
        ]
    local = f"{softmax} V{index}"
    if "past" not in spec.beyond_pairs:
        return [rf"\mathrm{{head}}_i = {local}"]
    return [
        rf"A_{{\mathrm{{dot}}}} = {local}",
        r"A_{\mathrm{mem}} = \frac{\sigma(Q_i)\, M_{s-1}}{\sigma(Q_i)\, z_{s-1}}, \qquad "
        r"M_{s-1} = \sum_l \sigma(k_l)^\top v_l, \qquad z_{s-1} = \sum_l \sigma(k_l)^\top",
        r"\mathrm{head}_i = \operatorname{sigmoid}(\beta)\, A_{\mathrm{mem}} + "
        r"(1 - \operatorname{sigmoid}(\beta))\, A_{\mathrm{dot}}",
    ]


def _output(spec: AttentionSpec) -> str:
    """Return the output as a function of the heads."""
    head = r"\mathrm{head}"
    heads = [rf"{head}_1", r"\dots", rf"{head}_h"]
    if not isinstance(spec.combine, Gated):
        return rf"y = \operatorname{{Concat}}({', '.join(heads)})\, W^O"
    if spec.combine.norm:
        heads = [
            rf"\operatorname{{norm}}({heads[0]})",
            heads[1],
            rf"\operatorname{{norm}}({heads[2]})",
        ]
    gate = {"sigmoid": "sigmoid", "silu": "SiLU"}[spec.combine.activation]
    joined = rf"\operatorname{{Concat}}({', '.join(heads)})"
    return rf"y = \left({joined} \odot \operatorname{{{gate}}}(x W^G)\right) W^O"
