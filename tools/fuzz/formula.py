"""Attention of one text from the papers' formulas: loops over heads and queries, in float64.

Nothing here reads `suffice.ops`, or asks an axis value for more than its fields. A text stands
alone, so there is no padding, no document and no batch: whatever those do, a text must get this.

Letters: T queries, S keys, R keys that the kernel reads, H heads, G key/value heads, M maps of a
head (2 in differential attention), D key width, E value width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from suffice import AttentionSpec, combine, encoders, kernels, mixing, patterns, positions
from suffice.kernels import Kernel
from suffice.memory.past import Infini, NoPast
from suffice.patterns import Pattern
from suffice.patterns.combined import And, Or

Parameters = Mapping[str, Tensor]
Visible = Callable[[int, int, int], list[list[int]]]  # queries, keys, head -> keys of each query


class NoFormula(Exception):  # noqa: N818 - the name of what is absent
    """A value that no formula here computes."""


class Projected(NamedTuple):
    """What the kernel reads: queries of H M maps, keys of G M, values of G heads, [rows, width].

    `content` are queries and keys before any rotation; `forget` the log gates [G, S] of keys.
    """

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    content: tuple[list[Tensor], list[Tensor]]
    forget: Tensor | None = None


# --- patterns --------------------------------------------------------------------------------

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(word: int) -> int:
    """Return variant 13 of the mixing function of 64 bits (Steele et al. 2014, figure 14)."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


@cache
def draws(pattern: patterns.Random, i: int) -> set[int]:
    """Return the keys that a query draws, one from each of equal parts of the candidates."""
    candidates = i + 1 if pattern.length is None else pattern.length
    parts = min(pattern.keys, candidates)
    found = set()
    for j in range(parts):
        first, last = candidates * j // parts, candidates * (j + 1) // parts
        word = mix64(mix64(pattern.seed + GOLDEN & WORD) ^ i & WORD)
        number = mix64(word + (j + 1) * GOLDEN & WORD) % 2**63
        found.add(first + number % (last - first))
    return found


def sees(pattern: Pattern, i: int, j: int, head: int) -> bool:  # noqa: C901 - a case for each
    """Return whether the query at i may see the key at j."""
    match pattern:
        case patterns.Full():
            return True
        case patterns.Causal():
            return j <= i
        case patterns.Window(size):
            return abs(i - j) < size
        case patterns.Dilated(size, dilation):
            return abs(i - j) in range(0, size * dilation, dilation)
        case patterns.Strided(stride):
            return (i - j) % stride == 0
        case patterns.Fixed(stride, tail):
            return j % stride >= stride - tail
        case patterns.Global(tokens):
            return min(i, j) < tokens
        case patterns.Random():
            return j in draws(pattern, i)
        case patterns.Block(size, over):
            return sees(over, i // size, j // size, head)
        case And(parts):
            return all(sees(part, i, j, head) for part in parts)
        case Or(parts):
            return any(sees(part, i, j, head) for part in parts)
        case patterns.PerHead(of_heads):
            return sees(of_heads[head], i, j, head)
        case patterns.Neighbourhood() | patterns.ShiftedWindows():
            return sees_cell(pattern, i - pattern.first, j - pattern.first)
    raise NoFormula(repr(pattern))


def sees_cell(pattern: patterns.Neighbourhood | patterns.ShiftedWindows, i: int, j: int) -> bool:
    """Return whether a cell sees another one, counted from the first; what is before sees none."""
    if min(i, j) < 0:
        return False
    axes = zip(divmod(i, pattern.columns), divmod(j, pattern.columns), strict=True)
    for (of_query, of_key), lines in zip(axes, (pattern.rows, pattern.columns), strict=True):
        if isinstance(pattern, patterns.ShiftedWindows):
            shift, size = pattern.shift, pattern.size
            if (of_query - shift) // size != (of_key - shift) // size:
                return False
        else:
            first = min(max(of_query - pattern.size // 2, 0), lines - pattern.size)
            if not first <= of_key < first + pattern.size:
                return False
    return True


@lru_cache(maxsize=64)
def keys_of(pattern: Pattern, places: range, keys: int, head: int) -> list[list[int]]:
    """Return the keys that each query of a head may see, queries at these places."""
    return [[j for j in range(keys) if sees(pattern, i, j, head)] for i in places]


def looks_back(pattern: Pattern) -> bool:
    """Return whether a pattern is one of the past, which is what makes a mixing triangular."""
    match pattern:
        case patterns.Causal() | patterns.Random(length=None):
            return True
        case And(parts):
            return any(map(looks_back, parts))
        case Or(parts) | patterns.PerHead(parts):
            return all(map(looks_back, parts))
    return False


# --- maps, norms and positions ---------------------------------------------------------------


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Return x W^T + b; b where it is learned."""
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def cut(x: Tensor, heads: int) -> list[Tensor]:
    """Return column slices [rows, width / heads]."""
    width = x.shape[1] // heads
    return [x[:, n * width : (n + 1) * width] for n in range(heads)]


def rms(x: Tensor, eps: float) -> Tensor:
    """Return rows divided by their root mean square."""
    return x / ((x * x).mean(1, keepdim=True) + eps).sqrt()


def normed(spec: AttentionSpec, p: Parameters, side: str, x: Tensor, heads: int) -> list[Tensor]:
    """Return heads of queries (side "q") or keys ("k"), normalised."""
    match spec.norm:
        case encoders.NoNorm():
            return cut(x, heads)
        case encoders.HeadRMS(eps):
            return [rms(head, eps) * p[f"{side}_norm.weight"] for head in cut(x, heads)]
        case encoders.ProjectionRMS(eps):
            return cut(rms(x, eps) * p[f"{side}_norm.norm.weight"], heads)
        case encoders.HeadLayerNorm(eps):
            made = []
            for n, head in enumerate(cut(x, heads)):
                centred = head - head.mean(1, keepdim=True)
                made.append(rms(centred, eps) * p[f"{side}_norm.weight"][n])
            return made
    raise NoFormula(repr(spec.norm))


def frequencies(rope: positions.Rope, width: int) -> tuple[list[float], float]:  # noqa: C901
    """Return the angle of each pair at position 1, and the factor of what is rotated."""
    plain = [rope.theta ** (-2 * i / width) for i in range(width // 2)]
    match rope.scaling:
        case None:
            return plain, 1.0
        case positions.LinearScaling(factor):
            return [f / factor for f in plain], 1.0
        case positions.FastPairs(share):
            turning = max(1, math.floor(share * len(plain)))
            return [f if i < turning else 0.0 for i, f in enumerate(plain)], 1.0
        case positions.NTKScaling(factor):
            theta = rope.theta * factor ** (width / (width - 2)) if width > 2 else rope.theta
            return [theta ** (-2 * i / width) for i in range(width // 2)], 1.0
        case positions.PairScaling(factors, attention_factor):
            return [f / by for f, by in zip(plain, factors, strict=True)], attention_factor
        case positions.Llama3Scaling(factor, length, low, high):
            made = []
            for f in plain:
                w = min(max((length * f / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
                made.append((1 - w) * f / factor + w * f)
            return made, 1.0
        case positions.YarnScaling(factor, length, fast, slow, attention_factor, truncate):

            def pair(turns: float) -> float:
                return width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(rope.theta))

            first, last = pair(fast), pair(slow)
            if truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, width - 1)
            last = last if last != first else first + 1e-3  # as in the authors' program
            made = []
            for i, f in enumerate(plain):
                w = min(max((i - first) / (last - first), 0.0), 1.0)
                made.append((1 - w) * f + w * f / factor)
            amplitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
            return made, amplitude if attention_factor is None else attention_factor
    raise NoFormula(repr(rope.scaling))


def rotated(spec: AttentionSpec, x: Tensor) -> Tensor:
    """Return queries or keys [T, D] of the positions 0 to T - 1, rotated pair by pair."""
    at = torch.arange(len(x), dtype=torch.float64)
    match spec.position:
        case positions.NoPosition() | positions.Alibi():
            return x
        case positions.Rope(layout=layout, features=features):
            width = features or x.shape[1]
            turns, amplitude = frequencies(spec.position, width)
            half = width // 2
            pairs = [(i, i + half) if layout == "half" else (2 * i, 2 * i + 1) for i in range(half)]
            angles = [at * f for f in turns]
        case positions.AxialRope(columns, theta, first):
            cell = (at - first).clamp(min=0)
            amplitude, width = 1.0, x.shape[1]
            pairs = [(2 * i, 2 * i + 1) for i in range(width // 2)]
            angles = [
                (cell // columns if i % 2 else cell % columns) * theta ** (-4 * (i // 2) / width)
                for i in range(width // 2)
            ]
        case _:
            raise NoFormula(repr(spec.position))
    made = list(x.unbind(1))
    for (a, b), angle in zip(pairs, angles, strict=True):
        cos, sin = ((amplitude * turn).to(x.dtype) for turn in (angle.cos(), angle.sin()))
        made[a], made[b] = x[:, a] * cos - x[:, b] * sin, x[:, a] * sin + x[:, b] * cos
    return torch.stack(made, 1)


def slopes(heads: int) -> list[float]:
    """Return the slope of each head (Press et al. 2021, section 3, and its program)."""
    power = 2 ** math.floor(math.log2(heads))
    made = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return made + [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power, 2)][: heads - power]


# --- queries, keys and values ----------------------------------------------------------------


def project(spec: AttentionSpec, p: Parameters, x: Tensor, source: Tensor) -> Projected:
    """Return queries of x, keys and values of the source."""
    if isinstance(spec.encoder, encoders.MLA):
        return project_latent(spec, spec.encoder, p, x, source)
    heads, groups, maps = spec.num_heads, spec.num_kv_heads or spec.num_heads, spec.combine.maps
    width = groups * maps * (spec.head_dim or spec.d_model // (heads * maps))
    columns = source[:, :width]
    match spec.encoder:
        case encoders.Standard() | encoders.Forgetting():
            k, v = linear(p, "k_proj", source), linear(p, "v_proj", source)
        case encoders.Optimised():
            k, v = linear(p, "k_proj", source), columns
        case encoders.Efficient():
            k, v = columns, columns
        case encoders.Latent():
            k = v = linear(p, "k_proj", source)
        case _:
            raise NoFormula(repr(spec.encoder))
    share, single = heads // groups, cut(linear(p, "q_proj", x), heads * maps)
    single = [  # as the kernel has them: key head, map, head
        single[(g * share + n) * maps + i]
        for g in range(groups)
        for i in range(maps)
        for n in range(share)
    ]
    queries = normed(spec, p, "q", torch.cat(single, 1), heads * maps)
    keys = normed(spec, p, "k", k, groups * maps)
    values = cut(v, groups)
    if isinstance(spec.norm, encoders.QKVNorm):
        values = [rms(head, spec.norm.eps) for head in values]
    forget = None
    if isinstance(spec.encoder, encoders.Forgetting):
        forget = torch.nn.functional.logsigmoid(linear(p, "f_proj", source)).T
    q, k = [rotated(spec, one) for one in queries], [rotated(spec, one) for one in keys]
    return Projected(q, k, values, (queries, keys), forget)


def project_latent(
    spec: AttentionSpec, mla: encoders.MLA, p: Parameters, x: Tensor, source: Tensor
) -> Projected:
    """Return queries, keys and values of multi-head latent attention."""
    heads, content = spec.num_heads, spec.head_dim or spec.d_model // spec.num_heads
    if mla.query_rank is None:
        queries = linear(p, "q_proj", x)
    else:
        latent = rms(linear(p, "q_a_proj", x), 1e-6) * p["q_a_norm.weight"]
        queries = linear(p, "q_b_proj", latent)
    down = linear(p, "kv_a_proj", source)
    latent, shared = down[:, : mla.rank], rotated(spec, down[:, mla.rank :])
    latent = rms(latent, 1e-6) * p["kv_a_norm.weight"]
    up = cut(latent @ p["kv_b_proj.weight"].T, heads)
    q = [
        torch.cat([one[:, :content], rotated(spec, one[:, content:])], 1)
        for one in cut(queries, heads)
    ]
    k = [torch.cat([one[:, :content], shared], 1) for one in up]
    return Projected(q, k, [one[:, content:] for one in up], ([], []))


def mixed(spec: AttentionSpec, p: Parameters, made: Projected) -> Projected:
    """Return keys and values as the kernel reads them: V' = W V + b, or E K and F V."""
    value, rows = spec.mixing, len(made.v[0])
    if isinstance(value, mixing.NoMixing) or not rows:
        return made
    per_head = getattr(value, "per_head", False)
    if isinstance(value, mixing.LowRank):
        of_keys = p["mixing.keys"][:, :, :rows]
        of_values = of_keys if value.shared else p["mixing.values"][:, :, :rows]
        maps = len(made.k) // len(made.v)
        k = [of_keys[n // maps if per_head else 0] @ one for n, one in enumerate(made.k)]
        v = [of_values[g if per_head else 0] @ one for g, one in enumerate(made.v)]
        return made._replace(k=k, v=v)
    values = []
    for g, v in enumerate(made.v):
        weight = p["mixing.weight"][g if per_head else 0]
        bias = p["mixing.bias"][g if per_head else 0] if value.bias else None
        values.append(torch.stack([mixed_row(spec, weight, bias, v, t) for t in range(rows)]))
    return made._replace(v=values)


def mixed_row(
    spec: AttentionSpec, weight: Tensor, bias: Tensor | None, v: Tensor, t: int
) -> Tensor:
    """Return what position t gets of values [S, E]."""
    sources = [s for s in range(len(v)) if s <= t or not looks_back(spec.pattern)]
    match spec.mixing:
        case mixing.Alignment():
            row, at = weight[t, sources], t
        case mixing.BlockAlignment(size):
            sources = [s for s in sources if s // size == t // size]
            row, at = weight[t % size, [s % size for s in sources]], t % size
        case mixing.BandedAlignment(width=width):
            sources = [s for s in sources if abs(t - s) < width]
            row, at = weight[t, [s - t + width - 1 for s in sources]], t
        case mixing.ToeplitzAlignment(width):
            sources = [s for s in sources if abs(t - s) < width]
            row, at = weight[[s - t + width - 1 for s in sources]], ...
        case _:
            raise NoFormula(repr(spec.mixing))
    return row @ v[sources] + (0.0 if bias is None else bias[at])


# --- kernels ---------------------------------------------------------------------------------


def outputs(
    spec: AttentionSpec, p: Parameters, x: Tensor, made: Projected, visible: Visible
) -> list[Tensor]:
    """Return the outputs [T, E] of all H M maps, in the order of key head, map, head."""
    found = []
    for n, q in enumerate(made.q):
        g = n * len(made.v) // len(made.q)
        k, v = made.k[n * len(made.k) // len(made.q)], made.v[g]
        keys = visible(len(q), len(k), n)
        match spec.kernel:
            case kernels.Elu() | kernels.Favor() | kernels.Rfa():
                found.append(of_sums(spec, p, q, k, v, keys))
            case kernels.Decayed() | kernels.Delta():
                raise AssertionError("recurrences are computed for all heads at once")
            case _:
                forget = None if made.forget is None else made.forget[g]
                found.append(of_pairs(spec, p, n, q, k, v, keys, forget))
    return found


def of_pairs(
    spec: AttentionSpec,
    p: Parameters,
    n: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: list[list[int]],
    forget: Tensor | None,
) -> Tensor:
    """Return weighted sums of the values that each query may see."""
    scale = spec.scale
    if scale is None:
        scale = k.shape[1] ** -0.5
    rows = []
    for t, seen in enumerate(keys):
        if not seen:
            rows.append(v.new_zeros(v.shape[1]))
            continue
        scores = scale * (k[seen] @ q[t])
        kernel: Kernel = spec.kernel
        if isinstance(kernel, kernels.Softmax) and kernel.cap is not None:
            scores = kernel.cap * (scores / kernel.cap).tanh()
        elif hasattr(kernel, "own_scores"):
            scores = kernel.own_scores(q[t], k[seen], scale)
        if isinstance(spec.position, positions.Alibi):
            slope = slopes(spec.num_heads * spec.combine.maps)[n]
            scores = scores - slope * scores.new_tensor([abs(t - s) for s in seen])
        if forget is not None:
            scores = scores + torch.stack([forget[s + 1 : t + 1].sum() for s in seen])
        rows.append(weights_of_row(kernel, p, n, scores) @ v[seen])
    return torch.stack(rows)


def weights_of_row(kernel: Kernel, p: Parameters, n: int, scores: Tensor) -> Tensor:
    """Return the weights of the keys that one query may see."""
    if type(kernel) is kernels.Softmax:
        sink = p["sinks"][n] if kernel.sink else torch.tensor(-torch.inf)
        top = scores.detach().max().maximum(sink.detach())
        e = (scores - top).exp()
        return e / (e.sum() + (sink - top).exp())
    if hasattr(kernel, "own_weights"):
        return kernel.own_weights(scores, p, n)
    raise NoFormula(repr(kernel))


def features(spec: AttentionSpec, p: Parameters, x: Tensor) -> Tensor:
    """Return phi of queries or keys, [rows, F]."""
    match spec.kernel:
        case kernels.Elu():
            return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
        case kernels.Favor():
            scale = x.shape[1] ** -0.5 if spec.scale is None else spec.scale
            x = x * scale**0.5
            return (x @ p["features.omega"].T - (x * x).sum(1, keepdim=True) / 2).exp()
        case kernels.Rfa():
            norm = (x * x).sum(1, keepdim=True).sqrt()
            turned = (x / norm) @ p["features.omega"].T
            return torch.cat([turned.sin(), turned.cos()], 1)
    raise NoFormula(repr(spec.kernel))


def of_sums(
    spec: AttentionSpec, p: Parameters, q: Tensor, k: Tensor, v: Tensor, keys: list[list[int]]
) -> Tensor:
    """Return sums of values weighed by products of features."""
    phi_q, phi_k = features(spec, p, q), features(spec, p, k)
    rows = []
    for t, seen in enumerate(keys):
        if not seen:
            rows.append(v.new_zeros(v.shape[1]))
            continue
        products = phi_k[seen] @ phi_q[t]
        total = products.sum()
        if isinstance(spec.kernel, kernels.Rfa):
            least = spec.kernel.features / 2 / 1024
            if abs(total) < least:
                total = total.detach().sign() * least
        rows.append(products @ v[seen] / total)
    return torch.stack(rows)


def recurrence(spec: AttentionSpec, p: Parameters, x: Tensor, made: Projected) -> list[Tensor]:
    """Return the outputs of decayed or corrected sums, token by token."""
    kernel, heads, groups = spec.kernel, spec.num_heads, len(made.v)
    q, k, v = made.q, made.k, made.v
    if kernel.convolution is not None:
        joined = torch.cat([*q, *k, *v], 1)
        taps = p["recurrence.convolution"]  # [channels, taps], the token's own last
        rows = []
        for t in range(len(x)):
            total = torch.zeros_like(joined[0])
            for back in range(min(kernel.convolution, t + 1)):
                total = total + taps[:, kernel.convolution - 1 - back] * joined[t - back]
            rows.append(total * total.sigmoid())
        parts = torch.stack(rows).split([one.shape[1] for one in (*q, *k, *v)], 1)
        q, k, v = parts[:heads], parts[heads : heads + groups], parts[heads + groups :]
    scale = q[0].shape[1] ** -0.5 if spec.scale is None else spec.scale
    decays, steps, betas = gates(spec, p, x)
    found = []
    for h in range(heads):
        g = h // (heads // groups)
        queries, keys = q[h], k[g]
        if isinstance(kernel, kernels.Delta):
            queries, keys = (
                one / ((one * one).sum(1, keepdim=True) + 1e-6).sqrt() for one in (queries, keys)
            )
        state, rows = x.new_zeros(keys.shape[1], v[g].shape[1]), []
        for t in range(len(x)):
            state = decays[h][t].reshape(-1, 1) * state
            value = v[g][t] * steps[h][t]
            if isinstance(kernel, kernels.Delta):
                value = betas[h][t] * (value - state.T @ keys[t])
            state = state + torch.outer(keys[t], value)
            rows.append(scale * (state.T @ queries[t]))
        found.append(torch.stack(rows))
    return found


def gates(spec: AttentionSpec, p: Parameters, x: Tensor) -> tuple[Any, Any, Any]:
    """Return by head and token: the decay (of each feature), the factor of values, and beta."""
    heads, ones = spec.num_heads, torch.ones(spec.num_heads, len(x), dtype=x.dtype)
    match spec.kernel:
        case kernels.Decayed(per="head", decays=given):
            given = given or [1 - 2.0 ** (-5 - h) for h in range(heads)]
            return ones * torch.tensor(given, dtype=x.dtype)[:, None], ones, None
        case kernels.Decayed(per="feature"):
            hidden = x @ p["recurrence.gates.down_proj.weight"].T
            logits = linear(p, "recurrence.gates.up_proj", hidden)
            return [one.sigmoid() ** (1 / 16) for one in cut(logits, heads)], ones, None
        case kernels.Decayed(per="token") | kernels.Delta(gated=True):
            steps = x @ p["recurrence.gates.decay_proj.weight"].T + p["recurrence.gates.step_bias"]
            steps = (1 + steps.exp()).log().T
            decay = (-p["recurrence.gates.log_rate"].exp()[:, None] * steps).exp()
            if isinstance(spec.kernel, kernels.Decayed):
                return decay, steps, None
            return decay, ones, (x @ p["recurrence.gates.beta_proj.weight"].T).sigmoid().T
        case kernels.Delta():
            return ones, ones, (x @ p["recurrence.gates.beta_proj.weight"].T).sigmoid().T
    raise NoFormula(repr(spec.kernel))


def with_past(
    spec: AttentionSpec, p: Parameters, made: Projected, local: list[Tensor]
) -> list[Tensor]:
    """Return each head's output within its segment, and what it reads of earlier ones."""
    infini = spec.past
    if not isinstance(infini, Infini):
        raise NoFormula(repr(infini))
    size, found = infini.segment, []
    for h, q in enumerate(made.content[0]):
        g = h // (spec.num_heads // len(made.v))
        phi_q, phi_k = (
            torch.where(one > 0, one + 1, one.clamp(max=0).exp()) for one in (q, made.content[1][g])
        )
        v, rows = made.v[g], []
        memory, z = v.new_zeros(phi_k.shape[1], v.shape[1]), v.new_zeros(phi_k.shape[1])
        for first in range(0, len(v), size):
            span = range(first, min(first + size, len(v)))
            for t in span:
                remote = phi_q[t] @ memory / (phi_q[t] @ z) if first else torch.zeros_like(v[0])
                gate = p["past.gate"][h].sigmoid()
                rows.append(gate * remote + (1 - gate) * local[h][t])
            before, total = memory, z
            for s in span:
                value = v[s]
                if infini.delta and first:
                    value = value - phi_k[s] @ before / (phi_k[s] @ total)
                memory, z = memory + torch.outer(phi_k[s], value), z + phi_k[s]
        found.append(torch.stack(rows))
    return found


# --- the layer -------------------------------------------------------------------------------


def combined(
    spec: AttentionSpec, p: Parameters, x: Tensor, made: Projected, found: list[Tensor]
) -> Tensor:
    """Return the layer's output [T, d_model] of the heads' outputs."""
    match spec.combine:
        case combine.Gated(per, activation, norm, eps):
            logits = linear(p, "gate_proj", x)
            opened = logits.sigmoid() * (logits if activation == "silu" else 1.0)
            if norm:
                found = [rms(one, eps) * p["head_norm.weight"] for one in found]
            width = found[0].shape[1] if per == "feature" else 1
            found = [one * opened[:, n * width : (n + 1) * width] for n, one in enumerate(found)]
        case combine.Concat():
            pass
        case combine.Exclusive():
            share, kept = spec.num_heads // len(made.v), []
            for h, one in enumerate(found):
                own = made.v[h // share]
                kept.append(
                    one - (one * own).sum(1, keepdim=True) * own / own.square().sum(1, True)
                )
            found = kept
        case combine.Differential(depth, eps):
            start = 0.8 - 0.6 * math.exp(-0.3 * depth)
            q_1, k_1, q_2, k_2 = p["difference.lambdas"]
            factor = (q_1 @ k_1).exp() - (q_2 @ k_2).exp() + start
            gains, share, made_of = p["difference.norm.weight"], spec.num_heads // len(made.v), []
            for h in range(spec.num_heads):
                first = h // share * 2 * share + h % share
                difference = found[first] - factor * found[first + share]
                made_of.append((1 - start) * rms(difference, eps) * gains)
            found = made_of
        case _:
            raise NoFormula(repr(spec.combine))
    return linear(p, "o_proj", torch.cat(found, 1))


def attention(
    spec: AttentionSpec,
    p: Parameters,
    x: Tensor,
    source: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    near: tuple[int, int] | None = None,
) -> Tensor:
    """Return what a layer gives one text, [T, d_model].

    Args:
        spec: the layer.
        p: its tensors by name, float64.
        x: [T, d_model].
        source: [S, d_source], where keys and values come from; None: x itself.
        mask: bool [H, T, S], what may be seen besides; None: everything.
        near: the latest keys that a query may see, and the first ones; None: all.
    """

    def visible(queries: int, keys: int, n: int) -> list[list[int]]:
        head = n if "PerHead" in repr(spec.pattern) else 0
        rows = keys_of(spec.pattern, range(queries), keys, head)
        if near is not None:
            rows = [[s for s in r if t - s < near[0] or s < near[1]] for t, r in enumerate(rows)]
        if mask is not None:
            rows = [[s for s in r if mask[n, t, s]] for t, r in enumerate(rows)]
        return rows

    made = mixed(spec, p, project(spec, p, x, x if source is None else source))
    if isinstance(spec.kernel, (kernels.Decayed, kernels.Delta)):
        found = recurrence(spec, p, x, made)
    else:
        found = outputs(spec, p, x, made, visible)
    if not isinstance(spec.past, NoPast):
        found = with_past(spec, p, made, found)
    return combined(spec, p, x, made, found)
