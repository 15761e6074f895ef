"""`suffice train` and `suffice evaluate` as a user meets them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.cli.evaluate import evaluate
from suffice.cli.options import latest_run
from suffice.cli.train import SETTINGS, TrainOptions, read_options, train
from suffice.errors import ConfigError, DataError
from suffice.models import checkpoint
from suffice.models import folder as models
from suffice.train.recipes.lm_folder import run_folder

TEXT = "the cat sat on the mat and the rat sat on the cat. " * 30
SETS = {"steps": 6, "batch_size": 2, "length": 16, "d_model": 16, "depth": 1, "num_heads": 2}
SETS |= {"warmup": 1, "evaluate_every": 2}
WORDS = [word for name, value in SETS.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def looks(folder):
    lines = map(json.loads, (Path(folder) / "log.jsonl").read_text().splitlines())
    return [
        {n: v for n, v in line.items() if n != "seconds"}
        for line in lines
        if "validation_loss" in line
    ]


def test_a_trained_folder_is_loaded_evaluated_and_left_alone(suffice, text):
    done = suffice("train", "--data", text, "--out", "run", "--mechanism", "standard", *WORDS)
    assert done.exit_code == 0, done.stderr
    assert "bits per character" in done.stdout
    assert re.search(r"tokens/s over \d+\.\d seconds$", done.stdout, re.MULTILINE)
    report, _, told = done.stdout.partition("model: run\n\n")
    sampled, _, following = told.partition("\nnext: ")
    assert following.startswith("suffice generate run\n")
    assert len(sampled) == 200 + 1, "a line's end"
    assert set(sampled) - {"\n"} <= set(TEXT)
    lm, tokenizer, facts = models.load("run")
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert (facts["recipe"], facts["seed"]) == ("shakespeare_char", 0)
    lowest = min(looks("run"), key=lambda look: look["validation_loss"])
    assert facts["measured"]["step"] == lowest["step"]
    assert lm.config.d_model == 16
    again = suffice("train", "--data", text, "--out", "run", *WORDS)
    assert again.exit_code == 2
    assert "run already holds a training; continue it with --resume" in again.message
    result = suffice("evaluate", "run", "--json", "--quiet", "--limit", "3")
    assert json.loads(result.stdout)["items"] == 3
    result = suffice("evaluate", "run", "--data", text)
    assert "perplexity: " in result.stdout
    assert " +- " in result.stdout


def test_whether_weights_are_cut_is_kept_and_may_change(suffice, text):
    words = ("train", "--data", text, "--out", "run", "--quiet")
    assert suffice(*words, *WORDS, "--shard").exit_code == 0
    assert read_options(Path("run")).shard is True
    assert read_options(Path("run")).chosen_recipe().training.shard
    assert suffice("train", "--out", "run", "--resume", "--quiet").exit_code == 0
    assert read_options(Path("run")).shard is True
    assert suffice("train", "--out", "run", "--resume", "--replicate", "--quiet").exit_code == 0
    assert not read_options(Path("run")).chosen_recipe().training.shard
    result = suffice(*words, "--set", "shard=true")
    assert (result.exit_code, "--set shard=true: give --shard instead" in result.message) == (
        2,
        True,
    )


def test_the_default_recipe_without_its_text_names_the_others(suffice, monkeypatch):
    module = sys.modules["suffice.text.corpus"]
    monkeypatch.setattr(module, "SHAKESPEARE", replace(module.SHAKESPEARE, urls=()))
    done = suffice("train", "--quiet")
    assert done.exit_code == 2
    assert "Every machine has the text of --recipe stdlib_bpe; --data PATH trains" in done.message


def test_the_printed_command_resumes_to_the_same_end(suffice, text, press_at):
    words = ["train", "--data", str(text), *WORDS]
    press_at(3)
    done = suffice(*words, "--out", "a folder")
    assert done.exit_code == 130
    first, second, command = done.stderr.splitlines()[-3:]
    assert (first, second) == ("", "interrupted. Finished work is kept. Resume with:")
    resume = shlex.split(command)[1:]
    assert resume[-3:] == ["--out", "a folder", "--resume"]
    assert [look["step"] for look in looks("a folder")] == [2]
    assert models.load("a folder")[2]["measured"]["step"] == 2
    assert suffice(*resume, "--quiet").exit_code == 0
    assert suffice(*words, "--out", "uncut", "--quiet").exit_code == 0
    assert looks("a folder") == looks("uncut")
    ours, theirs = (checkpoint.load(f"{f}/model.safetensors")[0] for f in ("a folder", "uncut"))
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


def test_a_text_that_is_not_there_leaves_no_folder(suffice, tmp_path):
    result = suffice("train", "--data", "none.txt", "--out", "new")
    assert (result.exit_code, result.message.count("Resume")) == (2, 0)
    assert not (tmp_path / "new").exists()


def test_a_resumed_run_keeps_what_is_not_said(suffice, text):
    words = ("--data", text, "--seed", "3", "--minutes", "5", "--tokenizer", "characters")
    assert suffice("train", *words, *WORDS, "--quiet").exit_code == 0
    (folder,) = Path("runs").glob("shakespeare_char-*")
    kept = read_options(folder)
    assert (kept.seed, kept.minutes, kept.settings["steps"]) == (3, 5.0, 6)
    done = suffice("train", "--resume", "--minutes", "9")
    assert (done.exit_code, read_options(folder).minutes) == (0, 9.0)
    assert suffice("train", "--resume", "--seed", "4").exit_code == 2
    assert latest_run(None, None, SETTINGS) == folder


def test_byte_pairs_take_the_place_of_characters(suffice, text):
    words = ("--tokenizer", "bpe", "--set", "vocabulary_size=262", "--data", text, "--quiet")
    assert suffice("train", *words, *WORDS, "--out", "run").exit_code == 0
    assert models.load("run")[0].config.vocabulary_size == 262
    other = ("train", "--recipe", "stdlib_bpe", "--tokenizer", "characters", "--data", text)
    assert suffice(*other, *WORDS, "--out", "other", "--quiet").exit_code == 0
    assert models.load("other")[1].vocabulary_size < 30


def test_what_cannot_be_trained_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no run of nanogpt_124m under runs/"):
        latest_run("nanogpt_124m", None, SETTINGS)
    with pytest.raises(DataError, match="cannot read absent/run.json"):
        read_options(Path("absent"))
    for content in ("{", "[]", '{"recipe": 1}'):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(DataError, match="run.json"):
            read_options(tmp_path)
    with pytest.raises(ConfigError, match="--set max_minutes=3: give --minutes instead"):
        train(settings=["max_minutes=3"])
    with pytest.raises(ConfigError, match="unknown recipe 'mine'"):
        train(recipe="mine")
    with pytest.raises(DataError, match=r"no corpus at .*Every machine has the text of --recipe"):
        train(data=str(tmp_path / "no.txt"), quiet=True)


def test_a_folder_that_names_no_corpus_needs_a_text(tmp_path):
    from suffice.models import configuration
    from suffice.text import Characters

    config, specs = configuration("nanogpt_char_cpu", vocabulary_size=3)
    models.save(tmp_path, config.build(specs), Characters("abc"))
    with pytest.raises(ConfigError, match="does not record its corpus; name a text with --data"):
        evaluate(tmp_path, device="cpu", quiet=True)


def test_a_small_twin_says_so_wherever_it_is_shown(suffice, text):
    small = ("--recipe", "llama_1b_efficient", "--scale", "small")
    sizes = [*WORDS, "--set", "mlp_width=16", "--set", "evaluation_batches=1"]
    words = ("--data", text, "--tokenizer", "characters", "--quiet", *sizes)
    done = suffice("train", *small, *words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("small scale: not the paper's size\n")
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("llama_1b_efficient-small-")
    assert models.load(folder)[2]["scale"] == "small"
    assert latest_run(None, None, SETTINGS) == folder
    assert latest_run(None, "small", SETTINGS) == folder
    with pytest.raises(ConfigError, match="there is no run at scale paper under runs/"):
        latest_run(None, "paper", SETTINGS)
    kept = read_options(folder)
    assert kept.scale == "small"
    assert TrainOptions(settings={}).over(kept).chosen_recipe().scale == "small"
    again = suffice("train", "--resume", "--quiet")
    assert again.exit_code == 0, again.stderr


def test_a_run_from_before_there_were_scales_is_read(tmp_path):
    options = TrainOptions(recipe="stdlib_bpe", settings={})
    run_folder(tmp_path).claim(vars(options), resume=False)
    path = tmp_path / "run.json"
    told = json.loads(path.read_text())
    del told["scale"]
    path.write_text(json.dumps(told))
    assert read_options(tmp_path) == options
