"""Quantities are formatted, and the lines that use a recommendation run as they are."""

from __future__ import annotations

import pytest

from suffice.measure.advise import Composition, Request, base_of
from suffice.measure.advise import request as module
from suffice.measure.advise.advise import cli_lines, python_lines
from suffice.measure.advise.request import Candidate, format_bytes, format_seconds
from suffice.models import LM, ViT
from suffice.recipes import recipe


def candidate_of(request, name):
    base = base_of(request)
    return Candidate.of(Composition.parse(name), base), base


def run(lines):
    scope = {}
    exec("\n".join(lines), scope)  # noqa: S102 - this is the test
    return scope


def test_quantities_have_units():
    sizes = (1_500_000_000, 2_000_000, 300)
    assert [format_bytes(size) for size in sizes] == ["1.50 GB", "2.00 MB", "0.30 kB"]
    assert [format_seconds(s) for s in (2.5, 0.0312, 0.000045)] == ["2.5 s", "31.2 ms", "45 us"]


LANGUAGE = Request(task="lm", model="nanogpt_char_cpu", length=32)


@pytest.mark.parametrize(
    "name",
    ["standard", "efficient+kv:1+window:16+memory:8+weights:8", "linear+softmax:2"],
)
def test_python_lines_write_text(name):
    one, base = candidate_of(LANGUAGE, name)
    scope = run(python_lines(one, base, LANGUAGE))
    assert isinstance(scope["model"], LM)
    assert scope["written"].tokens.shape == (1, 11)
    assert tuple(scope["model"].specs) == one.specs


def test_python_lines_read_images_and_texts():
    request = Request(task="image", model="digits_vit")
    scope = run(python_lines(*candidate_of(request, "efficient"), request))
    assert isinstance(scope["model"], ViT)
    assert scope["logits"].shape == (2, 10)
    request = Request(task="classify", length=20)
    assert run(python_lines(*candidate_of(request, "linformer"), request))["logits"].shape == (2, 2)


def test_python_lines_translate(monkeypatch):
    small = recipe("translation_es", scale="small")
    monkeypatch.setattr(module, "recipe", lambda _: small)
    monkeypatch.setattr(module, "models_of", lambda _: ("translation_es",))
    request = Request(task="translate", length=8)
    scope = run(python_lines(*candidate_of(request, "efficient"), request))
    assert scope["translated"].new.shape == (1, 8)


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
