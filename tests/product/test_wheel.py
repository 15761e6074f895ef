"""The wheel of suffice, installed where nothing but its dependencies is: what it holds and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from suffice.comparison.resolution import EVIDENCE
from tests.meta.packages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="links folders")]

DIGITS = ("compare", "--task", "digits", "--mechanisms", "standard,efficient", "--seeds", "2")
SCORES = {"old.csv": (0.70, 0.71, 0.705), "new.csv": (0.72, 0.734, 0.728)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the wheel without kernels, which are compiled for a platform."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT]
    environment = {**os.environ, "SUFFICE_WITHOUT_KERNELS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if "No matching distribution found" in done.stderr:
        pytest.skip("no network: what builds a wheel cannot be downloaded")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory):
    """Return a function that calls the installed program, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    dependencies = folder / "dependencies"  # those of this environment, without what is ours
    dependencies.mkdir()
    for place in dict.fromkeys(path for path in sys.path if path.endswith("site-packages")):
        for path in Path(place).iterdir():
            ours = path.name.strip("_").startswith(("suffice", "editable")) or path.suffix == ".pth"
            if not ours and not (dependencies / path.name).exists():
                (dependencies / path.name).symlink_to(path)
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: object, code: int = 0) -> str:
        command = [python, "-m", "suffice", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=environment, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    call.folder = folder
    return call


def test_the_wheel_holds_one_small_file_of_results(wheel):
    with zipfile.ZipFile(wheel) as archive:
        sizes = {file.filename: file.file_size for file in archive.infolist()}
    assert not [name for name in sizes if "results/" in name or "papers" in name or "csrc" in name]
    assert sizes["/".join(("suffice", *EVIDENCE))] < 60_000
    assert sum(size for name, size in sizes.items() if name.endswith((".json", ".csv"))) < 110_000


def test_its_verbs_run(program):
    assert "efficient" in program("list")
    assert "undecided" in program(*DIGITS, "--epochs", "1", "--out", "run", "--quiet", code=11)
    Image.new("L", (8, 8), 9).save(program.folder / "digit.png")
    assert "digit.png" in program("predict", "run", "digit.png")
    for name, scores in SCORES.items():
        lines = [f"{seed},{score}" for seed, score in enumerate(scores)]
        (program.folder / name).write_text("\n".join(["seed,score", *lines]))
    assert "new suffices" in program("verdict", *SCORES, "--margin", "1 points")
    assert "Qwen3 8B fits" in program("fits", "Qwen3 8B", "--length", "8192", "--memory", "24GiB")
    advice = program("advise", "--task", "image", "--model", "digits_vit", "--minutes", "0.01")
    assert "0 of 6" in advice  # published comparisons of efficient
    assert "suffice-papers" in program("reproduce", code=2)
