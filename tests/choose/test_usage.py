"""Quantities are formatted, and the lines that use a recommendation run as they are."""

from __future__ import annotations

from suffice.choose import Composition, Request, base_of
from suffice.choose.advice import cli_lines
from suffice.choose.candidates import Candidate, Needs, format_bytes


def candidate_of(request, name):
    base = base_of(request)
    return Candidate.of(Composition.parse(name), base), base


def test_quantities_have_units():
    sizes = (1_500_000_000, 2_000_000, 300)
    assert [format_bytes(size) for size in sizes] == ["1.50 GB", "2.00 MB", "0.300 kB"]
    assert str(Needs(weights=2_000, state=0, activations=10**6, work=1)) == (
        "weights 2.00 kB, activations 1.00 MB"
    )


LANGUAGE = Request(task="lm", model="nanogpt_char_cpu", length=32)


def test_commands_compare_where_nothing_is_written():
    request = Request(task="image", model="digits_vit")
    assert cli_lines(*candidate_of(request, "efficient"), request) == (
        "suffice compare --recipe digits_vit --mechanisms standard,efficient",
    )
    assert cli_lines(*candidate_of(request, "standard"), request) == (
        "suffice compare --recipe digits_vit --mechanisms standard",
    )
    assert cli_lines(*candidate_of(request, "efficient+weights:4"), request) == ()
    assert cli_lines(*candidate_of(request, "efficient+kv:1"), request)[0].endswith("+kv:1")


def test_commands_train_pack_and_write():
    name = "efficient+kv:1+window:16+memory:8+weights:4"
    assert cli_lines(*candidate_of(LANGUAGE, name), LANGUAGE) == (
        "suffice train --recipe stdlib_bpe --mechanism efficient --set "
        "configuration=nanogpt_char_cpu --set length=32 --set num_kv_heads=1 --set window=16 "
        "--out model",
        "suffice quantise model --bits 4 --out model-4bit",
        "suffice generate model-4bit --memory rolling:16 --quantise-memory 8",
    )
    unequal = cli_lines(*candidate_of(LANGUAGE, "standard+memory:8+values:4"), LANGUAGE)
    assert unequal[-1] == "suffice generate model --quantise-memory 8:4"
    named = Request(task="lm", model="15m", length=64)
    (train, write) = cli_lines(*candidate_of(named, "linear+softmax:4"), named)
    assert "configuration=llama_15m --set length=64 --set softmax_every=4" in train
    assert write == "suffice generate model"
    sinks = cli_lines(*candidate_of(LANGUAGE, "standard+window:16+sinks:4"), LANGUAGE)
    assert "window" not in sinks[0]
    assert sinks[1] == "suffice generate model --memory rolling:16:4"
    (train, _) = cli_lines(*candidate_of(LANGUAGE, "standard+window:16+full:2"), LANGUAGE)
    assert train.endswith("--set window=16 --set full_every=2 --out model")
