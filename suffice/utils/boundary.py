"""Translates third-party exceptions caused by bad input into SufficeError.

The command line and the studio pass every exception that is not a `SufficeError` to
`translate_exception`. Only what an input, a disk or the memory can cause is translated. Anything
else is a bug: it stays as it is, and its traceback is the report. `SUFFICE_TRACEBACK=1` shows the
tracebacks of translated exceptions, too.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import zlib
from pathlib import Path
from types import TracebackType

from suffice.errors import DataError, SufficeError

MAX_REASON_LENGTH = 200  # characters of a reason or a name in a sentence
SHOW = "SUFFICE_TRACEBACK"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PATH_ERRORS = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO),
    *(errno.ENODEV, errno.EIO, errno.ESPIPE, errno.EBUSY, errno.ETXTBSY),
)
MACHINE_ERRORS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.EADDRINUSE)
NULL = re.compile("embedded null (byte|character)")
LARGE = re.compile(
    "int too (big|large) to convert|Python int too large|cannot convert float infinity to integer"
    "|signed integer is (greater than maximum|less than minimum)"
    "|cannot fit 'int' into an index-sized integer"
)
"""What Python says of whole numbers; overflow in a computation has other words and is a bug."""
TORCH = re.compile(
    "Storage size calculation overflowed|numel: integer multiplication overflow"
    "|DefaultCPUAllocator|CUDA out of memory|Overflow when unpacking long"
)
"""What torch says of sizes that no machine has; its errors have no separate type."""
ENDED = re.compile("Compressed file ended")


def translate_exception(error: BaseException) -> SufficeError | None:
    """Return the error to show for what a library raised about an input, None for a bug."""
    reason = _reason(error)
    if reason is None:
        return None
    place = _place(error)
    return DataError(f"{place}: {reason}" if place else reason)


def _reason(error: BaseException) -> str | None:
    text = str(error).partition("\n")[0]
    words = shortened(text)
    number = error.errno if isinstance(error, OSError) else None
    told = getattr(error, "strerror", None) or words
    torn = isinstance(error, EOFError) and ENDED.match(text) is not None
    torn = torn or isinstance(error, zlib.error | lzma.LZMAError)
    null = isinstance(error, ValueError) and NULL.search(text) is not None
    panic = type(error).__name__ == "PanicException"  # of a library in Rust; it is not an Exception
    for fits, reason in (
        (number in FULL, f"the disk refuses more ({words}); make room, or choose another place."),
        (_is_of_path(error), f"this cannot be used ({told}); {PATH_ADVICE}"),
        (number in MACHINE_ERRORS, f"this machine refuses ({told}); free what is held."),
        (panic, f"the tokenizers library failed on it ({words}); give it complete."),
        (isinstance(error, MemoryError), f"this needs more memory than there is; {SMALLER}"),
        (_is_utf8(error), f"this is not text in UTF-8 ({words}); save it as UTF-8."),
        (_is_large(error), f"a number is too large here ({words}); give a smaller one."),
        (null, "a name holds the character NUL; give one without."),
        (torn, f"this is truncated or damaged ({words}); give a complete copy."),
    ):
        if fits:
            return reason
    return None


PATH_ADVICE = "give a path that exists and may be read and written."
SMALLER = "give something smaller."


def _is_of_path(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):  # of pathlib, before Python 3.13
        return str(error).startswith("Symlink loop from")
    if not isinstance(error, OSError) or error.errno not in PATH_ERRORS:
        return False
    name = error.filename
    if name is None or isinstance(name, int):
        return error.errno in (errno.EIO, errno.ESPIPE)  # of a device that is open
    package = os.path.dirname(os.path.realpath(__file__))
    return not os.path.realpath(os.fsdecode(name)).startswith(package)


def _is_utf8(error: BaseException) -> bool:
    """Return whether a text of the user is not UTF-8; other encodings are of our own files."""
    return isinstance(error, UnicodeError) and getattr(error, "encoding", "").startswith("utf")


def _is_large(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, OverflowError):
        return LARGE.search(text) is not None
    return isinstance(error, TypeError | RuntimeError) and TORCH.search(text) is not None


def _place(error: BaseException) -> str:
    """Return the file in hand: the system names it, or the innermost function that has one."""
    name = getattr(error, "filename", None)
    if isinstance(name, str | bytes) and name:
        return shortened(name if isinstance(name, str) else repr(name))
    found = ""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        paths = [v for v in traceback.tb_frame.f_locals.values() if isinstance(v, Path)]
        found = str(paths[0]) if paths else found
        traceback = traceback.tb_next
    return shortened(found)


def shortened(text: str, longest: int = MAX_REASON_LENGTH) -> str:
    """Return a text for one line of a terminal: its middle is left out where it is long."""
    text = text.encode(errors="backslashreplace").decode()
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
