"""Bad values for arguments and options of verbs, and what is wrong with the answers to them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.introspect import Parameter, names_output
from tools.kills.cases import _classifier
from tools.kills.killing import _changed

PATHS = {
    "missing": "missing",
    "empty folder": "folder",
    "empty file": "empty",
    "nothing": "",
    "here": ".",
    "root": "/",
    "pipe": "pipe",
    "endless device": "/dev/zero",
    "full device": "/dev/full",
    "unreadable": "/proc/self/mem",
    "long": "x" * 300,
    "longer": "x" * 5000,
    "surrogates": "\udcff\ud800",
    "NUL": "a\0b",
    "number": str(10**30),
    "foreign": "foreign",
    "loop": "loop",
    "below a file": "text.txt/x",
    "bytes": "noise",
}
PLACES = {
    **{n: PATHS[n] for n in ("nothing", "here", "root", "pipe", "endless device", "full device")},
    **{n: PATHS[n] for n in ("long", "longer", "surrogates", "NUL", "loop", "below a file")},
    "above": "..",
    "foreign": "foreign",
    "nowhere": "/proc/nowhere/x",
    "file": "text.txt",
}
NUMBERS = {n: n for n in ("x", "", "nan", "-1", "1e400", "1.5.2")} | {
    "huge": str(10**30),
    "negative": str(-(10**30)),
    "64 bits": str(2**63),
    "digits": "9" * 5000,
}
WHOLE = ("huge", "64 bits")  # which a float holds
SECONDS, ROOM = 20, 1 << 30  # for each command; bytes that it may map


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a language model, its export, a classifier and a table."""
    from suffice.export import export

    path = tmp_path_factory.mktemp("models")
    _classifier(path)
    export(path / "m", "hf", path / "e")
    return path


@pytest.fixture
def place(models, tmp_path):
    """What the commands read, and what they must not touch."""
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    scores = [f"{m},{s},{(s * 7 + len(m)) % 10}" for m in ("old", "newer") for s in range(5)]
    (tmp_path / "scores.csv").write_text("\n".join(["model,seed,score", *scores]))
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years")
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "foreign" / "model.safetensors").write_bytes(b"precious")
    (tmp_path / "foreign" / "results.json").write_text("{}")
    (tmp_path / "foreign" / "index.html").write_text("<p>somebody's")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


GUARD: list[Path] = []


def _guard(event: str, arguments: tuple) -> None:
    if GUARD and (path := _changed(event, arguments, Path("/"))) is not None:
        path = path.absolute()
        legal = (tempfile.gettempdir(), Path.home() / ".cache", "/dev/null", "/proc")
        if not any(path.is_relative_to(each) for each in (*GUARD, *legal)):
            raise AssertionError(f"{event} of {path}")


sys.addaudithook(_guard)


@contextmanager
def limited(place: Path):
    """Refuse writes outside, and what takes too long."""

    def late(*_: object) -> None:
        raise AssertionError(f"not done in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    GUARD.append(place)
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        GUARD.clear()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _values(parameter: Parameter) -> dict[str, str]:
    if parameter.kind is int:
        return NUMBERS
    if parameter.kind is float:
        return {name: value for name, value in NUMBERS.items() if name not in WHOLE}
    return PLACES if names_output(parameter) else PATHS


def _words(short: Sequence[str], parameter: Parameter, value: str) -> list[str]:
    """A short command with one value replaced."""
    base, words = iter(short), [parameter.verb]
    given = False
    for word in base:
        name, equals, rest = word.partition("=")
        if equals and name.isupper():
            mine = parameter.flag is None and name == parameter.name.upper()
            words.append(value if mine else rest)
            given = given or mine
        elif word == parameter.flag:
            next(base)
        else:
            words.append(word)
    if parameter.flag is not None:
        words += [f"{parameter.flag}={value}"]
    elif not given:
        words += ["--", value]
    return words


def _content(place: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
        if not {"cache", "new", "runs"} & set(path.relative_to(place).parts)
    }


def _wrong(suffice, place: Path, words: Sequence[str], parameter: Parameter) -> str | None:
    """Return what is wrong with the answer to a bad value; None if nothing is."""
    before = _content(place)
    try:
        with limited(place):
            result = suffice(*words)
    except BaseException as error:  # noqa: BLE001 - what left the program is what is looked for
        return f"{type(error).__name__}: {error!s:.300}"
    changed = [path.name for path, old in before.items() if _content(place).get(path, b"") != old]
    if changed and not (str(parameter) == "predict --out" and changed == ["text.txt"]):
        return f"{changed[0]} changed"
    if result.exit_code == 0:
        return "accepted"
    if result.exit_code != 2:
        return f"exit code {result.exit_code}: {result.message:.200}"
    if "rror: " not in result.stderr or len(result.stderr) > 3000:
        return f"no sentence: {result.message:.200}"
    return None


def wrong_answers(
    suffice, place: Path, short: Sequence[str], values: Sequence[tuple[Parameter, int]], *,
    step: int, legal: Collection[tuple[str, str]],
) -> list[str]:  # fmt: skip
    """Return what is wrong with a verb's answers.

    Args:
        suffice: the program.
        place: its working folder.
        short: words of a short command; an argument has its name before it.
        values: the verb's parameters; each meets a share of the values, from that number on.
        step: of the values that a parameter meets.
        legal: parameters and values that are accepted.
    """
    wrong = []
    for parameter, first in values:
        for name, value in [*_values(parameter).items()][first % step :: step]:
            reason = _wrong(suffice, place, _words(short, parameter, value), parameter)
            if reason is not None and (str(parameter), name) not in legal:
                wrong.append(f"{parameter}, {name}: {reason}")
    return wrong
