"""Every parameter count of the papers' tables, one attention layer each.

Hosseini et al. 2024, arXiv:2403.01643, versions 1 and 2; the counts include biases. The length is
that of the input, which only Super Attention's W_A and its bias depend on.
"""

from __future__ import annotations

import pytest

from suffice import Attention, preset

# (version, data set, d_model, length): heads tried, then standard, optimised, efficient, super
TABLES = {
    ("v1", "MNIST", 64, 64): ((1, 2, 4), 16_640, 12_480, 8_320, 12_480),
    ("v1", "CIFAR100", 144, 144): ((1, 2, 4, 6), 83_520, 62_640, 41_760, 62_640),
    ("v1", "IMDB", 32, 32): ((1, 2, 4), 4_224, 3_168, 2_112, 3_168),
    ("v1", "Amazon", 64, 64): ((1, 2, 4), 16_640, 12_480, 8_320, 12_480),
    ("v2", "MNIST", 128, 64): ((1, 2, 4, 8), 66_048, 49_536, 33_024, 37_184),
    ("v2", "CIFAR100", 256, 257): ((1, 2, 4, 8), 263_168, 197_376, 131_584, 197_890),
    ("v2", "ImageNet", 768, 197): ((1, 4, 8, 12), 2_362_368, 1_771_776, 1_181_184, 1_220_190),
    ("v2", "IMDB", 32, 32): ((1, 2, 4, 8), 4_224, 3_168, 2_112, 3_168),
    ("v2", "Amazon", 64, 64): ((1, 2, 4, 8), 16_640, 12_480, 8_320, 12_480),
    ("v2", "NMT", 1024, 20): ((1, 2, 4), 4_198_400, 3_148_800, 2_099_200, None),
}
# ImageNet again, table 7: each mechanism has a width of its own.
WIDTHS = [
    ("standard", 768, 2_362_368),
    ("optimised", 816, 2_000_016),
    ("efficient", 804, 1_294_440),
    ("super_attention", 804, 1_333_446),
]
MECHANISMS = ("standard", "optimised", "efficient", "super_attention")
ROWS = [
    (mechanism, d_model, length, num_heads, count)
    for (_, _, d_model, length), (heads, *counts) in TABLES.items()
    for mechanism, count in zip(MECHANISMS, counts, strict=True)
    for num_heads in heads
    if count is not None
] + [(mechanism, d_model, 197, 12, count) for mechanism, d_model, count in WIDTHS]


def spec_of(mechanism, d_model, length, num_heads):
    options = {"length": length} if mechanism == "super_attention" else {}
    return preset(mechanism, d_model, num_heads, **options)


@pytest.mark.parametrize("row", sorted(set(ROWS)), ids=lambda row: "-".join(map(str, row)))
def test_count(row):
    *sizes, count = row
    spec = spec_of(*sizes)
    assert spec.cost(length=sizes[2]).parameters == count
    assert sum(p.numel() for p in Attention(spec, device="meta").parameters()) == count
