"""README's tables: the contest's, and that of the atlas with costs at 8,192 tokens."""

from __future__ import annotations

import json
from pathlib import Path

import suffice
from suffice_papers.atlas.standings import Standing, standings

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
CONTEST = Path(__file__).parents[1] / "benchmarks/measured/stdlib.json"
NAMES = {  # of the contest's mechanisms
    "standard": "`standard`",
    "standard+window:64+full:6": "windows of 64 in 5 of 6 layers",
    "gqa": "`gqa`",
    "gated_deltanet+softmax:4": "`gated_deltanet` in 3 of 4 layers",
    "mamba2": "`mamba2`",
    "efficient": "`efficient`",
}
MARKS = {"suffices": "✓", "does not suffice": "✗", "undecided": "·"}


def contest() -> str:
    """Return what `python -m benchmarks.headline` found as Markdown."""
    rows = json.loads(CONTEST.read_text("utf-8"))["rows"]
    plain = rows["standard"]
    lines = [
        "| 12 layers of | loss, nats | training | a token at 1k, 8k | state at 1k, 8k |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        costs = [(row["costs"][n], plain["costs"][n]) for n in row["costs"]]
        times = (f"{own['seconds'] / other['seconds']:.2f}x" for own, other in costs)
        sizes = (f"{own['state_bytes'] / other['state_bytes']:.2g}x" for own, other in costs)
        cells = (
            NAMES[name],
            _change(row),
            f"{row['train_seconds'] / plain['train_seconds']:.2f}x",
            ", ".join(times),
            ", ".join(sizes),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(row: dict) -> str:
    found = row["difference"]
    if found is None:
        return f"{row['loss']:.2f}"
    mean, low, high = (-found[end] for end in ("mean", "high", "low"))
    return f"{MARKS[row['outcome']]} {mean:+.3f} [{low:+.3f}, {high:+.3f}]"


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
