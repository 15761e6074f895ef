"""Downloading a file: bounded waits, a progress bar, and nothing kept that was not checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from suffice.data.write import atomically
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

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
