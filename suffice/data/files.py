"""Finding a data file: the user's folder, then the cache, then the official address.

A file is believed only when its content has the known sha256. The figure is that of the content
after decompression, so that a file compressed anew with other settings is still the same file.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from suffice.errors import DataError
from suffice.files import replacing

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def atomically(
    path: Path, *, advice: str = "set XDG_CACHE_HOME to another folder"
) -> Iterator[Path]:
    """Give a temporary name to write to; move it to `path` when the block ends well.

    An error in the block leaves `path` as it was and removes the temporary file.

    Args:
        path: the file; its folder is made where it is absent.
        advice: what else a user can do when it cannot be written.

    Raises:
        DataError: if the file or its folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror}); make room or the folder writable, or "
            f"{advice}."
        ) from error


SILENCE = 10.0  # seconds without an answer or a byte before giving up
CHUNK = 1 << 16  # bytes


def download(
    urls: Sequence[str],
    target: Path,
    accept: Callable[[Path], bytes],
    *,
    console: Console | None = None,
) -> bytes:
    """Download the first address that gives an acceptable file, and move it to `target`.

    Args:
        urls: addresses of the same file, tried in order.
        target: where the file belongs; it appears there whole or not at all.
        accept: is given the downloaded file under a temporary name; returns its content, or
            raises DataError to refuse it.
        console: where to show the progress; None shows nothing.

    Raises:
        DataError: if no address gave an acceptable file, with the reason of each.
    """
    reasons, last = [], None
    for url in urls:
        try:
            with atomically(target) as temporary:
                with temporary.open("wb") as out:
                    for chunk in _chunks(url, console):
                        out.write(chunk)
                return accept(temporary)
        except DataError as error:
            reasons.append(f"{url}: {str(error).rstrip('.')}")
            last = error
    raise DataError("; ".join(reasons)) from last


def _chunks(url: str, console: Console | None) -> Iterator[bytes]:
    """Yield the body of `url`; whatever the network does wrong is a DataError."""
    try:
        request = Request(url, headers={"User-Agent": "suffice"})
        with urlopen(request, timeout=SILENCE) as response:
            total = int(response.headers.get("Content-Length", 0))
            received = 0
            with _bar(url, total, console) as advance:
                while chunk := response.read(CHUNK):
                    received += len(chunk)
                    advance(len(chunk))
                    yield chunk
    except HTTPError as error:
        error.close()
        raise DataError(str(error)) from error
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(str(error).strip("<>") or type(error).__name__) from error
    if received < total:
        raise DataError(f"the connection closed after {received:,} of {total:,} bytes")


@contextlib.contextmanager
def _bar(url: str, total: int, console: Console | None) -> Iterator[Callable[[int], None]]:
    """Show a bar of bytes while the block runs; gives the function that advances it."""
    if console is None:
        yield lambda _: None
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=total or None)
        yield lambda count: progress.advance(task, count)


FOLDER = "SUFFICE_DATA"  # names the user's folder of data


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file that a task reads.

    Args:
        path: place below the data folder, such as "vision/mnist/train-labels-idx1-ubyte.gz".
        sha256: of the content after decompression, for .gz and .xz; of the file itself for
            archives (.tar.gz).
        urls: official addresses, tried in order.
        converted: whether the file may be our conversion of an archive, whose sha256 stands
            beside it in a file of the same name with ".sha256" added.
    """

    path: str
    sha256: str
    urls: tuple[str, ...] = ()
    converted: bool = False


def folder() -> Path | None:
    """Return the folder that $SUFFICE_DATA names, None when it is not set.

    Raises:
        DataError: if it is set and not a folder.
    """
    value = os.environ.get(FOLDER)
    if not value:
        return None
    if not os.path.isdir(value):
        raise DataError(f"{FOLDER}={value} is not a folder; name an existing folder, or unset it.")
    return Path(value)


def cache() -> Path:
    """Return the user's cache: $XDG_CACHE_HOME/suffice, or ~/.cache/suffice.

    Raises:
        DataError: if the user has no home folder.
    """
    value = os.environ.get("XDG_CACHE_HOME", "")
    if Path(value).is_absolute():  # the XDG standard tells to ignore a relative one
        return Path(value) / "suffice"
    try:
        return Path.home() / ".cache" / "suffice"
    except RuntimeError as error:
        raise DataError(
            f"there is no home folder to keep data in; set XDG_CACHE_HOME or {FOLDER} to a folder."
        ) from error


def locate(path: str) -> Path | None:
    """Return where `path` is: below $SUFFICE_DATA, else in the cache, else None."""
    for root in (folder(), cache()):
        if root is not None and os.path.exists(root / path):
            return root / path
    return None


def read(file: DataFile, *, console: Console | None = None) -> bytes:
    """Return the checked content of a file, decompressed; download it when it is absent.

    Args:
        file: what to read.
        console: where a download shows its progress; None shows nothing.

    Raises:
        DataError: if the file is truncated or altered, or absent and not to be downloaded.
    """
    found = locate(file.path)
    if found is not None:
        try:
            return _checked(file, found)
        except DataError as error:
            raise DataError(
                f"{found} {error}; delete it and run again to fetch it, or replace it by a "
                "complete copy."
            ) from error
    try:
        target = cache() / file.path
        return download(file.urls, target, lambda at: _checked(file, at), console=console)
    except DataError as error:
        raise DataError(_absent(file, str(error).rstrip("."))) from error


def _absent(file: DataFile, reason: str) -> str:
    user = folder()
    places = [f"{FOLDER} (not set)" if user is None else f"{FOLDER}={user}", str(cache())]
    return (
        f"{file.path} was found neither below {' nor below '.join(places)} and could not be "
        f"downloaded ({reason or 'it has no address'}); put it at {cache() / file.path}, or at "
        f"{file.path} below a folder of yours that {FOLDER} names."
    )


def _checked(file: DataFile, at: Path) -> bytes:
    """Return the content of `file`, which lies at `at`, or tell what is wrong with it."""
    try:
        content = _decompressed(at.read_bytes(), file.path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"is truncated or damaged ({error})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256 and not (file.converted and digest == _recorded(at)):
        raise DataError(f"is truncated or altered (sha256 {digest}, not {file.sha256})")
    return content


def _decompressed(data: bytes, path: str) -> bytes:
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith(".gz") and not path.endswith(".tar.gz"):
        return gzip.decompress(data)
    return data


def record(at: Path) -> Path:
    """Return the place of the sha256 that a conversion records beside the file at `at`."""
    return at.with_name(f"{at.name}.sha256")


def _recorded(at: Path) -> str:
    beside = record(at)
    return beside.read_text("ascii", errors="replace").strip() if beside.is_file() else ""


MOST = 1 << 28  # bytes of one member; the largest of any data set here has half of it


def members(
    archive: bytes, form: re.Pattern[str], name: str
) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the match and the content of every file whose name has a form, in the archive's order.

    Args:
        archive: the bytes of a .tar.gz.
        form: what the whole name of a member must match.
        name: the archive's own, for errors.

    Raises:
        DataError: if the archive is truncated or damaged, or a member larger than any could be.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as stream:
            for member in stream:
                match = form.fullmatch(member.name)
                if not match or not member.isreg():
                    continue
                if member.size > MOST:
                    raise DataError(f"{name}: {member.name} has {member.size:,} bytes; too many.")
                yield match, stream.extractfile(member).read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is truncated or damaged ({error}).") from error


REVIEW = re.compile(r"aclImdb/(train|test)/(pos|neg)/(\d{1,5})_(\d{1,2})\.txt")
LABELS = {"neg": 0, "pos": 1}
PRESET = 1  # of xz: the file is written once on the user's machine, a good deal faster than 6


def convert(archive: bytes, folder: Path) -> None:
    """Write `train.jsonl.xz` and `test.jsonl.xz` from the archive aclImdb_v1.tar.gz.

    Each line is {"id", "label", "rating", "text"}; negative reviews (label 0) come first, then by
    id. The sha256 of each file's content is recorded beside it.

    Args:
        archive: the bytes of the .tar.gz.
        folder: where to write.

    Raises:
        DataError: if the archive cannot be read, or the files cannot be written.
    """
    for part, rows in _reviews(archive).items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        content = lines.encode()
        target = folder / f"{part}.jsonl.xz"
        # The record first: a file without one would be refused for good.
        with atomically(record(target)) as temporary:
            temporary.write_text(hashlib.sha256(content).hexdigest() + "\n", encoding="ascii")
        with atomically(target) as temporary:
            temporary.write_bytes(lzma.compress(content, preset=PRESET))


def _reviews(archive: bytes) -> dict[str, list[dict[str, int | str]]]:
    """Return the rows of each part, sorted by label and id."""
    parts: dict[str, list[dict[str, int | str]]] = {"train": [], "test": []}
    name = "the archive of IMDB reviews"
    try:
        for match, text in members(archive, REVIEW, name):
            part, label, number, rating = match.groups()
            row = {"id": int(number), "label": LABELS[label], "rating": int(rating)}
            parts[part].append({**row, "text": text.decode()})
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is truncated or damaged ({error}).") from error
    for rows in parts.values():
        rows.sort(key=lambda row: (row["label"], row["id"]))
    return parts


OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a file, without their ends; one named .gz or .xz is decompressed.

    Raises:
        DataError: if it is absent, cannot be read, or is truncated.
    """
    opened = OPENERS.get(Path(path).suffix, open)
    try:
        with opened(path, "rb") as file:
            for line in file:
                yield line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {path} ({reason}); give the path of a whole file, plain, .gz or .xz."
        ) from error


LOOKED_INTO = 64  # files; of more, names and sizes tell which they are
ENDS = 1 << 16  # bytes at the start and at the end of a file that are looked into


def found(data: str) -> str:
    """Return the whole path of what is at a path that is given, or of a prefix of two files.

    Args:
        data: of a file, a folder, or PATH where PATH.en and PATH.es are; a path that is not there
            may be one below the data folder.

    Raises:
        DataError: if there is nothing.
    """
    if not _at(Path(data)):
        place = locate(data)
        if place is None:
            raise DataError(
                f"--data {data}: there is no file or folder there; give the path of one that is."
            )
        return str(place.absolute())
    return str(Path(data).absolute())


@lru_cache(maxsize=8)
def digest(path: str) -> str:
    """Return sixteen characters that tell apart what is at a path, wherever it lies.

    Names and sizes of all files count, and of a few files the first and the last bytes too: a
    large set is not read as a whole.

    Raises:
        DataError: if something there cannot be read.
    """
    place, told = Path(path), hashlib.sha256()
    try:
        files = sorted(file for top in _at(place) for file in _below(top))
        for file in files:
            name = file.relative_to(place.parent).as_posix().removeprefix(place.name)
            told.update(os.fsencode(f"{name}\0{file.stat().st_size}\0"))
            if len(files) <= LOOKED_INTO:
                told.update(_ends(file))
    except OSError as error:
        raise DataError(
            f"--data {path} cannot be read ({error.strerror}); give files that can."
        ) from error
    return told.hexdigest()[:16]


def _at(place: Path) -> list[Path]:
    """Return what a path names: itself, or the files it is a prefix of."""
    both = [place.with_name(f"{place.name}.{side}") for side in ("en", "es")]
    return [one for one in (place, *both) if one.exists()]


def _below(top: Path) -> list[Path]:
    if top.is_dir():
        return [file for file in top.rglob("*") if file.is_file()]
    return [top]


def _ends(file: Path) -> bytes:
    with file.open("rb") as opened:
        first = opened.read(ENDS)
        opened.seek(max(len(first), file.stat().st_size - ENDS))
        return first + opened.read(ENDS)
