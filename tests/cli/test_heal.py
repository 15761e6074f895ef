"""`suffice heal`: a converted model in, a healed one out, and what it says of that."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suffice.convert.heal.run import claim, unclaimed_if_refused
from suffice.errors import ConfigError, DataError
from suffice.models import checkpoint, folder
from suffice.text import Characters
from tests.convert.heal.small import LETTERS, documents, student, teacher

SETS = {"batch_size": 4, "length": 16, "evaluate_every": 3, "evaluation_batches": 4, "warmup": 1}
SETS |= {"learning_rate": 0.003, "regression_rate": 0.003}
WORDS = [word for name, value in SETS.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def run(tmp_path):
    """Return the words of a short healing of a model on a text."""
    (tmp_path / "text.txt").write_text(" ".join(documents(60, 0)))
    text = str(tmp_path / "text.txt")
    folder.save(tmp_path / "whole", teacher(), LETTERS, corpus=text)
    folder.save(tmp_path / "cheap", student("mqa", naive=True), LETTERS, corpus=text)
    return ["heal", "cheap", "--teacher", "whole", "--steps", "12", *WORDS]


def test_a_model_is_healed_written_and_reported(suffice, run, tmp_path):
    result = suffice(*run, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    names = [line.split()[0] for line in result.stdout.splitlines()[1:6]]
    assert names == ["teacher", "converted", "regressed", "distilled", "control"]
    assert "healed against converted -" in result.stdout
    assert "nats per token; 95% intervals, paired over " in result.stdout
    assert "control: the unconverted model, the same steps" in result.stdout
    assert "model: cheap-healed" in result.stdout
    out = tmp_path / "cheap-healed"
    report = json.loads((out / "healing.json").read_text())
    assert [stage["steps"] for stage in report["stages"]] == [3, 9, 12]
    assert report["healed"]["after"] < report["converted"]["after"]
    assert report["settings"]["minutes"] is None
    lm, tokenizer, facts = folder.load(out)
    assert lm.specs[0].kv_heads == 1
    assert tokenizer.fingerprint == LETTERS.fingerprint
    assert facts["healed"]["change"] == report["healed"]["change"]
    assert suffice("generate", out, "--prompt", "abc", "--tokens", 5).exit_code == 0
    again = suffice(*run)
    assert again.exit_code == 2
    assert "cheap-healed already holds a healing; continue it with --resume" in again.message
    result = suffice(*run, "--resume", "--quiet", "--json")
    assert json.loads(result.stdout) == report


KILL = """
import os, signal, sys
from suffice.cli import main
from suffice.utils.progress import Display

step, steps = Display.step, []

def kill(self, done, total):
    step(self, done, total)
    steps.append(done)
    if len(steps) == 8:
        os.kill(os.getpid(), signal.SIGKILL)

Display.step = kill
main()
"""


def test_an_interrupted_and_a_killed_healing_resume_to_the_same_end(
    suffice, run, tmp_path, press_at
):
    press_at(6)
    result = suffice(*run, "--out", "cut")
    assert result.exit_code == 130
    first, command = result.stderr.splitlines()[-2:]
    assert first == "interrupted. Finished work is kept. Resume with:"
    words = shlex.split(command)[1:]
    assert words == [*run, "--out", "cut", "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.run(
        [sys.executable, "-c", KILL, *words],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert killed.returncode == -9
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    assert suffice(*words, "--quiet").exit_code == 0
    assert suffice(*run, "--out", "uncut", "--quiet").exit_code == 0
    ours, theirs = (checkpoint.load(f"{f}/model.safetensors")[0] for f in ("cut", "uncut"))
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


WRONG = {
    "setting": (["--set", "rate=1"], "unknown healing setting 'rate'. Legal: alpha,"),
    "own": (["--set", "lora=true"], "--set lora=true: give --lora instead."),
    "itself": (["--out", "cheap"], "--out cheap is the checkpoint itself"),
    "parent": (["--out", "whole"], "--out whole is the teacher itself"),
    "resume": (["--resume"], "cannot read cheap-healed/healing_run.json"),
    "text": (["--data", "short.txt"], "text has 6 tokens, less than one batch of 4 rows of 16"),
    "tokens": (["--teacher", "other"], "the tokenizers of cheap and other differ; give the model"),
    "torn": (["--teacher", "torn"], "in model.safetensors holds NaN or Inf"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_and_files_are_refused_in_a_sentence(case, suffice, run, tmp_path):
    (tmp_path / "short.txt").write_text("abc def " * 15)
    folder.save(tmp_path / "other", teacher(), Characters("abcdefghi"))
    torn = student("gqa:2")
    weight = torn.blocks[0].attention.q_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = float("nan")
        folder.save(tmp_path / "torn", torn, LETTERS)
        weight.copy_(before)
    words, message = WRONG[case]
    result = suffice(*run, *words, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.message
    assert not (tmp_path / "cheap-healed").exists()
    assert checkpoint.load(tmp_path / "cheap" / "model.safetensors")


OPTIONS = {
    "teacher": Path("whole"),
    "data": None,
    "tokenizer": None,
    "lora": False,
    "minutes": None,
}
OPTIONS |= {"steps": 3, "settings": {}, "seed": 0, "device": "cpu"}


def test_a_healing_is_resumed_with_the_same_options(tmp_path):
    options = {"checkpoint": Path("cheap"), **OPTIONS}
    with pytest.raises(DataError, match="cannot read .*healing_run.json"):
        claim(tmp_path, options, resume=True)
    claim(tmp_path / "out", options, resume=False)
    claim(tmp_path / "out", options, resume=True)
    with pytest.raises(ConfigError, match="out already holds a healing"):
        claim(tmp_path / "out", options, resume=False)
    with pytest.raises(ConfigError, match="steps was 3 and is 4"):
        claim(tmp_path / "out", options | {"steps": 4}, resume=True)
    for content in ("{", "[]", "{}"):
        (tmp_path / "out" / "healing_run.json").write_text(content)
        with pytest.raises((ConfigError, DataError), match="out"):
            claim(tmp_path / "out", options, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        claim(tmp_path / "file", options, resume=False)


def test_a_claim_stays_where_there_is_something_to_resume(tmp_path):
    options = {"checkpoint": Path("cheap"), **OPTIONS}
    claim(tmp_path, options, resume=False)
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(DataError, match="no"), unclaimed_if_refused(tmp_path):
        raise DataError("no")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    claim(tmp_path, options, resume=False)
    (tmp_path / "regression.safetensors").write_text("")
    with pytest.raises(DataError, match="no"), unclaimed_if_refused(tmp_path):
        raise DataError("no")
    claim(tmp_path, options, resume=True)
