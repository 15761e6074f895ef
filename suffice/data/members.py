"""The members of a tar archive, read as a stream.

Nothing is ever extracted. A member's name is data: a regular file whose whole name has the form
that is looked for is read, and all else is passed over.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator

from suffice.errors import DataError

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
