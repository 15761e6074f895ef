"""What libraries raise becomes a sentence; a folder is replaced whole or not at all."""

from __future__ import annotations

import errno
import lzma
import os
import struct
from pathlib import Path

import pytest

from suffice.data.files import lines
from suffice.errors import ConfigError, DataError
from suffice.models.folder import check_replaceable
from suffice.utils import boundary, files
from suffice.utils.boundary import shortened, translate_exception
from suffice.utils.files import replacing_folder


class PanicException(BaseException):  # noqa: N818 - the name of the one that Rust raises
    """Stands beside Exception, as that of the tokenizers library."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), "File name too long"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk refuses more"),
        (MemoryError(), "more memory than there is"),
        (OverflowError("int too big to convert"), "too large"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), "UTF-8"),
        (ValueError("embedded null byte"), "NUL"),
        (PanicException("index out of bounds"), "tokenizers"),
        (RuntimeError("Storage size calculation overflowed"), "too large"),
        (lzma.LZMAError("corrupt"), "truncated"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_a_library_raises_is_told_in_one_short_sentence(error, words):
    sentence = str(translate_exception(error))
    assert words in sentence
    assert len(sentence) < 600
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "bug",
    [
        KeyError("x"),
        AttributeError("x"),
        TypeError("x"),
        ValueError("null hypothesis"),
        RecursionError("maximum recursion depth exceeded"),
        OverflowError("math range error"),
        OSError("could not get source code"),
        OSError(errno.EBADF, "Bad file descriptor"),
        FileNotFoundError(errno.ENOENT, "No such file", boundary.__file__ + ".missing"),
        UnicodeEncodeError("ascii", "\xe4", 0, 1, "ordinal not in range"),
        EOFError("a worker ended"),
        struct.error("required argument is not an integer"),
        RuntimeError("Trying to create tensor with negative dimension -1"),
        RuntimeError("cannot allocate the layer"),
    ],
    ids=repr,
)
def test_a_bug_keeps_its_traceback(bug):
    assert translate_exception(bug) is None


def test_the_file_in_hand_is_named():
    def read(path):
        raise OverflowError("int too big to convert")

    with pytest.raises(OverflowError) as caught:
        read(Path("some/config.json"))
    assert str(translate_exception(caught.value)).startswith(f"{Path('some/config.json')}: ")


def test_half_a_surrogate_is_escaped():
    assert shortened("a\ud800") == "a\\ud800"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of itself")
@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("death", range(4))
def test_a_program_killed_at_any_step_leaves_the_old_folder_or_the_new_one(
    tmp_path, monkeypatch, exchanges, death
):
    out = tmp_path / "out"
    with replacing_folder(out) as new:
        (new / "a").write_text("old")
        (new / "b").write_text("old")
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    if (child := os.fork()) == 0:
        _replace_and_die(out, death)
    os.waitpid(child, 0)
    with pytest.raises(KeyError), replacing_folder(out):  # restores what was set aside
        raise KeyError
    assert {(out / name).read_text() for name in "ab"} in ({"old"}, {"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _replace_and_die(out, death):
    """End without a word at a step: before or after a rename, or between two files."""
    steps = iter(range(10))

    def dying(function):
        def step(*args):
            result = function(*args)
            if next(steps) == death:
                os._exit(9)
            return result

        return step

    os.rename, files._exchange = dying(os.rename), dying(files._exchange)
    files.shutil.rmtree = dying(files.shutil.rmtree)
    try:
        with replacing_folder(out) as new:
            (new / "a").write_text("new")
            (new / "b").write_text("new")
    finally:
        os._exit(0)


def test_nothing_is_written_over_what_no_command_wrote(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match=r"holds 'config\.json'"):
        check_replaceable(tmp_path)
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        check_replaceable(tmp_path)


def test_a_file_that_expands_without_measure_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.xz"
    path.write_bytes(lzma.compress((b"a" * 99 + b"\n") * 10_000))
    assert sum(1 for _ in lines(path)) == 10_000
    monkeypatch.setattr("suffice.data.files.FREE", 1000)
    with pytest.raises(DataError, match="100 times its size"):
        list(lines(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe with a name")
def test_a_pipe_is_no_file_of_data(tmp_path):
    os.mkfifo(tmp_path / "f.csv")
    with pytest.raises(DataError, match="not a regular file"):
        list(lines(tmp_path / "f.csv"))
