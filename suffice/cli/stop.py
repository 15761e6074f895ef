"""Ends of the program that are not its normal end, each with a sentence and an exit code."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from torch.distributed import is_torchelastic_launched

from suffice.errors import SufficeError

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


@contextlib.contextmanager
def telling(command: str, folder: Path) -> Iterator[None]:
    """Say how to go on when the block is interrupted or fails and its folder keeps what was done.

    Args:
        command: what goes on.
        folder: of what is kept.
    """
    kept = f"What was done is kept. Go on with:\n  {command}"
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Stopped(f"\ninterrupted. {kept}", code=INTERRUPTED) from interrupt
    except SufficeError as error:
        if not folder.exists():
            raise  # nothing was done yet
        raise Stopped(f"error: {error}\n{kept}", code=WRONG) from error


def is_first() -> bool:
    """Return whether this process is the first that torchrun started, or the only one."""
    return not is_torchelastic_launched() or os.environ.get("RANK", "0") == "0"
