"""Model cards, certificates and the files that come along with an export."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffice.convert.folder import CERTIFICATE
from suffice.errors import ConfigError
from suffice.export import export
from suffice.models import LMConfig, folder
from suffice.testing import drawn
from suffice.text import BPE, Characters
from suffice.utils.hub import upload
from tests.generate.models import SPEC

TEXTS = ["the cat sat on the mat. " * 9, "a dog ran to the log, and the cat sat. " * 9]


def entries_of(card):
    lines = card.split("---\n")[1].splitlines()
    return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in lines)}


def saved(path, tokenizer=None, **facts):
    size = 23 if tokenizer is None else tokenizer.vocabulary_size
    sizes = {"vocabulary_size": size, "length": 64, "d_model": 16, "depth": 2, "mlp_width": 24}
    llama = {"positions": "none", "bias": False, "activation": "swiglu", "norm": "rms"}
    lm = drawn(LMConfig(**sizes, **llama).build(replace(SPEC, bias=False)), seed=1).eval()
    folder.save(path, lm, tokenizer or Characters("abcdefghijklmnopqrstuv"), **facts)


@pytest.fixture
def words():
    learned = BPE.train(TEXTS, 280)
    return BPE(learned.description, begin="<|endoftext|>", end="<|endoftext|>")


def test_a_card_says_what_the_model_is_and_what_changed(suffice, tmp_path, words):
    (tmp_path / "words.txt").write_text("\n".join(TEXTS * 60))
    saved("run", words, corpus="words.txt", hub={"repository": "team/tiny", "revision": "a1b2"})
    done = suffice("convert", "run", "--to", "mqa", "--out", "mqa", "--tokens", "200")
    assert done.exit_code == 0, done.stderr
    words_of_export = ("export", "mqa", "--format", "hf", "--out", "out", "--card")
    done = suffice(*words_of_export, "--license", "mit", "--json")
    assert done.exit_code == 0, done.stderr
    card = (tmp_path / "out" / "README.md").read_text()
    entries = entries_of(card)
    assert (entries["license"], entries["base_model"]) == ("mit", "team/tiny")
    assert entries["base_model_relation"] == "finetune"
    assert (entries["library_name"], entries["pipeline_tag"]) == ("transformers", "text-generation")
    certificate = json.loads((tmp_path / "mqa" / CERTIFICATE).read_text())
    metric = entries["model-index"][0]["results"][0]["metrics"][0]
    assert metric["value"] == certificate["loss"]["after"]
    assert f"{certificate['loss']['before']:.4f} to {certificate['loss']['after']:.4f}" in card
    assert card.count("| blocks.") == len(certificate["layers"])
    del certificate["source"]  # a path of this machine stays out of what is shared
    assert json.loads((tmp_path / "out" / CERTIFICATE).read_text()) == certificate
    manifest = json.loads(done.stdout)
    assert {"README.md", CERTIFICATE} <= manifest["files"].keys()


def test_an_exact_conversion_says_so(suffice, tmp_path, words):
    saved("run", words)
    assert suffice("convert", "run", "--to", "standard", "--out", "same").exit_code == 0
    done = suffice(
        *("export", "same", "--format", "hf", "--out", "out", "--card"),
        *("--license", "mit", "--base-model", "team/other"),
    )
    assert done.exit_code == 0, done.stderr
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Nothing, up to rounding" in card
    assert "https://huggingface.co/team/other" in card


@pytest.mark.parametrize(
    "options", ["--card", "--license mit", "--base-model a/b", "--card --license a:b"]
)
def test_a_card_needs_a_licence(suffice, options):
    saved("run")
    done = suffice("export", "run", "--format", "hf", "--out", "out", *options.split())
    assert done.exit_code == 2
    assert "--license" in done.stderr


def test_stock_programs_begin_a_text_as_training_did(tmp_path, words):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    saved(tmp_path / "run", words, generation={"do_sample": True, "temperature": 0.7})
    export(tmp_path / "run", "hf", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = words.encode("the cat")
    assert theirs("the cat")["input_ids"] == [words.begin, *ours]
    assert theirs("the cat", add_special_tokens=False)["input_ids"] == ours
    assert folder.load_tokenizer(tmp_path / "out").encode("the cat") == ours
    chosen = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (chosen.do_sample, chosen.temperature) == (True, 0.7)
    export(tmp_path / "run", "hf", tmp_path / "again")
    export(tmp_path / "out", "hf", tmp_path / "out2", tokenizer=tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out2")
    assert again("the cat")["input_ids"] == [words.begin, *ours]


def test_a_repository_that_is_none_is_refused(suffice, tmp_path):
    saved("run")
    done = suffice("export", "run", "--format", "hf", "--out", "out", "--push", "nowhere")
    assert done.exit_code == 2
    assert "'nowhere' is not a repository on the hub; give ORG/NAME" in " ".join(
        done.stderr.split()
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="give ORG/NAME"):
        upload("run", "a/b@c")
