"""The one place where what a library raises becomes a sentence of ours.

The command line and the studio call `told` with every exception that is not a `SufficeError`. An
exception that no input can cause stays as it is: it is a bug, and its traceback is the report.
"""

from __future__ import annotations

import errno
import lzma
import struct
import zlib
from pathlib import Path
from types import TracebackType

from suffice.errors import DataError, SufficeError

LONGEST = 200  # characters of a reason or a name in a sentence
CONTAINERS = (EOFError, zlib.error, lzma.LZMAError, struct.error)
TORCH = (
    "overflow",
    "out of memory",
    "alloc",
    "too large",
    "too big",
    "numel",
    "negative dimension",
)
"""What torch says of sizes that no machine has; its errors have no type of their own."""


def told(error: BaseException) -> SufficeError | None:
    """Return the error to show for what a library raised, None for a bug and for what is ours.

    Example:
        >>> str(told(OverflowError("int too large")))
        'a number is too large for this computation (int too large); give a smaller one.'
    """
    reason = _reason(error)
    if reason is None:
        return None
    place = _place(error)
    return DataError(f"{place}: {reason}" if place else reason)


def _reason(error: BaseException) -> str | None:
    words = shortened(str(error).partition("\n")[0])
    if isinstance(error, OSError):
        return _reason_of_system(error)
    if type(error).__name__ == "PanicException":  # of a library in Rust; it is no Exception
        return f"the tokenizers library failed on it ({words}); give the file complete."
    if isinstance(error, MemoryError):
        return "this needs more memory than there is; give something smaller."
    if isinstance(error, RecursionError):
        return "this is nested too deeply; give something with fewer levels."
    if isinstance(error, UnicodeError):
        return f"this is not text in UTF-8 ({words}); save it as UTF-8."
    if isinstance(error, OverflowError) or _is_of_sizes(error):
        return f"a number is too large for this computation ({words}); give a smaller one."
    if isinstance(error, ValueError) and "null" in words:
        return "a name holds the character NUL; give one without."
    if isinstance(error, CONTAINERS):
        return f"this is truncated or damaged ({words}); replace it by a complete copy."
    return None


def _reason_of_system(error: OSError) -> str | None:
    if isinstance(error, InterruptedError | BrokenPipeError):
        return None
    reason = error.strerror or shortened(str(error)) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk refuses more ({reason}); make room, or choose another place."
    return f"this cannot be used ({reason}); give a path that exists and may be read and written."


def _is_of_sizes(error: BaseException) -> bool:
    sizes = isinstance(error, TypeError | RuntimeError)
    return sizes and any(word in str(error).lower() for word in TORCH)


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


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text for one line of a terminal: its middle is left out where it is long.

    Example:
        >>> shortened("x" * 5000, longest=9)
        'xxx...xxx'
    """
    text = text.encode(errors="backslashreplace").decode()
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
