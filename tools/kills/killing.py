"""Kills a command before its n-th write, for every n, and looks at what it left.

A child of this process runs the command; Python's audit hooks tell it of every name that is about
to be opened for writing, renamed, removed or made, and of the exchange of two folders. It kills
itself with SIGKILL before the n-th.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from suffice.errors import SufficeError
from suffice.utils import files

WRITES = os.O_WRONLY | os.O_RDWR
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
EXCHANGE = "suffice.exchange"


@dataclass(frozen=True)
class Case:
    """A verb that writes.

    Args:
        words: of the command, run in the folder that `prepare` filled.
        prepare: writes the inputs, and what the command replaces, into a folder.
        view: what a reader finds in that folder: equal for equal results, raises or returns None
            where there is none.
        begun: file that says that there is something to resume with --resume.
        between: whether what was found, of a run that was going on, is a whole part of the result.
        patches: applied in the child, to make the command short.
    """

    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    view: Callable[[Path], object]
    begun: str | None = None
    between: Callable[[object, object], bool] = field(default=lambda *_: False)
    patches: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Death:
    """A death before a write, what a reader found, and what the same command then did."""

    number: int
    event: str
    left: str
    then: str

    @property
    def right(self) -> bool:
        """Whether the old or the new was left whole, or nothing, and the command completes it."""
        return not self.left.startswith(("MIXTURE", "LOSS", "LIVED")) and not self.then.startswith(
            "FAILED"
        )


def kill_at_each_write(
    case: Case, place: Path, *, every: bool = True, most: int | None = None
) -> list[Death]:
    """Run the command whole once, then kill it before each write that it made.

    Args:
        case: the command.
        place: an empty folder to work in.
        every: False leaves out most of the moments at which no visible name changes.
        most: most moments that are taken, evenly, the last one among them; None takes all.
    """
    source, work = place / "source", place / "work"
    source.mkdir()
    case.prepare(source)
    old = _seen(case, source)
    _restore(source, work)
    log = place / "events"
    if _run(case, case.words, work, log=log):
        raise AssertionError(f"{case.words} fails when nobody kills it")
    new = _seen(case, work)
    events = log.read_text().splitlines()
    assert events, "nothing was written"
    assert new is not None, "a finished command leaves something to read"
    moments = [
        (number, event)
        for number, event in enumerate(events)
        if every or event.partition(" ")[0] in ("rename", "exchange")
    ]
    deaths = []
    step = 1 if most is None else -(-len(moments) // most)
    for number, event in moments[::-step][::-1]:
        _restore(source, work)
        ended = _run(case, case.words, work, die_at=number)
        left = _left(case, _seen(case, work), old, new) if ended == -signal.SIGKILL else "LIVED"
        deaths.append(Death(number, event, left, _completed(case, work, new)))
    return deaths


def _left(case: Case, seen: object, old: object, new: object) -> str:
    if seen is None:
        return "nothing to read yet" if old is None else "LOSS of the old one"
    for name, whole in (("the new one", new), ("the old one", old)):
        if seen == whole:
            return name
    return "a whole part of the run" if case.between(seen, new) else "MIXTURE"


def _completed(case: Case, work: Path, new: object) -> str:
    """Run the command again, resumed where it can be; return what happened."""
    words, how = case.words, "again"
    if case.begun is not None and (work / case.begun).exists():
        words, how = (*case.words, "--resume"), "--resume"
    if code := _run(case, words, work):
        return f"FAILED: {how} ends with {code}"
    if _seen(case, work) != new:
        return f"FAILED: {how} gives another result"
    hidden = [path.name for path in work.rglob(".*") if path.name != files.LOCK]
    return f"FAILED: {hidden[0]} stays" if hidden else f"{how} gives the new one"


def _seen(case: Case, place: Path) -> object:
    """Return what a reader of the folder finds; None if it is refused or absent."""
    here = os.getcwd()
    os.chdir(place)
    try:
        return case.view(place)
    except (SufficeError, FileNotFoundError):  # what readers say of what is absent or refused
        return None
    finally:
        os.chdir(here)


def _restore(source: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)


def _run(
    case: Case, words: tuple[str, ...], place: Path, *, die_at: int = -1, log: Path | None = None
) -> int:
    """Run a command in a child; return its exit code, or -9."""
    return end(begin(case, words, place, die_at=die_at, log=log))


def end(child: int) -> int:
    """Wait for a child and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin(
    case: Case, words: tuple[str, ...], place: Path, *, die_at: int = -1, log: Path | None = None
) -> int:
    """Begin a command in a child and return its number."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.chdir(place)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1) if os.environ.get("KILLS_SHOW") else (0, 1, 2):
                os.dup2(null, stream)
            case.patches()
            code = _command(words, place, die_at, log)
        except BaseException:  # noqa: BLE001 - of the child, which ends here
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _command(words: tuple[str, ...], place: Path, die_at: int, log: Path | None) -> int:
    from suffice.cli import main

    _hook(place.resolve(), die_at, None if log is None else log.open("w"))
    sys.argv = ["suffice", *words]
    try:
        main()
    except SystemExit as end:
        return 0 if end.code in (10, 11, 12) else int(end.code or 0)
    return 0


def _hook(place: Path, die_at: int, log: object) -> None:
    number = 0
    exchange = files._exchange

    def audited(*names: Path) -> bool:
        sys.audit(EXCHANGE, *names)
        return exchange(*names)

    def hook(event: str, arguments: tuple) -> None:
        nonlocal number
        path = _changed(event, arguments, place)
        if path is None:
            return
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        number += 1
        if log is not None:
            words = "open" if event == "open" else event.rpartition(".")[2]
            print(f"{words} {_plain(path.name)}", file=log, flush=True)

    files._exchange = audited
    sys.addaudithook(hook)


def _changed(event: str, arguments: tuple, place: Path) -> Path | None:
    """Return the name below a folder that an event is about to change; None if it changes none."""
    name = arguments[0] if event in (*EVENTS, EXCHANGE, "open") else None
    if not isinstance(name, str | bytes | os.PathLike):
        return None
    path = Path(os.fsdecode(name))
    # names without a folder are those of rmtree, which goes down by descriptors
    if path.is_absolute() and not path.is_relative_to(place):
        return None
    makes = event == "open" and arguments[2] & (os.O_CREAT | os.O_TRUNC)
    if event == "open" and not makes and (not arguments[2] & WRITES or ".part" in str(path)):
        return None  # read, or opened to be synced
    is_there = event == "os.mkdir" and path.exists()
    is_gone = event == "os.remove" and path.parent.name and not os.path.lexists(path)
    return None if is_there or is_gone else path


def _plain(name: str) -> str:
    """Return the name without the process that writes it."""
    return re.sub(r"\.[0-9a-f]{12}\.\d+\.[0-9a-f]+\.", ".N.", name)
