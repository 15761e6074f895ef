"""The README's table of mechanisms: the atlas's quality, and time and KV cache of 8,192 tokens."""

from __future__ import annotations

import suffice
from suffice.papers.atlas.standings import Standing, standings

KNOWN = {
    "standard": "multi-head attention, the baseline",
    "gqa": "heads share keys and values",
    "mla": "keys and values from one cached latent",
    "sliding_window": "the nearest keys only",
    "bigbird": "a window, global and random tokens",
    "linear": "a sum of features in place of the softmax",
    "performer": "the same with random features",
    "retnet": "a sum that decays by head",
    "mamba2": "a sum that decays as each token decides",
    "gated_deltanet": "a key's value is replaced, not added to",
}
D_MODEL, HEADS, LENGTH = 512, 8, 8_192
HELD = {"sliding_window": 256}  # tokens that a rolling cache keeps, exactly
QUALITY, RECALL = "shakespeare", "mqar8"


def measured() -> str:
    """Return the table as Markdown."""
    found = {(row.mechanism, row.task): row for row in standings()}
    costs = {name: _cost(name) for name in KNOWN}
    flops, cache = costs["standard"]
    lines = [
        "| preset | what it does | loss, nats | recall | FLOPs | cache |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, words in KNOWN.items():
        own_flops, own_cache = costs[name]
        cells = (
            f"`{name}`",
            words,
            _loss(found.get((name, QUALITY))),
            _recall(found[name, RECALL]),
            f"{own_flops / flops:.2f}x",
            f"{own_cache / cache:.2g}x",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _loss(row: Standing | None) -> str:
    if row is None or row.difference is None:
        return "0"
    mean, low, high = (
        -end for end in (row.difference.mean, row.difference.high, row.difference.low)
    )
    return f"{row.mark[0]} {mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _recall(row: Standing) -> str:
    return f"{row.solved.count} of {row.solved.seeds}"


def _cost(name: str) -> tuple[int, float]:
    spec = suffice.preset(name, d_model=D_MODEL, num_heads=HEADS, causal=True)
    return spec.cost(length=LENGTH).flops, spec.state_bytes(tokens=HELD.get(name, LENGTH))
