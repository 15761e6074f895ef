"""Bytes of a decoder's weights, KV cache and activations, here and in other engines.

The page counts the same in JavaScript, and tests compare every number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from suffice.choose.fits import ENGINES, table
from suffice.choose.fits.configs import Sizes
from suffice.errors import ConfigError
from suffice.utils.grammar import parse_term

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec

PRODUCTS = {"Standard": 3, "Optimised": 2, "Efficient": 1}
"""Learned maps of an encoder to queries, keys and values, counted here without torch."""
CHANGES = {
    "gqa": "num_kv_heads",
    "window": "window",
    "sinks": "sinks",
    "full": "full_every",
    "memory": "state_bits",
    "weights": "weight_bits",
}
LONGEST_TEXT = 1 << 30
HALF_BITS, SCALE_BITS = 16, 16
BLOCK = 64  # positions that `Quantised` encodes at once
MUCH_MORE = 1.5  # vLLM: layers of one kind for each of another, from which on they are split


class Kind(NamedTuple):
    full: bool  # whether these layers are the full ones
    count: int
    cached: int  # how many of them cache


class Layer(NamedTuple):
    heads: int
    kv_heads: int
    width: int
    parameters: int
    cached: int  # numbers of a token
    max_length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    # bytes of the KV cache and of recurrent states, by engine; None is not run by it
    state: dict[str, int | None]
    # numbers of the parts; "total", "active" for a token, and "experts", the routed
    weights: dict[str, int]
    weight_bytes: int  # bytes of all weights
    activations: int  # bytes of the peak of a block during a chunk of the prompt; an estimate

    def total(self, engine: str = ENGINES[0]) -> int:
        """Return the bytes of all parts; ConfigError if the engine does not run the model."""
        state = self.state[engine]
        if state is None:
            raise ConfigError(f"{engine} does not run this attention; give --engine suffice.")
        return self.weight_bytes + state + self.activations


def count(sizes: Sizes, length: int) -> Answer:
    """Return what a decoder takes for texts of a length; ConfigError for wrong sizes."""
    if type(length) is not int or not 1 <= length <= LONGEST_TEXT:
        raise ConfigError(f"length={length}: give a whole number from 1 to {LONGEST_TEXT:,}.")
    _check(sizes, length)
    weights = weights_of(sizes)
    return Answer(
        state={engine: state_bytes(sizes, length, engine) for engine in ENGINES},
        weights=weights,
        weight_bytes=_weight_bytes(sizes, weights),
        activations=_activation_bytes(sizes, length),
    )


def longest(sizes: Sizes, memory: int, engine: str = ENGINES[0]) -> int:
    """Return the longest text that fits, tokens; 0 if none does."""
    low, high = 0, (layer_of(sizes, full=False).max_length or LONGEST_TEXT) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fullest = max(middle - (middle + 1) % BLOCK, 1)  # positions wait until a block is full
        if all(count(sizes, n).total(engine) <= memory for n in {middle, fullest}):
            low = middle
        else:
            high = middle
    return low


def changed(sizes: Sizes, text: str) -> Sizes:
    """Return the sizes after changes such as "gqa:2+window:512"; ConfigError for illegal ones."""
    forms = [f"{name}:N" for name in CHANGES]
    terms = [parse_term(word, forms, kind="change", where=text) for word in text.split("+")]
    fields = {CHANGES[term.name]: term.number for term in terms}
    if len(fields) < len(terms) or not all(fields.values()):
        raise ConfigError(f"{text!r:.80}: give each change once, with a number of at least 1.")
    if sizes["recurrent_numbers"] and fields.keys() & {"window", "sinks", "full_every"}:
        raise ConfigError(f"{text!r:.80}: a window among recurrent layers is not counted.")
    if "full_every" in fields or ("window" in fields and not sizes["window"]):
        fields = {"full_every": 0, "full_count": 0} | fields
    return sizes | fields


def kinds_of(sizes: Sizes) -> list[Kind]:
    """Return the kinds of layers; the last shared ones read what others cache."""
    layers, every = sizes["layers"], sizes["full_every"]
    caching = layers - sizes["shared_layers"]
    full, cached = (layers // every, caching // every) if every else (sizes["full_count"],) * 2
    kinds = [Kind(False, layers - full, caching - cached), Kind(True, full, cached)]
    return [kind for kind in kinds if kind.count]


def layer_of(sizes: Sizes, full: bool) -> Layer:
    """Return the attention of a layer, or of a full layer; ConfigError for sizes without one."""
    # softmax and products alone are counted here without torch, the rest by its spec
    s, d_model, heads = sizes, sizes["d_model"], sizes["num_heads"]
    width = full * s["full_head_dim"] or s["head_dim"] or d_model // max(heads, 1)
    groups = full * s["full_kv_heads"] or s["num_kv_heads"] or heads
    queries, kv, maps = heads * width, groups * width, PRODUCTS.get(s["projections"], 0)
    fits = heads and heads % groups == 0 and (s["head_dim"] or width * heads == d_model)
    if not _is_plain(s, full) or not fits:
        return _layer_of_spec(s, full)
    if s["projections"] == "MLA" and not s["num_kv_heads"]:
        rotary, rank, ranks = s["rotary_dim"], s["rank"], s["query_rank"]
        value = s["value_dim"] or width
        queries = heads * (width + rotary)
        down = d_model * (rank + rotary) + rank * heads * (width + value) + rank
        query = d_model * ranks + ranks * queries + ranks if ranks else d_model * queries
        biases = s["bias"] * (ranks + queries + rank + rotary + d_model)
        parameters = query + down + heads * value * d_model + biases
        legal = min(rank, rotary) > 0 and rotary % (1 + s["rotary"]) == 0
        layer = Layer(heads, heads, width + rotary, parameters, rank + rotary)
    else:
        parameters = d_model * (2 * queries + (maps - 1) * kv)
        parameters += s["bias"] * (queries + (maps - 1) * kv + d_model)
        legal = width % (1 + s["rotary"]) == 0 and bool(maps) and (maps > 2 or kv == d_model)  # noqa: PLR2004
        layer = Layer(heads, groups, width, parameters, min(maps, 2) * kv)
    return layer if legal else _layer_of_spec(s, full)


def _is_plain(sizes: Sizes, full: bool) -> bool:
    return full or (sizes["kernel"] == "Softmax" and not sizes["mixing_size"])


def _layer_of_spec(sizes: Sizes, full: bool) -> Layer:
    spec = spec_of(sizes, full)
    sides, cost = (spec.num_heads, spec.kv_heads, spec.head_width), spec.cost(1)
    return Layer(*sides, cost.parameters, cost.state_numbers, spec.max_length)


def spec_of(sizes: Sizes, full: bool) -> AttentionSpec:
    from suffice import encoders, kernels, mixing, patterns, positions
    from suffice.spec import AttentionSpec

    causal, mixed = patterns.Causal(), 0 if full else sizes["mixing_size"]
    windowed = sizes["window"] and not full
    latent = {name: sizes[name] for name in ("rank", "rotary_dim")}
    latent |= {name: sizes[name] or None for name in ("value_dim", "query_rank")}
    encoder = getattr(encoders, sizes["projections"])
    return AttentionSpec(
        d_model=sizes["d_model"],
        num_heads=sizes["num_heads"],
        num_kv_heads=full * sizes["full_kv_heads"] or sizes["num_kv_heads"] or None,
        head_dim=full * sizes["full_head_dim"] or sizes["head_dim"] or None,
        pattern=patterns.Window(sizes["window"]) & causal if windowed else causal,
        encoder=encoder(**latent) if encoder is encoders.MLA else encoder(),
        mixing=getattr(mixing, sizes["mixing"])(mixed) if mixed else mixing.NoMixing(),
        kernel=kernels.Softmax() if full else getattr(kernels, sizes["kernel"])(),
        position=positions.Rope() if sizes["rotary"] else positions.NoPosition(),
        bias=sizes["bias"],
    )


def layer_bytes(sizes: Sizes, full: bool, length: int) -> int:
    """Return the bytes that one layer of this library keeps of one text."""
    if sizes["recurrent_numbers"] and not full:
        return 4 * (sizes["recurrent_numbers"] + sizes["convolution_numbers"])
    windowed = sizes["window"] and not full
    if sizes["state_bits"] >= HALF_BITS and _is_plain(sizes, full):
        most = (min(length, sizes["window"]) + min(length, sizes["sinks"])) if windowed else length
        return most * layer_of(sizes, full).cached * sizes["state_bits"] // 8
    import torch

    from suffice.memory import Dynamic, Memory, Quantised, Rolling

    memory: Memory = Rolling(sizes["window"], sinks=sizes["sinks"]) if windowed else Dynamic()
    if sizes["state_bits"] < HALF_BITS:
        memory = Quantised(memory, bits=sizes["state_bits"])
    dtype = torch.float32 if sizes["state_bits"] > HALF_BITS else torch.float16
    return spec_of(sizes, full).state_bytes(length, memory, dtype)


def state_bytes(sizes: Sizes, length: int, engine: str = ENGINES[0]) -> int | None:
    """Return the bytes of the states of all layers for the batch; None if it is not run."""
    if engine != ENGINES[0]:
        tensors = _tensors(sizes)
        number = table("families")["engines"][engine]["bytes"].get(str(sizes["state_bits"]))
        if tensors is None or number is None:
            return None
        allocated = {"llama.cpp": _llama_cpp, "vllm": _vllm}[engine]
        return math.ceil(sizes["batch"] * allocated(sizes, length, tensors * number))
    item = 4 if sizes["state_bits"] > HALF_BITS else 2
    state = sum(kind.cached * layer_bytes(sizes, kind.full, length) for kind in kinds_of(sizes))
    return sizes["batch"] * (state + indexers(sizes) * sizes["index_dim"] * item * length)


def indexers(sizes: Sizes) -> int:
    """Return the layers that cache the keys of an indexer, if they have one."""
    return sizes["index_layers"] or sizes["layers"]


def _tensors(sizes: Sizes) -> int | None:
    plain = sizes["projections"] in ("Standard", "MLA") and not sizes["mixing_size"]
    if not plain or sizes["kernel"] != "Softmax" or sizes["sinks"]:
        return None
    return 1 if sizes["projections"] == "MLA" else 2


def _width(sizes: Sizes, full: bool) -> int:
    if sizes["projections"] == "MLA":
        return sizes["rank"] + sizes["rotary_dim"]
    layer = layer_of(sizes, full)
    return layer.kv_heads * layer.width


def _llama_cpp(sizes: Sizes, length: int, number: float) -> float:
    facts = table("families")["engines"]["llama.cpp"]
    cells = _padded(length, facts["cells"])
    windowed = _padded(min(cells, sizes["window"] + facts["batch"]), facts["cells"])
    total = 0.0
    for full, _, cached in kinds_of(sizes):
        if sizes["recurrent_numbers"] and not full:
            total += 4 * cached * (sizes["recurrent_numbers"] + sizes["convolution_numbers"])
            continue
        positions = windowed if sizes["window"] and not full else cells
        total += cached * positions * _width(sizes, full) * number
    item = facts["bytes"][str(sizes["state_bits"])]
    return total + indexers(sizes) * sizes["index_dim"] * cells * item


def _vllm(sizes: Sizes, length: int, number: float) -> float:
    facts = table("families")["engines"]["vllm"]
    tokens, kinds = facts["page"], [kind for kind in kinds_of(sizes) if kind.cached]
    state = facts["bytes"]["16"] * (sizes["recurrent_numbers"] + sizes["convolution_numbers"])
    token_bytes = {
        kind.full: _width(sizes, kind.full) * number for kind in kinds if kind.full or not state
    }
    if state and token_bytes:
        tokens *= math.ceil(state / (tokens * token_bytes[True]))
    page = tokens * max(token_bytes.values(), default=0) or state
    groups = []
    for full, _, cached in kinds:
        if full not in token_bytes:
            groups.append((cached, 1))
            continue
        block = tokens * token_bytes[full]
        room = tokens if page % block else tokens * page // block  # tokens of a page
        positions, more = length, 0
        if sizes["window"] and not full:
            more = 0 if sizes["chunked"] else 1
            positions = min(sizes["window"] - more + facts["batch"], length)
        groups.append((cached, math.ceil(positions / room) + more))
    least, most = min(cached for cached, _ in groups), max(cached for cached, _ in groups)
    size = most if most < least * MUCH_MORE else least
    pages = sum(-(-cached // size) * blocks for cached, blocks in groups)
    index = facts["index"] * sizes["index_dim"] * indexers(sizes) * _padded(length, tokens)
    return size * page * pages + index


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block


def weights_of(sizes: Sizes) -> dict[str, int]:
    """Return the numbers of each part of a decoder."""
    s, maps = sizes, 3 if sizes["gated"] else 2
    routed = s["layers"] - s["dense_layers"] if s["experts"] else 0

    def mlp(width: int) -> int:
        biases = (maps - 1) * width + s["d_model"] if s["mlp_bias"] else 0
        return maps * s["d_model"] * width + biases if width else 0

    expert, router = mlp(s["expert_width"]), s["experts"] * (s["d_model"] + bool(s["mlp_bias"]))
    experts = (s["experts"] + s["shared_experts"]) * expert + router
    norms = (s["layers"] * s["norms"] + min(s["norms"], 1)) * (2 if s["norm_bias"] else 1)
    weights = {
        "attention": sum(_attention_of(sizes, kind) for kind in kinds_of(sizes)),
        "mlp": (s["layers"] - routed) * mlp(s["mlp_width"]) + routed * experts,
        "norms": norms * s["d_model"],
        "embedding": (s["vocabulary"] + s["positions"]) * s["d_model"] + s["extra_embeddings"],
        "head": 0 if s["tied"] else s["vocabulary"] * s["d_model"],
        "other": s["extra_parameters"],
    }
    total = sum(weights.values())
    resting = routed * (s["experts"] - s["active_experts"]) * expert
    unread = 0 if s["active_embedding"] else weights["embedding"]
    return weights | {
        "total": total,
        "resting": resting,
        "experts": routed * s["experts"] * maps * s["d_model"] * s["expert_width"],
        "active": total - resting - unread,
    }


def _attention_of(sizes: Sizes, kind: Kind) -> int:
    if sizes["recurrent_parameters"] and not kind.full:
        return kind.count * sizes["recurrent_parameters"]
    layer, d_model = layer_of(sizes, kind.full), sizes["d_model"]
    values = d_model * layer.kv_heads * layer.width
    left_out = values if sizes["one_kv_map"] and kind.full else 0
    gate = d_model * layer.heads * layer.width if sizes["gate"] else 0
    norm = layer.width if sizes["qk_norm"] else 0
    each = layer.parameters + gate + 2 * norm - left_out
    shared = kind.count - kind.cached
    return kind.count * each - shared * (2 * values + norm - left_out)


def _weight_bytes(sizes: Sizes, weights: dict[str, int]) -> int:
    embedding = weights["embedding"] + weights["head"]
    parts = {
        "attention": weights["attention"],
        "expert": weights["experts"],
        "embedding": embedding,
    }
    bits = sum(number * _bits(sizes, name) for name, number in parts.items())
    rest = weights["total"] - sum(parts.values())
    return math.ceil((bits + rest * _bits(sizes, "weight")) / 8)


def _bits(sizes: Sizes, part: str) -> float:
    bits = sizes[f"{part}_bits"] or sizes["weight_bits"]
    scaled = sizes["scale_group"] and bits < HALF_BITS and bits == int(bits)
    return bits + SCALE_BITS / sizes["scale_group"] if scaled else bits


def _activation_bytes(sizes: Sizes, length: int) -> int:
    s, layer = sizes, layer_of(sizes, full=False)
    queries, kv = layer.heads * layer.width, layer.kv_heads * layer.width
    if s["projections"] == "MLA":
        head = s["head_dim"] or s["d_model"] // s["num_heads"]
        value = s["value_dim"] or head
        up = layer.heads * (2 * head + 2 * value + s["rotary_dim"])
        heads = up + s["query_rank"] + s["rank"] + s["rotary_dim"]
    else:
        maps = {"Standard": 2, "Optimised": 1, "Latent": 1}.get(s["projections"], 0)
        heads = 2 * queries + maps * kv
    reading = (s["active_experts"] + s["shared_experts"]) * s["expert_width"]
    hidden = (3 if s["gated"] else 2) * max(s["mlp_width"], reading)
    features = 2 * s["d_model"] + max(heads, hidden)
    tokens = min(length, s["chunk"] or length)
    return s["batch"] * tokens * features * (4 if s["weight_bits"] > HALF_BITS else 2)


def _check(sizes: Sizes, length: int) -> None:
    s, last = sizes, sizes["layers"]
    together = [
        ("recurrent_numbers", "recurrent_parameters"),
        ("experts", "expert_width", "active_experts"),
    ]
    for names in together:
        if len({bool(s[name]) for name in names}) > 1:
            raise ConfigError(f"{', '.join(names)}: give all of them, or none.")
    if s["full_count"] and (s["full_every"] or s["shared_layers"]):
        raise ConfigError("full_count with full_every or shared_layers: give full_every alone.")
    limits = {
        "full_count": last,
        "full_every": last,
        "dense_layers": last,
        "shared_layers": last - 1,
        "active_experts": s["experts"],
    }
    for name, most in limits.items():
        if s[name] > most:
            raise ConfigError(f"{name}={s[name]}: give at most {most}.")
    longest_input = layer_of(sizes, full=False).max_length
    if longest_input is not None and length > longest_input:
        raise ConfigError(f"{s['mixing']} cannot read {length:,} tokens, only {longest_input:,}.")
