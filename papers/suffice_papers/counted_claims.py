"""Claims about parameters, products and FLOPs, computed here."""

from __future__ import annotations

import itertools
import math

import torch

from suffice.memory import Dynamic, Memory, Rolling
from suffice.models import configuration
from suffice.presets import preset, takes_length
from suffice.spec import AttentionSpec
from suffice.train.recipes import recipe
from suffice_papers.finding import ClaimFinding, percent
from suffice_papers.flops import COUNTS, HEADS, averages, extra

SIZES = {  # tokens and features of the models of version 2
    "MNIST": (64, 128),
    "CIFAR100": (257, 256),
    "ImageNet": (197, 768),
    "IMDB": (32, 32),
    "Amazon": (64, 64),
}


def layer_parameters(mechanism: str, d_model: int, length: int, *, bias: bool = True) -> int:
    """Return the parameters of one layer.

    Example:
        >>> layer_parameters("super_attention", 128, 64)
        37184
    """
    options = {"length": length} if takes_length(mechanism) else {}
    return preset(mechanism, d_model, 1, bias=bias, **options).cost(length).parameters


def averaged(stated: dict[str, int]) -> ClaimFinding:
    """Compare average ratios of FLOPs by equation 24 with stated percentages by heads."""
    ratios = averages("paper")
    return ClaimFinding(
        ours="; ".join(f"{heads}: {100 * ratios[heads]:.1f}%" for heads in HEADS),
        holds=tuple(round(100 * ratios[int(heads)]) == value for heads, value in stated.items()),
    )


def highest(stated: list[int]) -> ClaimFinding:
    """Compare the highest ratio of equation 24 with stated percentages, whole ones."""
    ratio = max(max(map(max, extra(COUNTS["paper"], "efficient", heads))) for heads in HEADS)
    near = {math.floor(100 * ratio), math.ceil(100 * ratio)}
    return ClaimFinding(
        ours=f"{100 * ratio:.1f}% on the grid, {200 / 3:.1f}% in the limit",
        holds=tuple(value in near for value in stated),
    )


def executed() -> ClaimFinding:
    """Compare equation 24 with the FLOPs of the matrix products that are executed."""
    parts, holds = [], []
    for task, (length, d_model) in SIZES.items():
        at = {"length": length, "d_model": d_model, "num_heads": 1}
        paper, true = (count.of("standard", **at) for count in COUNTS.values())
        parts.append(f"{task} {paper / 1e6:.3g} of {true / 1e6:.3g} MFLOPs")
        holds.append(paper >= true)
    return ClaimFinding(ours="equation 24 of what runs: " + "; ".join(parts), holds=tuple(holds))


def longer() -> ClaimFinding:
    """Check whether the saving grows with the length of the sequence."""
    d_model, lengths = 512, (64, 512, 4096)
    parts, holds = [], []
    for count in COUNTS.values():
        sizes = [{"length": n, "d_model": d_model, "num_heads": 1} for n in lengths]
        saved = [1 - count.of("efficient", **at) / count.of("standard", **at) for at in sizes]
        parts.append(f"{count.title}: " + ", ".join(f"{100 * share:.1f}%" for share in saved))
        holds.append(saved == sorted(saved))
    listed = ", ".join(map(str, lengths))
    return ClaimFinding(
        ours=f"saved by Efficient at {listed} tokens, {d_model} features: {'; '.join(parts)}",
        holds=tuple(holds),
    )


def smaller(mechanism: str, stated: float) -> ClaimFinding:
    """Compare the share of a layer's parameters that is saved, task by task, to a percent."""
    shares = {
        task: layer_parameters(mechanism, d_model, length)
        / layer_parameters("standard", d_model, length)
        - 1
        for task, (length, d_model) in SIZES.items()
    }
    return ClaimFinding(
        ours="; ".join(f"{task} {percent(share)}" for task, share in shares.items()),
        holds=tuple(abs(share + stated) < 0.01 for share in shares.values()),
    )


def tokens(d_model: int, printed: int, stated: int, unit: int) -> ClaimFinding:
    """Compare a stated number of tokens with the printed parameters of Super Attention.

    Args:
        d_model: width of the layer.
        printed: parameters as printed.
        stated: tokens.
        unit: unit of the printed number; half of it is its rounding.
    """
    lengths = [
        length
        for length in range(1, 1024)
        if abs(layer_parameters("super_attention", d_model, length) - printed) <= unit / 2
    ]
    listed = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    return ClaimFinding(
        theirs=f"{printed:,} parameters of a layer",
        ours=f"that count needs {listed} tokens; {stated} would give "
        f"{layer_parameters('super_attention', d_model, stated):,}",
        holds=(stated in lengths,),
    )


def printed(counts: dict[str, list[int]]) -> ClaimFinding:
    """Check whether counts printed in thousands are the exact ones, cut or rounded."""
    parts, holds = [], []
    for name, (thousands, d_model, length) in counts.items():
        exact = layer_parameters(name, d_model, length)
        parts.append(f"{name} {exact:,}, printed {thousands}K")
        holds.append(thousands in (exact // 1000, round(exact / 1000)))
    return ClaimFinding(ours="; ".join(parts) + " (cut, not rounded)", holds=tuple(holds))


def fewer(stated: dict[str, str]) -> ClaimFinding:
    """Compare how many parameters fewer Efficient has than Standard, without biases."""
    terms = {"2dd": lambda d: 2 * d * d, "2d": lambda d: 2 * d}
    saved = {
        d: layer_parameters("standard", d, d, bias=False)
        - layer_parameters("efficient", d, d, bias=False)
        for d in (32, 128)
    }
    return ClaimFinding(
        ours="; ".join(f"d = {d}: {n:,} fewer = 2 d^2" for d, n in saved.items()),
        holds=tuple(all(terms[term](d) == n for d, n in saved.items()) for term in stated.values()),
    )


def alignment() -> ClaimFinding:
    """Check whether W_A has the same number of parameters as a map of the features."""
    length, d_model = 64, 128
    own = layer_parameters("super_attention", d_model, length) - layer_parameters(
        "efficient", d_model, length
    )
    return ClaimFinding(
        ours=f"with {length} tokens and {d_model} features W_A has {own:,} = l^2 + l, not d^2 = "
        f"{d_model**2:,}; W_Q is meant",
        holds=(own == d_model**2,),
    )


def leaves_keys_out() -> ClaimFinding:
    """Check whether Optimised Attention leaves W_K out too."""
    d_model = 128
    optimised, efficient = (layer_parameters(n, d_model, 64) for n in ("optimised", "efficient"))
    return ClaimFinding(
        ours=f"at {d_model} features Optimised has {optimised:,} parameters, Efficient "
        f"{efficient:,}: the one that leaves both out is Efficient",
        holds=(optimised == efficient,),
    )


LENGTH, D_MODEL, WIDTH = 6, 8, 4  # of the shapes below: two heads


def rows_of_keys() -> ClaimFinding:
    """Check whether heads that are rows of K fit the queries of a head."""
    return ClaimFinding(
        ours=f"Q_i is {LENGTH} x {WIDTH}; rows of K are {WIDTH} x {D_MODEL} and do not fit, "
        f"columns are {LENGTH} x {WIDTH} and do",
        holds=(D_MODEL == WIDTH,),
    )


def output_map() -> ClaimFinding:
    """Check whether the values of a head fit the whole W_O."""
    return ClaimFinding(
        ours=f"V_i is {LENGTH} x {WIDTH}, W_O {D_MODEL} x {D_MODEL}: a head needs its own "
        f"{WIDTH} rows of W_O",
        holds=(WIDTH == D_MODEL,),
    )


def scale() -> ClaimFinding:
    """Check whether scores divided by d_k without a root are those of the definitions."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 5, 16, dtype=torch.float64)
    defined = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    stated = (q @ k.mT / q.shape[-1]).softmax(-1) @ v
    error = (defined - stated).abs().max().item()
    return ClaimFinding(
        ours=f"the definitions and every layer here divide by sqrt(d_k); without the root outputs "
        f"of unit inputs are up to {error:.1f} apart",
        holds=(error < 1e-9,),
    )


def products(stated: str) -> ClaimFinding:
    """Count how many matrix products fewer Super Attention needs than Standard.

    A product with each head's own map counts for each head, one with a shared map once; W_A V is
    made once for all heads.
    """
    saved = {}
    for heads in (1, 2, 4, 8):
        standard = 3 * heads + 1  # W_Q, W_K, W_V of each head, one W_O
        saved[heads] = standard - (heads + 1 + 1)  # W_Q of each head, one W_O, one W_A
    listed = ", ".join(f"{heads} heads {n}" for heads, n in saved.items())
    return ClaimFinding(
        ours=f"{listed}: {stated}, if W_A V is made once for all heads; h fewer if it is made for "
        "each",
        holds=tuple(n == 2 * heads - 1 for heads, n in saved.items()),
    )


def sized(name: str, mechanisms: list[str], stated: list[float], unit: float) -> ClaimFinding:
    """Compare the parameters of whole models with what is stated."""
    exact = [_parameters(name, mechanism) for mechanism in mechanisms]
    return ClaimFinding(
        ours="; ".join(f"{m} {count:,}" for m, count in zip(mechanisms, exact, strict=True)),
        holds=tuple(
            abs(count / 1e6 - millions) <= unit
            for count, millions in zip(exact, stated, strict=True)
        ),
    )


def _parameters(name: str, mechanism: str) -> int:
    with torch.device("meta"):
        if name == "gpt2_124m":
            config, specs = configuration(name, mechanism)
            model = config.build(specs)
        else:
            model = recipe(name).build(mechanism, recipe(name).num_heads)
    return sum(parameter.numel() for parameter in model.parameters())


def quotient(parts: list[list[float]]) -> ClaimFinding:
    """Compute percentages again.

    Args:
        parts: [numerator, denominator, stated percentage] of each.
    """
    return ClaimFinding(
        theirs="; ".join(f"{a:g} / {b:g} = {100 * a / b:.2f}%" for a, b, _ in parts),
        holds=tuple(round(100 * a / b, 2) == stated for a, b, stated in parts),
    )


def shared_heads(name: str) -> ClaimFinding:
    """Check whether a model's attention is the standard one, a key and value per query head."""
    _, specs = configuration(name)
    spec = specs[0] if isinstance(specs, list | tuple) else specs
    share = 2 + 2 * spec.num_kv_heads / spec.num_heads  # W_Q and W_O, W_K and W_V
    return ClaimFinding(
        ours=f"{spec.num_heads} query heads share {spec.num_kv_heads} key/value heads: {share:g} "
        "d^2 parameters of a layer, where Standard has 4 d^2",
        holds=(spec.num_kv_heads == spec.num_heads,),
    )


def caches(stated: dict[str, list[float]]) -> ClaimFinding:
    """Compare KV caches of a Llama-like 7B model in 16 bits with stated bytes.

    Args:
        stated: [tokens, bytes] by number of key/value heads; to 2%.
    """
    bytes_by_heads = {heads: _cache(int(heads), int(n)) for heads, (n, _) in stated.items()}
    return ClaimFinding(
        ours="; ".join(
            f"{heads} key/value heads, {int(stated[heads][0]):,} tokens: {n / 1e6:,.0f} MB"
            for heads, n in bytes_by_heads.items()
        ),
        holds=tuple(abs(bytes_by_heads[h] / size - 1) < 0.02 for h, (_, size) in stated.items()),
    )


def cache_share(tokens: int, stated: float) -> ClaimFinding:
    """Compare the KV cache's share of a 7B model's memory in 16 bits with what is stated."""
    weights, cache = 2 * LLAMA_7B_PARAMETERS, _cache(LLAMA_7B_HEADS, tokens)
    needed = stated / (1 - stated) * weights / cache * tokens
    return ClaimFinding(
        ours=f"{cache / 1e9:.1f} of {(weights + cache) / 1e9:.1f} GB with {tokens:,} tokens: "
        f"{100 * cache / (weights + cache):.0f}%; {100 * stated:.0f}% takes {needed:,.0f} tokens",
        holds=(cache >= stated * (weights + cache),),
    )


def window_cache(window: int, lengths: list[int], growth: float) -> ClaimFinding:
    """Check whether a full cache grows as stated from length to length, and a window's does not."""
    full = [_cache(LLAMA_7B_HEADS // 4, n) for n in lengths]
    kept = [_cache(LLAMA_7B_HEADS // 4, n, Rolling(window)) for n in lengths]
    listed = ", ".join(f"{n:,}" for n in lengths)
    return ClaimFinding(
        ours=f"8 key/value heads at {listed} tokens: {', '.join(f'{n / 1e9:.2f}' for n in full)} GB"
        f"; with a window of {window:,}: {', '.join(f'{n / 1e9:.2f}' for n in kept)} GB",
        holds=(
            all(b / a >= 0.98 * growth for a, b in itertools.pairwise(full)),
            len(set(kept)) == 1,
        ),
    )


def shared_parameters(stated: list[float]) -> ClaimFinding:
    """Compare the parameters of a 7B model with one key/value head with what is stated, billions.

    Args:
        stated: billions with one key/value head for each query head, and with one for all.
    """
    each = [_llama_layer(heads).cost(1).parameters for heads in (LLAMA_7B_HEADS, 1)]
    shared = LLAMA_7B_PARAMETERS - LLAMA_7B_LAYERS * (each[0] - each[1])
    counts = [LLAMA_7B_PARAMETERS / 1e9, shared / 1e9]
    return ClaimFinding(
        ours=f"{counts[0]:.2f}B with {LLAMA_7B_HEADS} key/value heads, {counts[1]:.2f}B with one",
        holds=tuple(abs(ours - b) < 0.005 for ours, b in zip(counts, stated, strict=True)),
    )


LLAMA_7B_PARAMETERS, LLAMA_7B_LAYERS, LLAMA_7B_HEADS = 6_738_415_616, 32, 32  # as published


def _llama_layer(kv_heads: int) -> AttentionSpec:
    return preset("gqa", 4096, LLAMA_7B_HEADS, num_kv_heads=kv_heads, causal=True, bias=False)


def _cache(kv_heads: int, tokens: int, memory: Memory | None = None) -> int:
    layer = _llama_layer(kv_heads)
    return LLAMA_7B_LAYERS * layer.state_bytes(tokens, memory or Dynamic(), torch.float16)


def pairs_grow(sizes: dict[str, dict[str, int]], power: float) -> ClaimFinding:
    """Check by what power of the length the allowed pairs grow, from 1,024 to 4,096 tokens.

    Args:
        sizes: the sizes that stay as the length grows, by mechanism.
        power: the stated power; a measured one within 0.1 holds, as the ends have fewer keys.
    """
    lengths = (1024, 4096)
    powers = {}
    for name, options in sizes.items():
        of_length = [{"length": n} if takes_length(name) else {} for n in lengths]
        patterns = [preset(name, 64, 4, **own, **options).pattern for own in of_length]
        counts = [pattern.pairs(n, n) for pattern, n in zip(patterns, lengths, strict=True)]
        powers[name] = math.log(counts[1] / counts[0], lengths[1] / lengths[0])
    return ClaimFinding(
        ours="pairs grow with the length to the power of "
        + "; ".join(f"{name} {value:.2f}" for name, value in powers.items()),
        holds=tuple(abs(value - power) < 0.1 for value in powers.values()),
    )


def untested(needs: str) -> ClaimFinding:
    """Return what a test of a claim would take."""
    return ClaimFinding(holds=(None,), needs=needs)
