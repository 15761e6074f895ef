from __future__ import annotations

import pytest

from suffice import data
from suffice.errors import ConfigError


def test_tasks_go_by_the_names_of_their_functions():
    assert all(function.__name__ == name for name, function in data.TASKS.items())


def test_load_refuses_an_unknown_task_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown task 'mnits'; did you mean 'mnist'\?"):
        data.load("mnits")


def test_load_refuses_an_unknown_option_with_the_nearest():
    with pytest.raises(
        ConfigError,
        match=r"option of task 'mnist': 'sise'; did you mean 'size'\? Legal: rows, size\.",
    ):
        data.load("mnist", sise=28)


def test_load_refuses_an_option_of_a_task_without_options():
    with pytest.raises(ConfigError, match=r"option of task 'digits': 'size'\. Legal: none"):
        data.load("digits", size=8)


def test_load_hands_on_options_and_console(monkeypatch: pytest.MonkeyPatch):
    def toy(*, size: int = 1, console: object = None) -> tuple[int, object]:
        return size, console

    monkeypatch.setitem(data.TASKS, "toy", toy)
    screen = object()
    assert data.load("toy", size=3, console=screen) == (3, screen)
    assert data.load("toy") == (1, None)
