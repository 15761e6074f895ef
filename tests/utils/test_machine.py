from __future__ import annotations

import getpass
import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from suffice.utils import machine
from suffice.utils.machine import EnergyMeter, machine_facts, software_versions, source_commit

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    answer = subprocess.run(
        ["git", *who, "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return answer.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return package


def test_nothing_personal_is_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = " ".join(map(str, [*machine_facts().values(), *software_versions().values()])).split()
    assert socket.gethostname() not in told
    assert getpass.getuser() not in told
    assert str(Path.home()) not in " ".join(told)


def test_the_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert machine_facts()["gpu"] == "Some GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine_facts()["gpu"] is None


def test_the_processor_is_read_from_the_system(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert machine._cpu_model(info) == "Some CPU @ 2 GHz"
    monkeypatch.setattr(platform, "processor", lambda: "fallback")
    assert machine._cpu_model(tmp_path / "absent") == "fallback"
    info.write_text("processor: 0\n")
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert machine._cpu_model(info) is None


@needs_git
def test_the_commit_of_a_checkout(checkout):
    assert source_commit(checkout) == git(checkout, "rev-parse", "HEAD")


@needs_git
def test_a_changed_checkout_is_dirty(checkout):
    (checkout / "__init__.py").write_text("changed = 1\n")
    assert source_commit(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


@needs_git
def test_a_package_installed_inside_a_checkout_has_no_commit(checkout):
    installed = checkout.parent / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert source_commit(installed) is None


def test_no_checkout_or_no_git_gives_none(tmp_path, monkeypatch):
    assert source_commit(tmp_path / "absent") is None
    monkeypatch.setenv("PATH", "")
    assert source_commit(tmp_path) is None


def counter(folder, name: str, energy: int) -> None:
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "energy_uj").write_text(str(energy))
    (place / "max_energy_range_uj").write_text("1000000000")


def test_energy_is_summed_over_packages_and_past_the_end_of_a_counter(tmp_path):
    for name, energy in (("intel-rapl:0", 5_000_000), ("intel-rapl:1", 999_000_000)):
        counter(tmp_path, name, energy)
    counter(tmp_path, "intel-rapl:0:0", 1)  # a part of package 0
    meter = EnergyMeter(tmp_path)
    for name, energy in (("intel-rapl:0", 7_000_000), ("intel-rapl:1", 1_000_000)):
        counter(tmp_path, name, energy)
    counter(tmp_path, "intel-rapl:0:0", 900)
    assert meter.joules() == pytest.approx(2.0 + 2.0)


def test_a_machine_without_counters_tells_no_energy(tmp_path):
    assert EnergyMeter(tmp_path).joules() is None
