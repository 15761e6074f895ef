"""The calculator against sums by hand, and against the cases that another calculator publishes.

The cases are those of FitLLM's conformance vectors 1.2.0 that count bytes or follow from bytes
alone; its other verdicts add a reserve for the display that is not counted here.
"""

from __future__ import annotations

import pytest

from suffice.choose.fits.calculator import count, state_bytes
from suffice.choose.fits.configs import read_config
from tests.choose.fits.decoder import EMPTY, PUBLISHED

BY_HAND = {
    # layers * (keys and values) * heads * width * 2 B * tokens
    "Llama 3.1 8B": (8192, 32 * 2 * 8 * 128 * 2 * 8192),
    "Qwen3 30B-A3B": (40_000, 48 * 2 * 4 * 128 * 2 * 40_000),
    # a window keeps its own positions
    "Mistral 7B": (8192, 32 * 2 * 8 * 128 * 2 * 4096),
    "Gemma 3 27B": (32_768, 2 * 16 * 128 * 2 * (52 * 1024 + 10 * 32_768)),
    "gpt-oss-20b": (4096, 2 * 8 * 64 * 2 * (12 * 128 + 12 * 4096)),
    "Gemma 4 31B": (9000, 2 * 2 * (50 * 16 * 256 * 1024 + 10 * 4 * 512 * 9000)),
    # the last 15 layers read what the first 20 cache, 4 of them fully
    "Gemma 3n E4B": (8192, 2 * 2 * 256 * 2 * (16 * 512 + 4 * 8192)),
    # a latent and a rotary key; an indexer's keys beside them
    "DeepSeek-V3": (1000, 61 * (512 + 64) * 2 * 1000),
    "DeepSeek-V3.2-Exp": (1000, 61 * (512 + 64 + 128) * 2 * 1000),
    # hybrids: float32 sums and the latest 3 inputs of a convolution, whatever the length
    "Qwen3-Next 80B-A3B": (
        5000,
        36 * 4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) + 12 * 2 * 2 * 256 * 2 * 5000,
    ),
    "Kimi Linear 48B-A3B": (
        5000,
        21 * 4 * (32 * 128 * 128 + 3 * 3 * 32 * 128) + 6 * (512 + 64) * 2 * 5000,
    ),
    "Granite 4.0 H-Small": (
        131_072,
        36 * 4 * (2 * 4096 * 128 + 3 * (2 * 4096 + 2 * 128)) + 4 * 2 * 8 * 128 * 2 * 131_072,
    ),
    "MiniMax-Text-01": (5000, 70 * 4 * 64 * 128 * 128 + 10 * 2 * 8 * 128 * 2 * 5000),
    "Mamba-2 7B": (5000, 64 * 4 * (2 * 4096 * 128 + 3 * (2 * 4096 + 2 * 8 * 128))),
}


def sizes_of(name):
    row = PUBLISHED[name]
    sizes, warning = read_config(row["config"])
    assert warning == ""
    return sizes | (row.get("also") or {})


@pytest.mark.parametrize("name", BY_HAND)
def test_states_are_those_counted_by_hand(name):
    length, state = BY_HAND[name]
    assert state_bytes(sizes_of(name), length) == state


@pytest.mark.parametrize(
    ("name", "times"),
    [("Qwen3-Next 80B-A3B", 3), ("Granite 4.0 H-Small", 9), ("MiniMax-Text-01", 7)],
)
def test_a_hybrid_is_not_counted_as_full_attention(name, times):
    sizes = sizes_of(name)
    parts = ("recurrent_numbers", "recurrent_parameters", "full_every", "full_count")
    full = sizes | dict.fromkeys(parts, 0)
    assert state_bytes(full, 131_072) > times * state_bytes(sizes, 131_072)


def test_what_vllm_reserves_of_a_window_beside_wider_full_layers():
    """A trace of vLLM at this length reserves 9,797 blocks of 10 layers with 262,144 B each."""
    assert state_bytes(sizes_of("Gemma 4 31B"), 262_144, "vllm") == 9797 * 10 * 262_144


def grown(sizes, length, tokens=64):
    return (state_bytes(sizes, length + tokens) - state_bytes(sizes, length)) / tokens


def attention_of(sizes, length):
    """The bytes without those of recurrent layers, which the cases do not count."""
    sums = (sizes["layers"] - sizes["layers"] // sizes["full_every"]) * 4
    recurrent = sizes["recurrent_numbers"] + sizes["convolution_numbers"]
    return state_bytes(sizes, length) - sums * recurrent


def test_bytes_of_published_cases():
    gemma = sizes_of("Gemma 4 31B")
    assert state_bytes(gemma, 262_144) == 22_313_697_280
    assert state_bytes(gemma, 131_072) == 2 * 5_788_139_520  # theirs in 8 bits
    smaller = EMPTY | {"layers": 48, "full_every": 6, "num_heads": 16, "num_kv_heads": 8,
                       "head_dim": 256, "full_kv_heads": 1, "full_head_dim": 512,
                       "window": 1024}  # fmt: skip
    assert state_bytes(smaller, 262_144) == 4_630_511_616
    hybrid = EMPTY | {"layers": 64, "full_every": 4, "num_heads": 24, "num_kv_heads": 4,
                      "head_dim": 256, "recurrent_numbers": 1,
                      "recurrent_parameters": 1}  # fmt: skip
    assert attention_of(hybrid, 131_072) == 2 * 4_294_967_296
    assert attention_of(sizes_of("Qwen3.5 35B-A3B"), 10_000) == 204_800_000
    assert grown(sizes_of("GLM-4.7-Flash"), 8192) == 54_144
    assert grown(sizes_of("GLM-5") | {"index_dim": 0}, 8192) == 89_856
    assert grown(sizes_of("gpt-oss-20b"), 200_000) == 24_576
    hy3 = EMPTY | {"layers": 80, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128}
    assert state_bytes(hy3, 262_144) == 85_899_345_920


@pytest.mark.parametrize(
    ("name", "length", "bits", "gigabytes", "fits"),
    [
        ("Gemma 4 31B", 8192, 8, 64, True),
        ("Gemma 4 31B", 262_144, 16, 64, False),
        ("GLM-5", 8192, 4, 512, True),
        ("GLM-5", 8192, 8, 512, False),
        ("gpt-oss-120b", 32_768, 4.8944, 96, True),
    ],
)
def test_verdicts_of_published_cases(name, length, bits, gigabytes, fits):
    parts = {"attention_bits": bits, "expert_bits": bits, "embedding_bits": bits}
    sizes = sizes_of(name) | parts | {"weight_bits": bits}
    assert (count(sizes, length).total() <= gigabytes * 10**9) is fits
