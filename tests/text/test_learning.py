from __future__ import annotations

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from suffice.errors import ConfigError, DataError, StateError
from suffice.text import BPE, bpe, learner

TEXTS = ["the lowest, the slower and the lower"] * 3


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes that a test starts."""
    processes = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return processes


def test_the_same_texts_give_the_same_tokenizer():
    assert bpe.learn(TEXTS, 265, None) == bpe.learn(iter(TEXTS), 265, None)


def test_the_program_says_what_it_says_within_this_process(monkeypatch: pytest.MonkeyPatch):
    stdin = SimpleNamespace(buffer=io.BytesIO(b"".join(map(learner.framed, TEXTS))))
    stdout = SimpleNamespace(buffer=io.BytesIO())
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", stdout)
    learner.main("265", "2", bpe.END)
    assert stdout.buffer.getvalue().decode() == bpe.learn(TEXTS, 265, None)


def test_the_smallest_vocabulary_is_bytes_and_the_end():
    description = json.loads(bpe.learn([], 257, None))
    assert description["model"]["merges"] == []
    assert len(description["model"]["vocab"]) == 257


@pytest.mark.parametrize("size", [256, (1 << 20) + 1, 300.0, True, "300"])
def test_a_size_that_cannot_be_is_refused(size: object):
    with pytest.raises(
        ConfigError, match=r"vocabulary_size=.* is not legal; give an integer of 25"
    ):
        BPE.train(TEXTS, size)


def test_one_text_is_not_taken_for_many():
    with pytest.raises(ConfigError, match=r"the documents are one text; give an iterable of texts"):
        BPE.train("the lowest", 260)


def test_too_few_pairs_are_told_with_how_many_there_are():
    with pytest.raises(
        DataError, match=r"the texts give 259 tokens, not 300: no other pair occurs"
    ):
        BPE.train(["abcabc", "xyz"], 300)


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [(5, ConfigError, "5 is not a text"), ("\udc00", DataError, "a text cannot be encoded")],
)
def test_a_document_that_is_no_text_is_refused(wrong: object, error: type, sentence: str, started):
    with pytest.raises(error, match=sentence):
        BPE.train([*TEXTS, wrong], 260)
    assert [process.returncode for process in started] == [-9]


def test_an_error_of_the_texts_ends_the_work_at_once(started):
    def broken():
        yield from TEXTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BPE.train(broken(), 260)
    assert [process.returncode for process in started] == [-9]


def test_ctrl_c_while_the_library_learns_ends_it(started, monkeypatch: pytest.MonkeyPatch):
    class Interrupting(Console):
        def status(self, *_args, **_options):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BPE.train(TEXTS, 260, Interrupting(file=io.StringIO()))
    assert [process.returncode is None for process in started] == [False]


@pytest.mark.parametrize("texts", [TEXTS, ["x" * 100_000] * 50])
@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import os; os.close(0)"])
def test_a_program_that_fails_is_told(texts: list[str], program: str, monkeypatch):
    monkeypatch.setattr(bpe, "PROGRAM", program)
    with pytest.raises(StateError, match=r"the process that learns a vocabulary failed \(code"):
        BPE.train(texts, 260)


def test_a_python_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    with pytest.raises(StateError, match=r"cannot start Python .*sys\.executable is 'no-such-pyth"):
        BPE.train(TEXTS, 260)


def test_the_console_shows_how_far_it_is():
    screen = io.StringIO()
    BPE.train(TEXTS, 260, Console(file=screen, width=100))
    assert "reading" in screen.getvalue()
    assert "3 documents, 108 characters" in screen.getvalue()
