"""Every argument and option of every verb meets the same bad values: exit code 2 and a sentence."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from suffice.cli import VERBS
from tests.cli.introspect import Parameter, outputs, parameters
from tests.kills.cases import _classifier
from tests.kills.killing import _changed

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
SETS = ("--set", "steps=2", "--set", "batch_size=2", "--set", "length=16", "--set", "d_model=16")
SETS += ("--set", "depth=1", "--set", "num_heads=2", "--set", "warmup=1")
BASE: dict[str, list[str]] = {
    "compare": ["--data", "rows.csv", "--mechanisms", "standard,linear", "--seeds", "1"]
    + ["--epochs", "1", "--set", "d_model=8", "--set", "depth=1", "--set", "length=8"]
    + ["--out", "new", "--quiet"],
    "verdict": ["RESULTS=scores.csv"],
    "predict": ["MODEL=classifier", "INPUTS=rows.csv"],
    "advise": ["--task", "lm", "--model", "15m", "--minutes", "0.001", "--quiet"],
    "reproduce": ["TABLE=tab5", "--no-report", "--quiet"],
    "train": ["--data", "text.txt", *SETS, "--out", "new", "--quiet"],
    "plan": ["RECIPE=shakespeare_char"],
    "fits": ["MODEL=Qwen3 8B", "--length", "64", "--memory", "24GiB"],
    "evaluate": ["CHECKPOINT=m", "--data", "text.txt", "--limit", "2", "--quiet"],
    "generate": ["CHECKPOINT=m", "--tokens", "2", "--prompt", "a"],
    "bench": ["CHECKPOINT=m", "--tokens", "2", "--prompt", "2", "--rounds", "1"],
    "quantise": ["CHECKPOINT=m", "--calibration", "none", "--out", "new", "--quiet"],
    "convert": ["SOURCE=m", "--to", "mqa", "--calibration", "text.txt", "--out", "new", "--quiet"],
    "search": ["CHECKPOINT=m", "--budget", "state<=60%", "--options", "mqa", "--tokens", "300"]
    + ["--calibration", "text.txt", "--out", "new.json", "--quiet"],
    "heal": ["CHECKPOINT=m", "--teacher", "m", "--data", "text.txt", "--steps", "2"]
    + ["--out", "new", "--quiet"],
    "probe": ["CHECKPOINT=m", "--data", "text.txt", "--seeds", "1", "--quick", "--quiet"],
    "export": ["CHECKPOINT=m", "--format", "hf", "--out", "new", "--quiet"],
    "run": ["EXPORT=e", "--prompt", "a", "--tokens", "2"],
    "serve": ["MODEL=m", "--port", "0"],
    "studio": ["--export", "new"],
    "list": [],
    "show": ["MECHANISM=standard"],
    "doctor": [],
}
"""The words of a short command; an argument has its name before it."""
STEP = 9  # of the values that a parameter meets in every run
SECONDS, ROOM = 20, 1 << 30  # for each command; bytes that it may map


def test_every_verb_has_a_short_command():
    assert BASE.keys() == VERBS.keys()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a language model, its export, a classifier and a table."""
    from suffice.export import export

    path = tmp_path_factory.mktemp("models")
    _classifier(path)
    export(path / "m", "hf", path / "e")
    return path


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    """What the commands read, and what they must not touch."""
    if find_spec("uvicorn") is not None:  # a server that is begun ends at once
        monkeypatch.setattr("suffice.serve.server.run", lambda _, listener, *__: listener.close())
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
    return PLACES if parameter in outputs() else PATHS


def _words(parameter: Parameter, value: str) -> list[str]:
    """The short command with one value replaced."""
    base, words = iter(BASE[parameter.verb]), [parameter.verb]
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


def _wrong(suffice, place: Path, parameter: Parameter, value: str) -> str | None:
    """Return what is wrong with the answer to a bad value; None if nothing is."""
    words = _words(parameter, value)
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", VERBS)
def test_bad_values_are_refused_in_a_sentence(verb, step, suffice, place):
    """Each parameter meets a share of the values, the next one the next share; all at night."""
    wrong = []
    for number, parameter in enumerate(parameters()):
        if parameter.verb == verb:
            for name, value in [*_values(parameter).items()][number % step :: step]:
                reason = _wrong(suffice, place, parameter, value)
                if reason is not None and (str(parameter), name) not in LEGAL:
                    wrong.append(f"{parameter}, {name}: {reason}")
    assert not wrong, "\n".join(wrong)


SEEDS = ("-1", "huge", "negative", "64 bits")
LEGAL = {(f"{verb} --seed", name) for verb in ("generate", "run", "train") for name in SEEDS} | {
    *((f"serve --{word}", name) for word in ("name", "api-key") for name in PATHS),  # any word
    ("evaluate --limit", "huge"),  # all that there are
    ("evaluate --limit", "64 bits"),
    *(
        ("studio --results", name)
        for name in ("empty folder", "nothing", "here", "root", "foreign")
    ),
    *(
        (f"{verb} --prompt", "nothing") for verb in ("generate", "run")
    ),  # starts behind a line break
    ("predict --out", "file"),  # a table may end in .txt, and a file is replaced
}
