"""Atomic writes, JSON records, and the folder of a run."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from suffice.errors import CheckpointError, ConfigError, DataError, SufficeError
from suffice.utils.records import decode

T = TypeVar("T")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; it becomes `path`, synced, when the block ends well.

    An error in the block leaves `path` as it was; an OSError of the disk is for the caller. What a
    killed writer of the file left is removed: at once if it ran here, else after an hour. A device
    or a pipe is refused by an OSError: a file would take its place.
    """
    if os.path.lexists(path) and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    _remove_leftovers(path)
    temporary = _temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to write into; it becomes `path` when the block ends well.

    An error in the block leaves `path` as it was; an OSError of the disk is for the caller. Where
    the system can exchange two names (Linux), a killed program leaves the old or the new folder,
    whole. Elsewhere neither exists between two renames, and a later call restores the old one. Of
    several programs that replace one folder, the last one stays.
    """
    # "." has no name, and a link would be replaced instead of its folder
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    temporary = _temporary_name(path)
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb+") as written:
                    os.fsync(written.fileno())
            else:
                sync_folder(file)
        sync_folder(temporary)
        _put(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(path.parent)


def _put(new: Path, path: Path) -> None:
    """Give a folder the name of another, which is left under the new one's name or removed."""
    if not path.exists():
        try:
            os.rename(new, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
    if _exchange(new, path):
        return
    old = new.with_suffix(".old")
    with contextlib.suppress(OSError):
        os.utime(path)  # it is a leftover an hour from now
    os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0


LEFTOVER_AGE = 3600.0  # seconds without a change until an unknown writer counts as dead


def _process_table() -> str:
    """Return an id of the processes that this one can see by their numbers.

    A number means nothing on another machine, in another container or after a restart.
    """
    names = [platform.node(), secrets.token_hex()]  # matches none where the system gives no id
    with contextlib.suppress(OSError):
        start = Path("/proc/sys/kernel/random/boot_id").read_text()
        names[1] = start + os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]


def _temporary_name(path: Path) -> Path:
    writer = f"{_process_table()}.{os.getpid()}.{secrets.token_hex(6)}"
    return path.with_name(f".{path.name}.{writer}.part")


def _remove_leftovers(path: Path) -> None:
    writer = r"(?:([0-9a-f]{12})\.(\d+)\.[0-9a-f]+|\d+)"
    leftover = re.compile(rf"\.{re.escape(path.name)}\.{writer}\.(part|old)")
    for neighbour in path.parent.iterdir():
        match = leftover.fullmatch(neighbour.name)
        with contextlib.suppress(FileNotFoundError):  # its writer or another cleaner was faster
            if match is None or _may_be_written(neighbour, match):
                continue
            if match[3] == "old" and not path.exists():
                os.rename(neighbour, path)
            elif neighbour.is_dir():
                shutil.rmtree(neighbour, ignore_errors=True)
            else:
                neighbour.unlink()


def _may_be_written(temporary: Path, name: re.Match[str]) -> bool:
    if name[1] == _process_table():
        return _runs(int(name[2]))
    last_change = max(one.lstat().st_mtime for one in (temporary, *temporary.rglob("*")))
    return time.time() - last_change < LEFTOVER_AGE


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def refuse_current(out: Path) -> None:
    """Raise ConfigError for the current folder, as an unset `--out "$OUT"` is, and those above."""
    if Path(os.path.realpath(".")).is_relative_to(os.path.realpath(out)):
        raise ConfigError(
            f"the output {str(out)!r:.80} is the current folder or above it, whose files could be "
            "replaced; give another."
        )


def sync_folder(folder: Path) -> None:
    """Make names in a folder last through a power cut, where the system can sync folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file whole, or raise DataError and leave it; equal content is left alone."""
    # half a surrogate, as in a path that is not UTF-8, becomes JSON's own escape
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; "
            "make room or choose another folder with --out."
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write plain data as strict JSON, one key per line; raise DataError if the disk refuses."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, f"{text}\n")


def check_links(folder: Path) -> None:
    """Refuse a model whose folder links to elsewhere, except to the hub's cache next to it."""
    root = Path(os.path.realpath(folder))
    snapshot = root.parent if root.name == "source" else root  # the tokenizer of a translator
    places = [root, snapshot.parent.parent / "blobs"][: 1 + (snapshot.parent.name == "snapshots")]
    for path in folder.iterdir():
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not any(map(target.is_relative_to, places)):
                raise CheckpointError(
                    f"{path} is a link to a place outside the folder; give a folder that holds "
                    "its files."
                )


MAX_JSON_VALUES = 1 << 21  # in JSON of others; each takes 64 bytes of memory and more


def parse_json(content: str | bytes) -> Any:
    """Return what JSON spells; raise ValueError, before any is made, if it has too many values."""
    if isinstance(content, bytes):
        values = sum(map(content.count, (b",", b"[", b"{")))
    else:
        values = sum(map(content.count, (",", "[", "{")))
    if values > MAX_JSON_VALUES:
        raise ValueError(f"it has more than {MAX_JSON_VALUES:,} values")
    return json.loads(content)


def packaged(*parts: str) -> Any:
    """Return what a JSON file of this package holds."""
    return parse_json(resources.files("suffice").joinpath(*parts).read_text("utf-8"))


def read_json(path: Path, *, advice: str = "") -> Any:
    """Read a JSON file; a DataError about one that is absent or damaged ends with the advice."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file. {advice}".rstrip())
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or error}). {advice}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or not JSON ({error}). {advice}") from error


def read_record(record: type[T], path: Path, *, advice: str = "") -> T:
    """Read a dataclass from a JSON file; raise DataError for a damaged file or illegal field."""
    content = read_json(path, advice=advice)
    try:
        return decode(record, content, where=str(path))
    except DataError as error:
        raise DataError(f"{error} {advice}".rstrip()) from error


LOCK = ".lock"
GLANCE = 5.0  # seconds to wait for a program that reads the settings, only to be refused


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: a file with its settings, and a lock while a program works in it."""

    path: Path
    settings_file: str
    kind: str  # name of the work, for messages, such as "comparison"
    results: tuple[str, ...] = ()  # names of files that a run writes; before it there are none

    @property
    def settings_path(self) -> Path:
        """Path of the settings file, which need not exist yet."""
        return self.path / self.settings_file

    def exists(self) -> bool:
        return os.path.exists(self.settings_path)

    def read(self) -> Any:
        """Return the settings of the run; raise DataError if there is none or it is damaged."""
        return read_json(self.settings_path, advice=f"Name the folder of a {self.kind} with --out.")

    def claim(
        self, settings: Any, *, resume: bool, check: Callable[[], None] | None = None
    ) -> None:
        """Write the settings of a run; raise ConfigError if the folder holds another one.

        To resume a run, `check` may raise if its settings do not fit. A folder without a run is
        refused if it is the current one or holds results.
        """
        if self.exists():
            if not resume:
                raise ConfigError(
                    f"{self.path} already holds a {self.kind}; continue it with --resume, or "
                    "choose another folder with --out."
                )
            if check is not None:
                check()
        else:
            self._check_unused()
        write_json(self.settings_path, settings)

    def _check_unused(self) -> None:
        refuse_current(self.path)
        others = [name for name in self.results if os.path.lexists(self.path / name)]
        if others:
            raise ConfigError(
                f"{self.path} holds {others[0]!r}, which no {self.kind} wrote; choose another "
                "folder with --out."
            )

    @contextlib.contextmanager
    def locked(self, *, patience: float = GLANCE) -> Iterator[None]:
        """Lock the folder during the block; one that fails before it begins a run leaves none."""
        with locked(self.path, patience=patience):
            is_new = not self.exists()
            try:
                yield
            except BaseException as error:
                with contextlib.suppress(OSError):  # it stays where somebody has files in it
                    claimed = {*os.listdir(self.path)} <= {LOCK, self.settings_file}
                    if is_new and claimed and isinstance(error, SufficeError):
                        self.settings_path.unlink(missing_ok=True)
                    if not self.exists():
                        (self.path / LOCK).unlink(missing_ok=True)  # who waits makes another
                        self.path.rmdir()
                raise


@contextlib.contextmanager
def locked(folder: Path, *, patience: float = GLANCE) -> Iterator[None]:
    """Lock a folder during the block, against other programs that write there."""
    from filelock import FileLock, Timeout

    if not (folder / LOCK).exists():
        refuse_current(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write in {folder} ({error.strerror}); make room or choose another folder "
            "with --out."
        ) from error
    lock = FileLock(folder / LOCK, timeout=patience)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"another program is at work in {folder}; wait for it, or choose another folder with "
            "--out."
        ) from error
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot lock {folder} ({reason}); choose a folder that can be written, on another "
            "disk perhaps, with --out."
        ) from error
    try:
        yield
    finally:
        lock.release()


def changed_settings(before: Any, now: Any) -> list[str]:
    """Describe every setting that differs, such as "model.depth was 2 and is 3"."""
    before, now = flatten(before), flatten(now)

    def value(settings: dict[str, Any], key: str) -> str:
        return repr(settings[key]) if key in settings else "absent"

    return [
        f"{key or 'all'} was {value(before, key)} and is {value(now, key)}"
        for key in dict.fromkeys([*now, *before])
        if value(before, key) != value(now, key)
    ]


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, keys joined by dots."""
    if not isinstance(settings, dict):
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
