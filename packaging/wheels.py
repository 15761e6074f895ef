"""Wheels of every platform and of the siblings, built on this machine, and the source distribution.

Zig is the one compiler of all platforms: it brings their C libraries. The kernels have a plain C
interface, so that a wheel serves every Python and torch of its platform; what is in it beside them
is the same for all.

Run: python packaging/wheels.py [--only PLATFORM] [--out dist]; needs what requirements.txt beside
this file lists, and cmake.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 6_000_000


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform that wheels are built for.

    Args:
        tag: as wheels name it.
        target: as Zig names it.
        system: as CMake names it.
        processor: as CMake names it.
        library: the file of the kernels.
    """

    tag: str
    target: str
    system: str
    processor: str
    library: str = "_kernels.so"


PLATFORMS = (
    Platform(
        tag="manylinux_2_28_x86_64",
        target="x86_64-linux-gnu.2.28",
        system="Linux",
        processor="x86_64",
    ),
    Platform(
        tag="manylinux_2_28_aarch64",
        target="aarch64-linux-gnu.2.28",
        system="Linux",
        processor="aarch64",
    ),
    Platform(
        tag="musllinux_1_2_x86_64", target="x86_64-linux-musl", system="Linux", processor="x86_64"
    ),
    Platform(
        tag="macosx_11_0_arm64",
        target="aarch64-macos.11.0",
        system="Darwin",
        processor="arm64",
    ),
    Platform(
        tag="macosx_11_0_x86_64",
        target="x86_64-macos.11.0",
        system="Darwin",
        processor="x86_64",
    ),
    Platform(
        tag="win_amd64",
        target="x86_64-windows-gnu",
        system="Windows",
        processor="AMD64",
        library="_kernels.dll",
    ),
)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; end with its output when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")


def configure(platform: Platform, folder: Path, source: Path = ROOT, *options: str) -> Path:
    """Prepare a build for a platform, of its kernels by default, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    zig = f'exec "{sys.executable}" -m ziglang'
    for name in ("cc", "c++", "ar"):
        target = "" if name == "ar" else f" -target {platform.target}"
        (folder / name).write_text(f'#!/bin/sh\n{zig} {name}{target} "$@"\n')
        (folder / name).chmod(0o755)
    run(
        "cmake", "-S", source, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_SYSTEM_NAME={platform.system}",
        f"-DCMAKE_SYSTEM_PROCESSOR={platform.processor}",
        f"-DCMAKE_C_COMPILER={folder / 'cc'}", f"-DCMAKE_CXX_COMPILER={folder / 'c++'}",
        f"-DCMAKE_AR={folder / 'ar'}",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        "-DCMAKE_OSX_SYSROOT=", "-DCMAKE_OSX_DEPLOYMENT_TARGET=",
        "-DCMAKE_INSTALL_NAME_TOOL=true",  # CMake wants Apple's; nothing is renamed here
        *options,
    )  # fmt: skip
    return folder / "build"


def kernels(platform: Platform, folder: Path) -> Path:
    """Build the library of a platform and return its path."""
    build = configure(platform, folder)
    run("cmake", "--build", build, "--parallel")
    return build / platform.library


def pure(out: Path, source: Path = ROOT) -> Path:
    """Build a wheel without kernels: of a sibling, or what all others of suffice are made of."""
    before = set(out.glob("*.whl"))
    run(
        sys.executable, "-m", "build", "--wheel", "--outdir", out, source,
        env={"SUFFICE_WITHOUT_KERNELS": "1"},
    )  # fmt: skip
    (made,) = set(out.glob("*.whl")) - before
    return made


def wheel(plain: Path, platform: Platform, library: Path, out: Path) -> Path:
    """Put a library into a copy of the plain wheel and name its platform."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "wheel", "unpack", plain, "--dest", folder)
        tree = next(Path(folder).iterdir())
        shutil.copy2(library, tree / "suffice" / "ops" / "native" / platform.library)
        info = next(tree.glob("*.dist-info")) / "WHEEL"
        lines = [
            line
            for line in info.read_text().splitlines()
            if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
        ]
        lines += ["Root-Is-Purelib: false", f"Tag: py3-none-{platform.tag}"]
        info.write_text("\n".join(lines) + "\n")
        run(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", out)
    return next(out.glob(f"*-py3-none-{platform.tag}.whl"))


def check_glibc(file: Path) -> None:
    """Refuse a wheel that needs a newer C library than its name says."""
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(file)], capture_output=True, text=True
    )
    tag = re.search(r"manylinux_2_(\d+)_(\w+)\.whl", file.name)
    # the sentence is broken into lines anywhere
    needs = re.search(r'platform tag: "manylinux_2_(\d+)_(\w+)"', " ".join(shown.stdout.split()))
    if not (tag and needs and needs[2] == tag[2] and int(needs[1]) <= int(tag[1])):
        sys.exit(f"{file.name} is not what it says:\n{shown.stdout}{shown.stderr}")


def check_musl(file: Path) -> None:
    """Refuse a wheel whose kernels need another library than musl.

    auditwheel cannot be asked: on a system of glibc it takes the linker script libc.so for musl's.
    """
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/_kernels.so"))
        dynamic = ELFFile(io.BytesIO(archive.read(name))).get_section_by_name(".dynamic")
    needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    if needed != {"libc.so"}:
        sys.exit(f"{file.name} needs {', '.join(sorted(needed))}")


def check(file: Path) -> str:
    """Check a wheel's contents, symbols and size; return its size in words."""
    run(sys.executable, "-m", "check_wheel_contents", file)
    run(sys.executable, "-m", "twine", "check", "--strict", file)
    if "manylinux" in file.name:
        check_glibc(file)
    elif "musllinux" in file.name:
        check_musl(file)
    size = file.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{file.name} has {size} bytes, more than {MOST_BYTES}")
    return f"{size / 1e6:.2f} MB"


def main(words: Sequence[str] | None = None) -> None:
    """Build the wheels and the source distribution into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[platform.tag for platform in PLATFORMS])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    for old in (*options.out.glob("*.whl"), *options.out.glob("*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        plain = pure(Path(folder))
        for platform in PLATFORMS:
            if options.only in (None, platform.tag):
                library = kernels(platform, ROOT / "build" / "wheels" / platform.tag)
                file = wheel(plain, platform, library, options.out)
                sys.stdout.write(f"{file.name}  {check(file)}\n")
    if options.only is None:
        for settings in sorted(ROOT.glob("*/pyproject.toml")):
            file = pure(options.out, settings.parent)
            sys.stdout.write(f"{file.name}  {check(file)}\n")
        run(sys.executable, "-m", "build", "--sdist", "--outdir", options.out)
        source = next(options.out.glob("*.tar.gz"))
        run(sys.executable, "-m", "twine", "check", "--strict", source)
        sys.stdout.write(f"{source.name}  {source.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()
