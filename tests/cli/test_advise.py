"""`suffice advise` on the command line."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from suffice.measure.advise import RECIPES, Request
from suffice.measure.advise import evidence as evidence_module
from suffice.measure.advise.evidence import Library
from suffice.models import LMConfig, folder
from suffice.presets import preset
from suffice.text import Characters
from tests.measure.advise.worlds import World, evidence

TEXT = "to be or not to be, that is the question. " * 60
SMALL = ("--task", "lm", "--model", "nanogpt_char_cpu", "--length", 64, "--quiet")


FIND = Library.find  # as it is


@pytest.fixture
def world(monkeypatch):
    """Let the adviser measure a machine whose times are known."""
    made = World({"mqa": 0.5, "efficient": 0.7}, first={"gqa": 2.0})
    module = sys.modules["suffice.measure.advise.advise"]
    whole = module.advise

    def known(request: Request, *, progress=None):
        return whole(
            request, progress=progress, clock=made.clock, measure=made.measure, step=lambda *_: 0.06
        )

    monkeypatch.setattr("suffice.measure.advise.advise", known)
    monkeypatch.setattr(Library, "find", lambda *_: (evidence("suffices"),))  # times decide
    return made


def test_the_table_the_reasons_and_the_lines_are_printed(suffice, world):
    names = "mqa,efficient,standard+kv:1,linformer"
    result = suffice("advise", *SMALL, "--mechanisms", names)
    assert (result.exit_code, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    assert words.startswith("Take mqa, which suffices at 1.0 points")
    assert "500 ms a token, 0.50x Standard's" in words
    assert "1. mqa: 500 ms a token" in result.stdout
    assert "16 or less" in result.stdout
    assert "illegal: 1" in result.stdout
    assert "linformer: LowRank sums keys" in result.stdout
    assert "composition = Composition.parse('mqa')" in result.stdout
    assert "suffice train --recipe stdlib_bpe --mechanism mqa" in result.stdout
    table = result.stdout.partition("Python:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert world.taken


def test_what_nothing_is_known_of_is_not_taken(suffice, world, monkeypatch):
    monkeypatch.setattr(Library, "find", lambda *_: ())
    words = " ".join(suffice("advise", *SMALL, "--mechanisms", "mqa,gqa").stdout.split())
    assert words.startswith("Nothing faster is known to suffice near 64 tokens")
    assert "mqa takes 0.50x Standard's time" in words
    assert "--mechanisms standard,mqa` (10 trainings, about " in words
    assert world.taken


def test_readers_have_no_time_of_reading(suffice, world):
    asked = ("--task", "image", "--model", "digits_vit", "--mechanisms", "gqa,efficient+weights:4")
    world.each["efficient+weights:4"], world.reads = 0.5, False
    result = suffice("advise", *asked, "--quiet")
    assert result.exit_code == 0
    assert "an input" in result.stdout
    assert "reading" not in result.stdout
    assert "no command reaches this composition" in result.stdout


def test_nothing_recommended_prints_no_lines(suffice, world):
    result = suffice("advise", *SMALL, "--memory", "1kB")
    assert "Nothing fits 1.00 kB" in " ".join(result.stdout.split())
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
    assert "interrupted: the rest was not measured." in result.message
    assert "Take mqa, which suffices" in " ".join(result.stdout.split())


@pytest.mark.parametrize("words", [("--recipe",), ("--recipe", "list"), ("--recipe", "--quiet")])
def test_recipes_without_a_name_are_listed(suffice, words):
    result = suffice("advise", *words)
    assert result.exit_code == 0
    assert all(name in result.stdout for name in RECIPES)
    for source in {recipe.source for recipe in RECIPES.values()}:
        assert result.stdout.count(source[:30]) == 1


def test_a_recipe_is_measured_here(suffice, world):
    result = suffice("advise", "--recipe", "tiny-edge", "--length", 64, "--quiet")
    assert result.exit_code == 0
    assert "tiny-edge: a tiny model" in result.stdout
    assert "The source: 75% less memory" in result.stdout
    assert world.taken


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --task with one of lm, classify, image, translate; or --recipe list"),
        (("--task", "lms"), "unknown task 'lms'; did you mean 'lm'"),
        (("--recipe", "tiny"), "unknown recipe of the adviser 'tiny'; did you mean 'tiny-edge'"),
        (
            ("--recipe", "tiny-edge", "--task", "image"),
            "--recipe tiny-edge is for --task lm; leave",
        ),
        (("--recipe", "tiny-edge", "--mechanisms", "mqa"), "has its own compositions; leave"),
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


def test_the_commands_train_pack_and_write(suffice, world, tmp_path):
    name = "efficient+kv:1+window:16+memory:8+weights:8"
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
def test_the_commands_convert_a_checkpoint(suffice, world, tmp_path, name, steps):
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


def test_the_comparison_that_is_offered_changes_the_advice(suffice, brief, world, monkeypatch):  # noqa: ARG001 - patches
    monkeypatch.setattr(Library, "find", FIND)
    monkeypatch.setattr(evidence_module, "packaged", dict)
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
    assert after["sentence"].startswith(f"Take {name}, which suffices at 8.0 points by your own ")
    strict = json.loads(suffice("advise", *asked, "--quality", "0%", "--results", "run").stdout)
    assert strict["winner"] == "standard"
    far = json.loads(suffice("advise", *wide, "--length", 1600, "--results", "run").stdout)
    assert far["winner"] == "standard"
    assert any("--results run is not evidence for this request" in note for note in far["notes"])


def test_the_commands_compare(suffice, world):
    asked = ("--task", "image", "--model", "digits_vit", "--mechanisms", "efficient", "--quiet")
    (compare,) = lines_of(suffice("advise", *asked))
    assert compare[1:] == ["--recipe", "digits_vit", "--mechanisms", "standard,efficient"]
    assert world.taken
