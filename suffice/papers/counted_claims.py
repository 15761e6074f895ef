"""Claims about parameters, products and FLOPs, computed here."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from suffice.models import configuration
from suffice.papers.finding import Finding, percent
from suffice.papers.flops import COUNTS, HEADS, averages, extra
from suffice.presets import preset, takes_length
from suffice.recipes import recipe

SIZES = {  # tokens and features of the models of version 2
    "MNIST": (64, 128),
    "CIFAR100": (257, 256),
    "ImageNet": (197, 768),
    "IMDB": (32, 32),
    "Amazon": (64, 64),
}


def layer(mechanism: str, d_model: int, length: int, *, bias: bool = True) -> int:
    """Return the parameters of one layer.

    Example:
        >>> layer("super_attention", 128, 64)
        37184
    """
    options = {"length": length} if takes_length(mechanism) else {}
    return preset(mechanism, d_model, 1, bias=bias, **options).cost(length).parameters


def averaged(stated: dict[str, int]) -> Finding:
    """Hold average ratios of FLOPs by equation 24 against stated percentages by heads."""
    found = averages("paper")
    return Finding(
        ours="; ".join(f"{heads}: {100 * found[heads]:.1f}%" for heads in HEADS),
        holds=tuple(round(100 * found[int(heads)]) == value for heads, value in stated.items()),
    )


def highest(stated: list[int]) -> Finding:
    """Hold the highest ratio of equation 24 against stated percentages, whole ones."""
    found = max(max(map(max, extra(COUNTS["paper"], "efficient", heads))) for heads in HEADS)
    near = {math.floor(100 * found), math.ceil(100 * found)}
    return Finding(
        ours=f"{100 * found:.1f}% on the grid, {200 / 3:.1f}% in the limit",
        holds=tuple(value in near for value in stated),
    )


def executed() -> Finding:
    """Hold equation 24 against the FLOPs of the matrix products that are executed."""
    parts, holds = [], []
    for task, (length, d_model) in SIZES.items():
        at = {"length": length, "d_model": d_model, "num_heads": 1}
        paper, true = (count.of("standard", **at) for count in COUNTS.values())
        parts.append(f"{task} {paper / 1e6:.3g} of {true / 1e6:.3g} MFLOPs")
        holds.append(paper >= true)
    return Finding(ours="equation 24 of what runs: " + "; ".join(parts), holds=tuple(holds))


def longer() -> Finding:
    """Ask whether what is saved grows with the length of the sequence."""
    d_model, lengths = 512, (64, 512, 4096)
    told, holds = [], []
    for count in COUNTS.values():
        saved = [
            1 - count.of("efficient", **at) / count.of("standard", **at)
            for at in ({"length": n, "d_model": d_model, "num_heads": 1} for n in lengths)
        ]
        told.append(f"{count.title}: " + ", ".join(f"{100 * share:.1f}%" for share in saved))
        holds.append(saved == sorted(saved))
    listed = ", ".join(map(str, lengths))
    return Finding(
        ours=f"saved by Efficient at {listed} tokens, {d_model} features: {'; '.join(told)}",
        holds=tuple(holds),
    )


def smaller(mechanism: str, stated: float) -> Finding:
    """Hold the share of a layer's parameters that is saved, task by task, to a percent."""
    found = {
        task: layer(mechanism, d_model, length) / layer("standard", d_model, length) - 1
        for task, (length, d_model) in SIZES.items()
    }
    return Finding(
        ours="; ".join(f"{task} {percent(share)}" for task, share in found.items()),
        holds=tuple(abs(share + stated) < 0.01 for share in found.values()),
    )


def tokens(d_model: int, printed: int, stated: int, unit: int) -> Finding:
    """Hold a stated number of tokens against the printed parameters of Super Attention.

    Args:
        d_model: of the layer.
        printed: parameters as printed.
        stated: tokens.
        unit: of the printed number; half of it is its rounding.
    """
    spare = [
        length
        for length in range(1, 1024)
        if abs(layer("super_attention", d_model, length) - printed) <= unit / 2
    ]
    told = str(spare[0]) if len(spare) == 1 else f"{spare[0]} to {spare[-1]}"
    return Finding(
        theirs=f"{printed:,} parameters of a layer",
        ours=f"that count needs {told} tokens; {stated} would give "
        f"{layer('super_attention', d_model, stated):,}",
        holds=(stated in spare,),
    )


def printed(counts: dict[str, list[int]]) -> Finding:
    """Ask whether counts printed in thousands are the exact ones, cut or rounded."""
    told, holds = [], []
    for name, (thousands, d_model, length) in counts.items():
        exact = layer(name, d_model, length)
        told.append(f"{name} {exact:,}, printed {thousands}K")
        holds.append(thousands in (exact // 1000, round(exact / 1000)))
    return Finding(ours="; ".join(told) + " (cut, not rounded)", holds=tuple(holds))


def fewer(stated: dict[str, str]) -> Finding:
    """Hold how many parameters fewer Efficient has than Standard, without biases.

    Args:
        stated: terms in d by the place that states them: "2dd" or "2d".
    """
    terms: dict[str, Callable[[int], int]] = {"2dd": lambda d: 2 * d * d, "2d": lambda d: 2 * d}
    sizes = (32, 128)
    saved = {
        d: layer("standard", d, d, bias=False) - layer("efficient", d, d, bias=False) for d in sizes
    }
    return Finding(
        ours="; ".join(f"d = {d}: {n:,} fewer = 2 d^2" for d, n in saved.items()),
        holds=tuple(all(terms[term](d) == n for d, n in saved.items()) for term in stated.values()),
    )


def alignment() -> Finding:
    """Ask whether W_A has as many parameters as a map of the features."""
    length, d_model = 64, 128
    own = layer("super_attention", d_model, length) - layer("efficient", d_model, length)
    return Finding(
        ours=f"with {length} tokens and {d_model} features W_A has {own:,} = l^2 + l, not d^2 = "
        f"{d_model**2:,}; W_Q is meant",
        holds=(own == d_model**2,),
    )


def leaves_keys_out() -> Finding:
    """Ask whether Optimised Attention leaves W_K out too."""
    d_model = 128
    optimised, efficient = (layer(name, d_model, 64) for name in ("optimised", "efficient"))
    return Finding(
        ours=f"at {d_model} features Optimised has {optimised:,} parameters, Efficient "
        f"{efficient:,}: the one that leaves both out is Efficient",
        holds=(optimised == efficient,),
    )


def rows_of_keys() -> Finding:
    """Ask whether heads that are rows of K fit the queries of a head."""
    length, d_model, heads = 6, 8, 2
    width = d_model // heads
    q, k = torch.zeros(length, width), torch.zeros(length, d_model)
    return Finding(
        ours=f"Q_i is {length} x {width}; rows of K are {_size(k[:width])} and do not fit, columns "
        f"are {_size(k[:, :width])} and do",
        holds=(k[:width].shape[1] == q.shape[1],),
    )


def output_map() -> Finding:
    """Ask whether the values of a head fit the whole W_O."""
    length, d_model, heads = 6, 8, 2
    width = d_model // heads
    return Finding(
        ours=f"V_i is {length} x {width}, W_O {d_model} x {d_model}: a head needs its own "
        f"{width} rows of W_O",
        holds=(width == d_model,),
    )


def scale() -> Finding:
    """Ask whether scores divided by d_k without a root are those of the definitions."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 5, 16, dtype=torch.float64)
    defined = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    stated = (q @ k.mT / q.shape[-1]).softmax(-1) @ v
    apart = (defined - stated).abs().max().item()
    return Finding(
        ours=f"the definitions and every layer here divide by sqrt(d_k); without the root outputs "
        f"of unit inputs are up to {apart:.1f} apart",
        holds=(apart < 1e-9,),
    )


def products(stated: str) -> Finding:
    """Ask how many matrix products fewer Super Attention needs than Standard.

    A product with each head's own map counts for each head, one with a shared map once; W_A V is
    made once for all heads.
    """
    found = {}
    for heads in (1, 2, 4, 8):
        standard = 3 * heads + 1  # W_Q, W_K, W_V of each head, one W_O
        found[heads] = standard - (heads + 1 + 1)  # W_Q of each head, one W_O, one W_A
    told = ", ".join(f"{heads} heads {saved}" for heads, saved in found.items())
    return Finding(
        ours=f"{told}: {stated}, if W_A V is made once for all heads; h fewer if it is made for "
        "each",
        holds=tuple(saved == 2 * heads - 1 for heads, saved in found.items()),
    )


def sized(name: str, mechanisms: list[str], stated: list[float], unit: float) -> Finding:
    """Hold the parameters of whole models against what is stated.

    Args:
        name: of the recipe, or of a language model's configuration.
        mechanisms: whose.
        stated: in millions, one for each.
        unit: of the last digit stated, in millions.
    """
    told, holds = [], []
    for mechanism, millions in zip(mechanisms, stated, strict=True):
        exact = _parameters(name, mechanism)
        told.append(f"{mechanism} {exact:,}")
        holds.append(abs(exact / 1e6 - millions) <= unit)
    return Finding(ours="; ".join(told), holds=tuple(holds))


def quotient(parts: list[list[float]]) -> Finding:
    """Work out percentages again.

    Args:
        parts: [numerator, denominator, stated percentage] of each.
    """
    told = [f"{a:g} / {b:g} = {100 * a / b:.2f}%" for a, b, _ in parts]
    return Finding(
        theirs="; ".join(told), holds=tuple(round(100 * a / b, 2) == c for a, b, c in parts)
    )


def shared_heads(name: str) -> Finding:
    """Ask whether a model's attention is the standard one, a key and value for each query head."""
    config, specs = configuration(name)
    spec = next(iter(specs)) if isinstance(specs, list | tuple) else specs
    share = layer_share(spec.num_heads, spec.num_kv_heads)
    return Finding(
        ours=f"{spec.num_heads} query heads share {spec.num_kv_heads} key/value heads: {share:g} "
        "d^2 parameters of a layer, where Standard has 4 d^2",
        holds=(spec.num_kv_heads == spec.num_heads,),
    )


def layer_share(num_heads: int, num_kv_heads: int) -> float:
    """Return the parameters of grouped attention in units of d^2.

    Example:
        >>> layer_share(32, 4)
        2.25
    """
    return 2 + 2 * num_kv_heads / num_heads


def untested(why: str) -> Finding:
    """Say why a claim is not tested."""
    return Finding(ours=why, holds=(None,))


def _parameters(name: str, mechanism: str) -> int:
    """Count a model's parameters without making it."""
    with torch.device("meta"):
        if name == "gpt2_124m":
            config, specs = configuration(name, mechanism)
            model = config.build(specs)
        else:
            model = recipe(name).build(mechanism, recipe(name).num_heads)
    return sum(parameter.numel() for parameter in model.parameters())


def _size(matrix: torch.Tensor) -> str:
    return " x ".join(map(str, matrix.shape))
