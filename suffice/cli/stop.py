"""Ends of the program that are not its normal end, each with a sentence and an exit code."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TypeVar

from torch.distributed import is_torchelastic_launched

C = TypeVar("C", bound=Callable[..., None])

WRONG = 2  # a value, a file or a machine that does not serve
INTERRUPTED = 130  # 128 + SIGINT


class Stopped(Exception):  # noqa: N818 - an end, not always an error
    """The program ends here.

    Args:
        told: what stderr says.
        code: the exit code.
    """

    def __init__(self, told: str, *, code: int) -> None:
        super().__init__(told)
        self.code = code


def stoppable(command: C) -> C:
    """Make Ctrl-C in a command a Stopped: typer would end without a word."""

    @functools.wraps(command)
    def wrapped(*args: object, **options: object) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            raise Stopped("interrupted.", code=INTERRUPTED) from None

    return wrapped


def is_first() -> bool:
    """Return whether this process is the first that torchrun started, or the only one."""
    return not is_torchelastic_launched() or os.environ.get("RANK", "0") == "0"
