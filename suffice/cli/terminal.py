"""Terminal output shared by all commands: text, tables, JSON, exit codes and resume commands."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterator
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console

from suffice.errors import ConfigError, SufficeError

if TYPE_CHECKING:
    from suffice.utils.progress import Progress

WRONG = 2  # exit code: an option, a file or a machine that will not do
INTERRUPTED = 130  # exit code: 128 + SIGINT

PLAIN: dict[str, Any] = {"box": None, "pad_edge": False}
RULED: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
"""Options of a rich table: without lines, or with one under its head."""


def print_text(text: str, console: Console | None = None) -> None:
    """Print text as it is: no markup, no colours, no line breaks added."""
    console = console or Console()
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_paragraph(console: Console, text: str, *, first: str = "", rest: str = "") -> None:
    """Print a paragraph that fills the width of the console; words are never broken."""
    filled = textwrap.fill(
        text,
        width=max(console.width, 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print_text(filled or first.rstrip(), console)


def print_next(*commands: str, console: Console | None = None) -> None:
    """Print the commands that usually follow, one a line."""
    for number, command in enumerate(commands):
        print_text(f"{'      ' if number else 'next: '}{command}", console)


def to_json(content: object) -> str:
    """Return plain data as indented JSON with a newline at the end."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def print_json(content: object) -> None:
    """Print plain data as indented JSON."""
    sys.stdout.write(to_json(content))


def wide_console(width: int) -> Console:
    """Return standard output; where it is not a terminal, at least `width` columns wide."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, width)
    return console


class Stopped(Exception):  # noqa: N818 - an end, not always an error
    """Ends the program."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


C = TypeVar("C", bound=Callable[..., None])


def stoppable(command: C) -> C:
    """Turn Ctrl-C in a command into Stopped: typer would end without a word."""

    @functools.wraps(command)
    def wrapper(*args: object, **options: object) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            raise Stopped("interrupted.", code=INTERRUPTED) from None

    return wrapper  # type: ignore[return-value]


def without_empty_words(command: C) -> C:
    """Refuse empty words, such as an unset shell variable leaves, unless they are the default."""
    defaults = {name: one.default for name, one in signature(command).parameters.items()}

    @functools.wraps(command)
    def wrapper(**options: object) -> None:
        for name, value in options.items():
            words = value if isinstance(value, list) else [value]
            if "" in words and defaults[name] != "":
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is empty; give a value, or leave it out.")
        command(**options)

    return wrapper  # type: ignore[return-value]


@contextlib.contextmanager
def ending_as_interrupt() -> Iterator[None]:
    """Take SIGTERM and SIGHUP as Ctrl-C during the block: what a training did is saved.

    A signal that is ignored stays ignored (`nohup`), and torchrun ends its processes itself.
    """
    before = {}
    if threading.current_thread() is threading.main_thread() and not is_torchrun():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has one of them
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell's background job ignores Ctrl-C, and not these
        raise KeyboardInterrupt
    handler(signum, frame)


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Print the command that resumes when the block is interrupted or fails."""
    advice = f"Finished work is kept. Resume with:\n  {resume_command(folder)}"
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if is_torchrun() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is sent again before this is told
        raise Stopped(f"\ninterrupted. {advice}", code=INTERRUPTED) from interrupt
    except SufficeError as error:
        # a folder with nothing but the settings holds no finished work
        if not folder.exists() or (folder.is_dir() and len(list(folder.glob("[!.]*"))) <= 1):
            raise
        raise Stopped(f"error: {error}\n{advice}", code=WRONG) from error


def is_torchrun() -> bool:
    """Return whether torchrun started this process, without importing torch."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Return whether this process is the first that torchrun started, or the only one."""
    return not is_torchrun() or os.environ.get("RANK", "0") == "0"


def command_line() -> str:
    """Return the command the user typed, as results record it."""
    return shlex.join(["suffice", *sys.argv[1:]])


def resume_command(folder: Path) -> str:
    """Return the command that resumes the work in a folder; of a share, a line for an array."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(folder)]
    line = shlex.join([*_program(), *words, "--resume"])
    return re.sub(r"(?<= --cells[ =])(\d+)(?=/\d+ )", r"${SLURM_ARRAY_TASK_ID:-\1}", line)


def _program() -> list[str]:
    """Return the words that started this program, ready to be typed again."""
    if is_torchrun():
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if shutil.which("torchrun"):
            torchrun = ["torchrun"]
        workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
        return [*torchrun, "--nproc-per-node", workers, "-m", "suffice"]
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return [_shortest("python", Path(sys.executable)), "-m", "suffice"]
    return [_shortest("suffice", script)]


def _shortest(name: str, path: Path) -> str:
    """Return the bare name if the shell finds the same file by it, else the path."""
    executable = shutil.which(name)
    return name if executable and Path(executable).absolute() == path.absolute() else str(path)


STAGES = {
    "reading": "reading the text",
    "reading text": "reading the text",
    "fitting": "fitting the new weights",
    "scoring": "scoring each layer",
    "weighing": "weighing plans",
    "timing": "timing the layers",
    "judging": "measuring the change of loss",
    "rounding": "rounding the weights",
    "comparing": "comparing with the original",
}
"""What the progress calls the parts of a conversion, a search and a packing."""


def step_by_cells(
    progress: Progress, cells: Collection[str] | None = None
) -> Callable[[str, int, int], None]:
    """Return step(part, done, total), which shows each part that is one of `cells` (all) as one."""
    begun: set[str] = set()

    def step(part: str, done: int, total: int) -> None:
        if part not in begun and (cells is None or part in cells):
            begun.add(part)
            progress.cell(STAGES.get(part, part))
        progress.step(done, total)

    return step


def format_interval(mean: float, low: float | None, high: float | None, form: str) -> str:
    """Format a mean and the ends of its interval, if it has one.

    Example:
        >>> format_interval(0.5, 0.25, 0.75, "+.2f")
        '+0.50 (+0.25 to +0.75)'
    """
    ends = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{mean:{form}}{ends}"


def write_stdout(text: str) -> None:
    """Write text to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
