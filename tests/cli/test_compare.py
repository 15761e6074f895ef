from __future__ import annotations

import functools
import gzip
import itertools
import json
import os
import shlex
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from suffice.cli import main
from suffice.cli.terminal import resume_command
from suffice.comparison import Results, jobs
from suffice.comparison import compare as measuring
from suffice.comparison import training as trainer
from suffice.comparison.results import read_results
from suffice.comparison.verdict import OPEN
from suffice.data import vision
from suffice.errors import StateError
from suffice.presets import PRESETS
from tests.cli.documented import check

SHORT = ("compare", "--mechanisms", "standard,efficient", "--seeds", "1", "--epochs", "1")
CELLS = ("standard-h4-s0", "efficient-h4-s0")


def again(told, folder="run"):
    """The words after the program of the command that goes on."""
    line = next(line for line in told.stderr.splitlines() if line.startswith("  "))
    words = shlex.split(line)
    assert words[0] == "suffice"
    assert words[-3:] == ["--out", folder, "--resume"] or "--out" in words[:-3]
    return words[1:]


def timeless(folder):
    """Cells as they lie on disk, without what a clock measured."""
    found = {}
    for path in sorted(Path(folder).glob("cells/*.json")):
        cell = json.loads(path.read_text())["cell"]
        cell["seconds_per_epoch"] = 0
        for epoch in cell["epochs"]:
            epoch["seconds"] = epoch["cpu_seconds"] = 0
        found[path.stem] = cell
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted comparison."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["suffice", *SHORT, "--out", str(folder), "--quiet"])
        patch.setattr(measuring, "ROUNDS", 2)
        patch.setattr(measuring, "SAMPLE_SECONDS", 1e-4)
        patch.setattr(
            import_module("suffice.comparison.report.page"), "draw_figures", lambda *_: {}
        )
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == OPEN
    return folder


# what is printed


def test_the_report_is_printed_and_written(suffice):
    result = suffice(*SHORT, "--out", "run")
    assert result.exit_code == OPEN
    lines = result.stderr.splitlines()
    assert lines[0].startswith("data: Digits 8x8"), "plain lines"
    assert lines[-1] == "timing the forward passes side by side"
    assert sum(": test accuracy " in line for line in lines) == 2
    assert "\x1b" not in result.stdout + result.stderr
    assert len(result.stdout.splitlines()) <= 24
    assert "  suffice predict run photo.jpg folder/\n  suffice export run/models/" in result.stdout
    assert "1 seed cannot give a verdict" in " ".join(result.stdout.split())
    assert result.stdout.endswith("\nreport: run/report.html\n")
    for name in ("plan.json", "results.json", "report.html", "curves.png"):
        assert (Path("run") / name).stat().st_size > 0
    results = read_results(Path("run/results.json"))
    assert results.command == shlex.join(["suffice", *SHORT, "--out", "run"])
    assert [cell.key for cell in results.cells] == [("standard", 4, 0), ("efficient", 4, 0)]


def test_json_is_all_of_standard_output(suffice, whole, brief):
    result = suffice(*SHORT, "--out", whole, "--resume", "--json")
    assert result.exit_code == OPEN
    content = json.loads(result.stdout)
    check(content, "compare")
    assert {"row", "truth"} <= set(content["disagreements"][0])
    stored = read_results(whole / "results.json")
    assert Results.from_json(content["results"], where="here") == stored
    (of_digits,) = content["comparisons"]
    assert (content["outcome"], content["exit_code"]) == ("undecided", OPEN)
    assert content["reason"] == "1 seed cannot give a verdict, 5 can"
    assert (content["folder"], content["model"]) == (str(whole), f"{whole}/models/{CELLS[0]}")
    assert content["next"][0] == f"suffice predict {whole} photo.jpg folder/"
    assert [cost["flops"] for cost in of_digits["costs"]] == [c.flops for c in stored.cells]
    assert [m["mechanism"] for m in of_digits["mechanisms"]] == ["efficient"]
    assert result.stdout.isascii()
    assert result.stderr


def test_quiet_says_nothing_on_standard_error(suffice, whole, brief):
    result = suffice(*SHORT, "--out", whole, "--resume", "--quiet", "--json")
    assert (result.exit_code, result.stderr) == (OPEN, "")
    json.loads(result.stdout)


def test_progress_has_plain_lines_where_there_is_no_terminal(suffice, monkeypatch, brief):
    clock = itertools.count(0.0, 11.0)
    shown = functools.partial(jobs.show, clock=lambda: next(clock))
    monkeypatch.setattr(jobs, "show", shown)
    result = suffice(*SHORT, "--out", "run")
    assert result.exit_code == OPEN
    lines = [line for line in result.stderr.splitlines() if line.startswith("cell ")]
    assert lines[0].startswith("cell 1/2 standard heads 4 seed 0, epoch 1/1, ")
    assert any(line.startswith("cell 2/2 efficient heads 4 seed 0, ") for line in lines)
    assert all(line.endswith(" left") for line in lines)
    assert "\x1b" not in result.stderr
    assert "cell 1/2" not in result.stdout


def test_the_cost_may_be_chosen(suffice, whole, brief):
    result = suffice(
        *SHORT, "--out", whole, "--resume", "--quiet", "--cost", "parameters", "--json"
    )
    assert json.loads(result.stdout)["comparisons"][0]["by"] == "parameters"


def test_a_run_without_a_folder_makes_one_and_resume_finds_it(suffice, brief):
    result = suffice(*SHORT, "--quiet")
    assert result.exit_code == OPEN
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("digits_vit-2")
    assert result.stdout.endswith(f"report: {folder}/report.html\n")
    before = timeless(folder)
    assert set(before) == set(CELLS)
    result = suffice("compare", "--resume", "--quiet", "--seeds", "2", "--json")
    assert result.exit_code == OPEN
    assert list(Path("runs").iterdir()) == [folder]
    keys = [(c["mechanism"], c["seed"]) for c in json.loads(result.stdout)["results"]["cells"]]
    assert keys == [("standard", 0), ("efficient", 0), ("standard", 1), ("efficient", 1)]
    after = timeless(folder)
    assert {stem: after[stem] for stem in CELLS} == before
    assert len(after["standard-h4-s1"]["epochs"]) == 1, "epochs are as they were"


# bad words

MECHANISMS = f"Legal: {', '.join(sorted(PRESETS))}."


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ["--mechanisms", "standard,eficient"],
            f"unknown mechanism 'eficient'; did you mean 'efficient'? {MECHANISMS}",
        ),
        (
            ["--task", "minst"],
            "unknown task 'minst'; did you mean 'mnist'? Legal: ama",
        ),
        (["--recipe", "mnist_vit"], "unknown recipe 'mnist_vit'; did you mean 'mnist_v2'?"),
        (
            ["--cost", "flop"],
            "unknown cost 'flop'; did you mean 'flops'? Legal: flops, latency, pa",
        ),
        (["--device", "cpuu"], "unknown device 'cpuu'; did you mean 'cpu'? Legal: cpu, cuda."),
        (["--baseline", "mqa"], "the baseline 'mqa' is not among the mechanisms standard, optim"),
        (["--recipe", "imdb", "--task", "digits"], "--recipe imdb is for task imdb, not for"),
        (["--heads", "3"], "num_heads=3"),
        (["--set", "d_model=65"], "num_heads=4 does not divide d_model=65; use 1, 5 or 13 heads"),
        (["--mechanisms", "standard"], "mechanisms: standard; name at least two to compare"),
        (["--mechanisms", "standard,xyz"], "unknown mechanism 'xyz'. Legal"),
        (["--heads", "x"], "--heads 'x' is not a list of head counts; give numbers such as 1,2,4."),
        (["--heads", "2,2"], "heads: 2, 2; name at least one, each once."),
        (["--mechanisms", ","], "mechanisms: none; name at least one, each once."),
        (["--seeds", "0"], "seeds=0; give at least 1, and 5 for a verdict."),
        (["--seeds", "-1"], "seeds=-1; give at least 1"),
        (["--epochs", "0"], "epochs=0; give an integer >= 1."),
        (["--margin", "-1"], "--margin -1 is not a size; use a number of at least 0, with a unit"),
        (["--margin", "nan"], "--margin nan is not a size"),
        (["--margin", "0.01"], "use '1 points' if the fraction 0.01 is meant, else '0.01 points'"),
        (["--resume"], "there is no run under runs/ to resume; name its folder with --out"),
        (
            ["--resume", "--out", "rum"],
            "cannot read rum/plan.json (No such file or directory). Name the folder of a compar",
        ),
        (["--device", "cuda"], "device='cuda', but torch finds no CUDA device here; give device="),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_in_one_sentence(suffice, monkeypatch, words, wanted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = suffice("compare", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert wanted in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(Path().iterdir()) == [], "nothing is begun"


def test_a_length_that_rows_do_not_have_is_refused_before_training(suffice):
    result = suffice("compare", "--task", "mqar", "--set", "length=9999", "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "length=9999: rows of mqar have 24 tokens" in result.stderr


@pytest.mark.parametrize(("task", "number"), [("7", "7"), (None, "3")])
def test_a_share_goes_on_as_a_line_of_an_array(monkeypatch, task, number):
    monkeypatch.setattr(sys, "argv", ["suffice", "compare", "--cells", "3/16", "--out", "a b"])
    line = resume_command(Path("a b"))
    shell = {"PATH": os.environ["PATH"]} | ({} if task is None else {"SLURM_ARRAY_TASK_ID": task})
    told = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"],
        env=shell,
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["compare", "--cells", f"{number}/16", "--out", "a b", "--resume"]
    assert told.stdout.splitlines()[1:] == words


def test_a_folder_with_a_comparison_is_kept(suffice, whole):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    result = suffice(*SHORT, "--out", whole)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {whole} already holds a comparison; continue it with --resume, or choose another "
        "folder with --out.\n"
    )
    result = suffice(*SHORT[:-1], "2", "--out", whole, "--resume")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {whole} holds a comparison of another recipe: training.epochs was 1 and is 2; "
        "give the same settings, or another folder with --out.\n"
    )
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_reported(suffice, out):
    Path("file").write_text("in the way")
    result = suffice(*SHORT, "--out", out)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot write in {out} (")
    assert result.stderr.endswith("; make room or choose another folder with --out.\n")
    assert len(result.stderr.splitlines()) == 1
    assert Path("file").read_text() == "in the way"


# bad files


def test_a_truncated_data_file_is_reported_and_nothing_is_lost(suffice, monkeypatch, tmp_path):
    images = Path("data") / vision.FILES["train images"].path
    images.parent.mkdir(parents=True)
    images.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03cut")
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path / "data"))
    result = suffice("compare", "--task", "mnist", "--out", "run")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / images} is truncated or damaged (")
    assert "delete it and run again to fetch it, or replace it by a complete copy" in result.stderr
    assert "Resume with" not in result.stderr  # nothing was begun
    assert images.exists()


def test_a_tampered_data_file_is_reported(suffice, monkeypatch, tmp_path):
    images = Path("data") / vision.FILES["train images"].path
    images.parent.mkdir(parents=True)
    images.write_bytes(gzip.compress(struct.pack(">IIII", 2051, 1, 28, 28) + bytes(28 * 28)))
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path / "data"))
    result = suffice("compare", "--task", "mnist", "--out", "run")
    assert result.exit_code == 2
    assert "train-images-idx3-ubyte.gz is truncated or altered (sha256 " in result.stderr


def test_absent_data_and_no_network_is_reported(suffice, monkeypatch):
    def offline(*_, **__):
        raise URLError("Network is unreachable")

    monkeypatch.setattr("suffice.data.files.urlopen", offline)
    result = suffice("compare", "--task", "mnist", "--out", "run")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: vision/mnist/train-images-idx3-ubyte.gz was found neither"
    )
    for wanted in ("SUFFICE_DATA (not set)", "Network is unreachable", "put it at ", "names."):
        assert wanted in result.stderr
    monkeypatch.setenv("SUFFICE_DATA", "nowhere")
    result = suffice("compare", "--task", "mnist", "--out", "run2")
    assert result.exit_code == 2
    assert (
        "SUFFICE_DATA=nowhere is not a folder; name an existing folder, or unset it"
        in result.stderr
    )


def copied(whole, folder="run"):
    """A comparison whose second cell is missing."""
    for name in ("plan.json", f"cells/{CELLS[0]}.json"):
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes((whole / name).read_bytes())
    return Path(folder)


def test_a_loss_that_is_not_finite_is_reported(suffice, monkeypatch, whole):
    copied(whole)

    def explode(*_, **__):
        raise StateError("the training loss is nan in epoch 1; lower learning_rate.")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "fit", explode)
        result = suffice(*SHORT, "--out", "run", "--resume", "--quiet")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: the training loss is nan in epoch 1; lower learning_rate.\n"
    )
    assert "Finished work is kept. Resume with:" in result.stderr


# Ctrl-C outside of training


@pytest.mark.parametrize(
    "place",
    [
        "suffice.comparison.compare.load",
        "suffice.comparison.training.evaluate",
        "suffice.comparison.compare.interleave",
        "suffice.comparison.compare.write_results",
        "suffice.comparison.report.write_report",
    ],
)
def test_ctrl_c_anywhere_tells_how_to_go_on(suffice, monkeypatch, whole, brief, place):
    def press(*_, **__):
        raise KeyboardInterrupt

    copied(whole)
    with monkeypatch.context() as patch:
        patch.setattr(place, press)
        result = suffice(*SHORT, "--out", "run", "--resume", "--quiet")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == (
        "\ninterrupted. Finished work is kept. Resume with:\n"
        f"  suffice {shlex.join(SHORT)} --out run --quiet --resume\n"
    )
    assert suffice(*again(result)).exit_code == OPEN
    assert timeless("run") == timeless(whole)


def test_ctrl_c_before_anything_is_begun(suffice, monkeypatch):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice.cli.compare.CompareOptions.plan", press)
    result = suffice(*SHORT, "--out", "run")
    assert (result.exit_code, result.stderr, result.stdout) == (130, "interrupted.\n", "")
    assert not Path("run").exists()


def test_the_printed_command_gives_the_cells_of_an_uninterrupted_run(suffice, brief, press_at):
    words = ("compare", "--mechanisms", "standard,super_attention", "--seeds", "1", "--epochs", "2")
    steps = 17  # an epoch of the digits
    press_at(2 * steps + steps + 5)
    result = suffice(*words, "--out", "a folder")
    assert (result.exit_code, result.stdout) == (130, "")
    first, second, command = result.stderr.splitlines()[-3:]
    assert (first, second) == ("", "interrupted. Finished work is kept. Resume with:")
    assert command.startswith("  ")
    assert shlex.split(command)[1:] == [*words, "--out", "a folder", "--resume"]
    folder = Path("a folder")
    assert [path.stem for path in folder.glob("cells/*")] == ["standard-h4-s0"]
    assert [path.stem for path in folder.glob("checkpoints/*")] == ["super_attention-h4-s0"]
    result = suffice(*shlex.split(command)[1:])
    assert result.exit_code == OPEN
    assert "report: a folder/report.html" in result.stdout
    assert list(folder.glob("checkpoints/*")) == []
    assert suffice(*words, "--out", "uninterrupted", "--json").exit_code == OPEN
    assert len(timeless(folder)) == 2
    assert timeless(folder) == timeless("uninterrupted")
