from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError, DataError, StateError
from suffice.train import Processes
from suffice.train import distributed as module
from suffice.train.distributed import LostError, first, losing, shared, together


class Meeting(Processes):
    """One of two processes; what the other one adds to each sum is written down before."""

    def __new__(cls, rank, others):
        return super().__new__(cls)

    def __init__(self, rank, others):
        super().__init__(rank, 2)
        object.__setattr__(self, "others", list(others))

    def sum(self, tensor):
        return tensor.add_(torch.tensor(self.others.pop(0), dtype=tensor.dtype))


def text(words):
    """What a process that speaks adds: the length, then the bytes."""
    return [len(words), list(words)]


def fail(message):
    def work():
        raise DataError(message)

    return work


def test_alone_nothing_is_stated():
    one = Processes(0, 1)
    assert together(one, lambda: 3) == 3
    assert first(one, lambda: 4) == 4
    assert shared(one, "words") == "words"
    with pytest.raises(DataError, match="^lost$"):
        together(one, fail("lost"))


def test_all_go_on_when_all_can():
    for rank in (0, 1):
        group = Meeting(rank, [[0, 0]])
        assert together(group, lambda: "done") == "done"
        assert group.others == []


def test_the_one_that_fails_keeps_its_error():
    group = Meeting(0, [[0, 0], 0, [0] * 7])
    with pytest.raises(DataError, match="^no room$"):
        together(group, fail("no room"))
    assert group.others == [], "the others were told"


def test_the_others_fail_in_its_words():
    group = Meeting(1, [[1, 0], *text("kein Platz für".encode())])
    with pytest.raises(StateError, match="^process 0 failed: kein Platz für$"):
        together(group, lambda: "done")
    group = Meeting(0, [[0, 1], *text(b"no GPU")])
    with pytest.raises(StateError, match="^process 1 failed: no GPU$"):
        together(group, lambda: "done")


def test_when_all_fail_each_has_its_own_error():
    group = Meeting(1, [[1, 0], *text(b"the first")])
    with pytest.raises(DataError, match="^the second$"):
        together(group, fail("the second"))
    assert group.others == []


def test_only_the_first_works():
    done = []
    assert first(Meeting(0, [[0, 0]]), lambda: done.append(0) or "made") == "made"
    assert first(Meeting(1, [[0, 0]]), lambda: done.append(1) or "made") is None
    assert done == [0]


def test_another_kind_of_error_leaves_alone():
    def work():
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        together(Meeting(0, []), work)


def test_a_text_comes_from_its_source():
    assert shared(Meeting(0, [0, [0] * 5]), "runs/") == "runs/"
    assert shared(Meeting(1, text(b"runs/")), "mine, longer") == "runs/"
    assert shared(Meeting(1, [0, [0] * 4]), "mine", source=1) == "mine"
    assert shared(Meeting(1, [0, []]), "", source=1) == ""


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


@pytest.mark.parametrize("message", [GLOO, "NCCL communicator was aborted"])
def test_a_lost_connection_is_reported_in_one_sentence(monkeypatch, message):
    waited = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    told = "^process 1 of 2 lost the connection; the process that failed reports the cause.$"
    with pytest.raises(LostError, match=told) as caught, losing(Meeting(1, [])):
        raise RuntimeError(message)
    assert isinstance(caught.value, StateError)
    assert waited == [module.PATIENCE], "the one that failed speaks first"


@pytest.mark.parametrize(
    ("world", "error"),
    [
        (1, RuntimeError("a gloo that closed its connection")),
        (2, RuntimeError("shapes cannot be multiplied")),
        (2, StateError("the connection of ideas")),
        (2, ConfigError("gloo")),
    ],
)
def test_other_errors_stay_what_they_are(world, error):
    with pytest.raises(type(error), match=str(error)) as caught, losing(Processes(0, world)):
        raise error
    assert caught.value is error
