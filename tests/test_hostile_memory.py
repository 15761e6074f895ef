"""What hostile files take of the memory: at most 512 MiB, Python and torch included.

`python -m tests.test_hostile_memory` prints the peak of each.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from suffice.data.files import OPENERS
from tools.kills.cases import _classifier

MOST = 512 << 20  # bytes
TOKENS = "m", "--tokens", "2", "--prompt", "a"


def _changed_config(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        path = place / "m" / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return prepare


def _file(name: str, content: Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda place: (place / name).parent.mkdir(exist_ok=True) or _write(place / name, content)


def _write(path: Path, content: Callable[[], bytes]) -> None:
    path.write_bytes(content())


def _packed(name: str, begin: bytes, mebibytes: int) -> Callable[[Path], None]:
    """Write a small compressed file of so many MiB of spaces."""

    def prepare(place: Path) -> None:
        with OPENERS[Path(name).suffix](place / name, "wb") as file:
            file.write(begin)
            for _ in range(mebibytes):
                file.write(b" " * (1 << 20))

    return prepare


def _header(claimed: int) -> bytes:
    return struct.pack("<Q", claimed) + b"{" + b" " * (6 << 20)


def _layers(count: int) -> Callable[[dict], None]:
    def change(config: dict) -> None:
        config["model"]["depth"] = count
        config["specs"] = config["specs"] * count

    return change


def _sizes(**sizes: int) -> Callable[[dict], None]:
    return lambda config: config["model"].update(sizes)


def _patterned(pattern: dict) -> Callable[[dict], None]:
    both = {"name": "And", "parts": [pattern, {"name": "Causal"}]}
    return lambda config: [spec.update(pattern=both) for spec in config["specs"]]


def _word(number: int) -> bytes:
    return struct.pack("<Q8s", 8, b"%08d" % number)


def _gguf(values: int, content: bytes, tensors: int = 0) -> bytes:
    """Return the head of a file with one array of words."""
    counts = struct.pack("<4sIQQ", b"GGUF", 3, tensors, 1)
    return counts + struct.pack("<Q1sIIQ", 1, b"a", 9, 8, values) + content


GPT2 = {"model_type": "gpt2", "n_positions": 16, "n_embd": 16, "n_head": 2, "n_layer": 1}
GPT2["vocab_size"] = 18
COMPARE = ("compare", "--data", "t.csv.gz", "--out", "o", "--quiet")
CASES: dict[str, tuple[tuple[str, ...], Callable[[Path], None]]] = {
    "a table of 640 MiB of spaces in 0.6 MiB": (
        COMPARE,
        _packed("t.csv.gz", b"text,label\n", 640),
    ),
    "a table of a million lines in 0.1 MiB": (
        COMPARE,
        _file("t.csv.gz", lambda: gzip.compress(b"text,label\n" + b"a,1\nb,0\n" * 500_000)),
    ),
    "20,000 layers": (("generate", *TOKENS), _changed_config(_layers(20_000))),
    "sizes of 2**40": (("generate", *TOKENS), _changed_config(_sizes(d_model=2**40))),
    "a vocabulary of 2**40": (
        ("generate", *TOKENS),
        _changed_config(_sizes(vocabulary_size=2**40)),
    ),
    "16 MiB of empty lists as config": (
        ("generate", *TOKENS),
        _file("m/config.json", lambda: b"[" + b"[]," * 5_500_000 + b"[]]"),
    ),
    "a tokenizer of empty lists": (
        ("generate", *TOKENS),
        _file("m/tokenizer.json", lambda: b"[" + b"[]," * 16_000_000 + b"[]]"),
    ),
    "an index of empty lists": (
        ("export", "h", "--format", "hf", "--out", "o", "--quiet"),
        lambda place: (
            _file("h/config.json", lambda: json.dumps(GPT2).encode())(place),
            _file("h/model.safetensors.index.json", lambda: b"[" + b"[]," * 16_000_000 + b"[]]")(
                place
            ),
        ),
    ),
    "a header of 6 MiB": (
        ("generate", *TOKENS),
        _file("m/model.safetensors", lambda: _header(6 << 20)),
    ),
    "a header of 2**63": (
        ("generate", *TOKENS),
        _file("m/model.safetensors", lambda: _header(2**63)),
    ),
    "a .gguf that announces 2**62 values": (
        ("generate", "m.gguf", *TOKENS[1:]),
        _file("m.gguf", lambda: _gguf(2**62, b"")),
    ),
    "a .gguf of a million words": (
        ("generate", "m.gguf", *TOKENS[1:]),
        _file("m.gguf", lambda: _gguf(1 << 20, b"".join(map(_word, range(1 << 20))))),
    ),
    "a .gguf with a tensor of 2**60 numbers": (
        ("generate", "m.gguf", *TOKENS[1:]),
        _file(
            "m.gguf",
            lambda: _gguf(0, b"", tensors=1) + _word(7) + struct.pack("<IQIQ", 1, 2**60, 0, 0),
        ),
    ),
    "keys of Random": (
        ("generate", *TOKENS),
        _changed_config(_patterned({"name": "Random", "keys": 10**9, "length": None, "seed": 0})),
    ),
    "a line of 64 MiB": (
        ("predict", "classifier", "t.csv"),
        _file("t.csv", lambda: b"text,label\n" + b"a" * (64 << 20)),
    ),
}

AGAIN = {
    "a table of 640 MiB of spaces in 0.6 MiB",
    "items of 640 MiB in 0.1 MiB",
    "a line of 64 MiB",
    "a .gguf of a million words",
    "a tokenizer of empty lists",
    "a vocabulary of 2**40",
    "16 MiB of empty lists as config",
    "an index of empty lists",
    "a header of 2**63",
    "a .gguf that announces 2**62 values",
    "a .gguf with a tensor of 2**60 numbers",
}
"""Second cases of a door: a program each, so they run at night."""


MEASURED = """
import sys
from pathlib import Path
from suffice.cli import main
try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    Path("peak").write_text(next(line for line in lines if line.startswith("VmHWM")).split()[1])
"""


def peak(name: str, place: Path) -> tuple[int, int, str]:
    """Run a command on a hostile file; return its exit code, its peak in bytes and its sentence.

    The system's own count, as a program's `ru_maxrss` begins with that of its parent.
    """
    words, prepare = CASES[name]
    _classifier(place)
    prepare(place)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, int((place / "peak").read_text()) * 1024, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in AGAIN else name for name in CASES],
)
def test_a_hostile_file_takes_at_most_512_mebibytes(name, tmp_path):
    code, taken, sentence = peak(name, tmp_path)
    assert code == 2, sentence
    assert "Traceback" not in sentence
    assert taken <= MOST, f"{taken >> 20} MiB"


if __name__ == "__main__":
    for each in CASES:
        with tempfile.TemporaryDirectory() as folder:
            left, most, why = peak(each, Path(folder))
            text = " ".join(why.split())[:90]
            print(f"{most >> 20:>5} MiB  exit {left}  {each}: {text}")  # noqa: T201
