"""Machine, software versions and commit of a measurement, without host names, users or paths."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parents[1]


def machine_facts() -> dict[str, object]:
    """Return processor, cores, torch's threads, memory in bytes, platform, gpu; None: unknown."""
    return {
        "cpu": _cpu_model(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "platform": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def software_versions() -> dict[str, object]:
    """Return the versions of Python, torch, numpy and suffice; None for one not installed."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "suffice": _version("suffice"),
    }


def source_commit(folder: Path = PACKAGE, file: str = "__init__.py") -> str | None:
    """Return a source file's git commit, "-dirty" if changed; None outside a checkout of it."""
    if _git(folder, "ls-files", "--error-unmatch", file) is None:
        return None
    return _git(folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    # a hook's GIT_DIR would point git at another repository
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or None


def _memory_bytes() -> int | None:
    names = {"SC_PAGE_SIZE", "SC_PHYS_PAGES"}
    if not names <= set(getattr(os, "sysconf_names", {})):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts the energy of the processor packages from when it is made, by RAPL counters."""

    def __init__(self, folder: Path = RAPL) -> None:
        self._counters = sorted(folder.glob("intel-rapl:[0-9]*"))
        self._counters = [path for path in self._counters if path.name.count(":") == 1]
        self._begin = self._read()

    def _read(self) -> dict[Path, int]:
        values = {}
        for counter in self._counters:
            try:
                values[counter] = int((counter / "energy_uj").read_text())
            except (OSError, ValueError):  # often readable by root alone
                continue
        return values

    def joules(self) -> float | None:
        """Return the energy since then; None if unknown, too low if a counter wrapped twice."""
        now = self._read()
        if not self._begin or now.keys() != self._begin.keys():
            return None
        total = 0
        for counter, begin in self._begin.items():
            used = now[counter] - begin
            if used < 0:
                used += int((counter / "max_energy_range_uj").read_text())
            total += used
        return total / 1e6
