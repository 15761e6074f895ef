"""Instructions of our kernels and of llama.cpp's on ARM, counted under qemu."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "instructions"
TARGET = "aarch64-linux-musl"
DOTPROD = "-mcpu=generic+v8_2a+dotprod+fullfp16"
FLAGS = {"neon": "", "dotprod": DOTPROD, "i8mm": f"{DOTPROD}+i8mm"}  # as CMakeLists.txt has them


def absent(*others: str) -> list[str]:
    """Return what is missing here to compile for ARM, and of other programs."""
    programs = [name for name in ("cmake", *others) if not shutil.which(name)]
    modules = [name for name in ("ziglang", "elftools") if not importlib.util.find_spec(name)]
    return programs + modules


def wheels() -> ModuleType:
    """Return the script that compiles for other platforms."""
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "packaging" / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def build(program: str, folder: Path, *options: str) -> Path:
    """Compile one of the two programs for ARM and return its path."""
    script = wheels()
    target = script.Platform(tag=TARGET, target=TARGET, system="Linux", processor="aarch64")
    made = script.configure(target, folder, HERE, *options)
    script.run("cmake", "--build", made, "--parallel", "--target", program)
    return made / program


def objects() -> Iterator[Path]:
    """Compile our kernels for ARM and give the object file of each instruction set."""
    folder = build("our_products", BUILD / "ours").parent
    for name in FLAGS:
        yield next(folder.glob(f"**/{name}.dir/**/kernels.cpp.o"))
