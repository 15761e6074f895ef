"""`suffice advise` on the command line."""

from __future__ import annotations

import json
import shlex
from functools import partial

import pytest

from suffice.choose import advise
from suffice.choose import evidence as module
from suffice.models import LMConfig, folder
from suffice.presets import preset
from suffice.text import Characters
from tests.choose.worlds import World, evidence

TEXT = "to be or not to be, that is the question. " * 60
SMALL = ("--task", "lm", "--model", "nanogpt_char_cpu", "--length", 64, "--quiet")


NAMES = ("mqa", "efficient", "standard+kv:1", "gqa", "efficient+kv:1")


@pytest.fixture
def known(monkeypatch):
    """Comparisons that are known: of some names, that they suffice."""
    found = [evidence("suffices", mechanism=name) for name in NAMES]
    monkeypatch.setattr(module, "read_evidence", lambda: iter(found))
    return found


@pytest.fixture
def world(monkeypatch, known):  # noqa: ARG001 - patches
    """Let the adviser measure a machine whose times are known."""
    made = World({"mqa": 0.5, "efficient": 0.7}, first={"gqa": 2.0})
    fixed = partial(advise, clock=made.clock, timer=lambda *_: made)
    monkeypatch.setattr("suffice.choose.advise", fixed)
    return made


def test_the_sentence_the_table_notes_and_lines_are_printed(suffice, world):
    names = "mqa,efficient,qk_norm,linformer"
    result = suffice("advise", *SMALL, "--mechanisms", names)
    assert (result.exit_code, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    assert words.startswith("Take mqa, which suffices by your own comparison. Mqa takes 500 ms a")
    assert "1 mqa 500 ms 0.50 1.00 s" in words
    assert "1 illegal, such as linformer: LowRank sums keys" in words
    assert "suffice train --recipe stdlib_bpe --mechanism mqa" in result.stdout
    table = result.stdout.partition("Command line:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert world.taken


def test_the_comparison_that_decides_is_printed(suffice, world, known):
    known.clear()
    words = " ".join(suffice("advise", *SMALL, "--mechanisms", "mqa,gqa").stdout.split())
    assert words.startswith("Stay with standard unless a comparison shows that mqa suffices")
    assert "What decides (10 trainings, about " in words
    assert "suffice compare --recipe lm_small --mechanisms standard,mqa" in words
    assert world.taken


def test_readers_have_no_time_of_reading(suffice, world):
    asked = ("--task", "image", "--model", "digits_vit", "--mechanisms", "gqa")
    world.reads = False
    result = suffice("advise", *asked, "--quiet")
    assert result.exit_code == 0
    assert "an input" in result.stdout
    assert "reading" not in result.stdout


def test_nothing_recommended_prints_no_lines(suffice, world):
    result = suffice("advise", *SMALL, "--memory", "1kB")
    assert "Nothing is recommended: " in result.stdout
    assert "Command line:" not in result.stdout
    assert world.taken  # Standard, the yardstick


def test_data_are_printed_and_written(suffice, world, tmp_path):
    words = ("--memory", "2GB", "--latency", "2s/token", "--quality", "1%", "--json")
    result = suffice("advise", *SMALL, "--mechanisms", "mqa", *words, "--out", "advice.json")
    data = json.loads(result.stdout)
    assert data["winner"] == "mqa"
    assert data["request"]["memory"] == 2 * 10**9
    assert (data["request"]["latency"], data["request"]["quality"]) == (2.0, 0.01)
    assert json.loads((tmp_path / "advice.json").read_text()) == data
    assert world.taken


def test_an_interruption_prints_what_was_measured(suffice, world):
    world.stop_after = 14
    result = suffice("advise", *SMALL, "--mechanisms", "mqa")
    assert result.exit_code == 130
    assert "interrupted: the rest was not timed." in result.message
    assert "Take mqa, which suffices" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a task: one of lm, classify, image, translate"),
        (("--task", "lms"), "unknown task 'lms'; did you mean 'lm'"),
        (("--task", "lm", "--memory", "2 apples"), "memory '2 apples'"),
        (("--task", "image", "--latency", "3ms/token"), "latency '3ms/token'"),
        (("--task", "lm", "--quality", "1"), "quality '1'"),
        (("--task", "lm", "--mechanisms", "standard+x:3"), "'x:3' in 'standard+x:3'"),
        (("--task", "lm", "--results", "absent"), "cannot read absent"),
        (("--task", "lm", "--checkpoint", "absent"), "no such folder: absent"),
        (("--task", "lm", "--minutes", "0"), "minutes=0.0; give a number above 0"),
    ],
)
def test_mistakes_are_one_sentence(suffice, words, message):
    said = suffice("advise", *words, "--quiet")
    assert said.exit_code == 2
    assert message in said.message
    assert said.message.startswith("error: ")


def lines_of(told):
    """Return the commands an advice ends with."""
    return [
        shlex.split(line)[1:] for line in told.stdout.partition("Command line:\n")[2].splitlines()
    ]


def test_the_commands_train_pack_and_write(suffice, world, known, tmp_path):
    name = "efficient+kv:1+window:16+memory:8+weights:8"
    known.append(evidence("suffices", mechanism=name))
    world.each[name] = 0.2
    (tmp_path / "text.txt").write_text(TEXT)
    train, pack, write = lines_of(suffice("advise", *SMALL, "--mechanisms", name))
    few = ("steps=2", "batch_size=2", "warmup=0", "evaluate_every=2")
    sets = [word for one in few for word in ("--set", one)]
    own = ("--data", "text.txt", "--tokenizer", "characters", "--quiet")
    assert suffice(*train, *own, *sets).exit_code == 0
    assert suffice(*pack, "--quiet").exit_code == 0
    written = suffice(*write, "--prompt", "to be", "--tokens", 5)
    assert (written.exit_code, written.stdout[:5]) == (0, "to be")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("standard+kv:1+window:16", "gqa:1,window:16+sinks:0"),
        ("mqa", "gqa:1"),
        ("efficient+memory:8", "efficient"),
        ("efficient+kv:2", "gqa:2,efficient"),
        ("standard+window:16+sinks:2", None),
    ],
)
def test_the_commands_convert_a_checkpoint(suffice, world, known, tmp_path, name, steps):
    known.append(evidence("suffices", mechanism=name))
    world.each = {name: 0.2}
    (tmp_path / "text.txt").write_text(TEXT * 4)
    tokenizer = Characters.of([TEXT])
    sizes = {"d_model": 16, "depth": 1, "mlp_width": 16, "length": 32}
    config = LMConfig(vocabulary_size=tokenizer.vocabulary_size, **sizes)
    lm = config.build(preset("standard", 16, 4, causal=True))
    folder.save(tmp_path / "own", lm, tokenizer, corpus=str(tmp_path / "text.txt"))
    asked = ("--task", "lm", "--checkpoint", "own", "--mechanisms", name, "--quiet")
    *convert, write = lines_of(suffice("advise", *asked))
    assert [line[3] for line in convert] == ([] if steps is None else [steps])
    for line in convert:
        assert suffice(*line, "--quiet").exit_code == 0
    assert suffice(*write, "--prompt", "to be", "--tokens", 5).exit_code == 0


def test_the_comparison_that_is_offered_changes_the_advice(suffice, brief, world, known):  # noqa: ARG001 - patches
    known.clear()
    name = "efficient+kv:1"
    world.each[name] = 0.5
    asked = ("--task", "image", "--model", "digits_vit", "--mechanisms", name, "--json")
    wide = (*asked, "--quality", "8%")
    before = json.loads(suffice("advise", *wide).stdout)
    assert (before["winner"], before["known"]) == ("standard", False)
    offered = shlex.split(before["trial"]["command"])[1:]
    words = ("--seeds", 4, "--epochs", 1, "--margin", 8, "--out", "run", "--quiet")
    assert suffice(*offered, *words).exit_code == 0
    after = json.loads(suffice("advise", *wide, "--results", "run").stdout)
    assert (after["winner"], after["known"], after["trial"]) == (name, True, None)
    assert after["sentence"].startswith(f"Take {name}, which suffices by your own comparison")
    strict = json.loads(suffice("advise", *asked, "--quality", "0%", "--results", "run").stdout)
    assert strict["winner"] == "standard"
    other = json.loads(suffice("advise", *SMALL, "--json", "--results", "run").stdout)
    assert any("--results run is not evidence for this request" in n for n in other["notes"])
