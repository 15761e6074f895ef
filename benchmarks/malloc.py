"""Large temporaries that the C library keeps instead of mapping and faulting in at every op.

With glibc's defaults memory over 32 MiB goes back to the system as soon as it is freed, so that an
op which makes such a temporary pays for its pages again at every call. The setting holds for the
whole process: both sides of a comparison run under it.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1  # bytes; mallopt takes an int


def keep_large_temporaries() -> str:
    """Raise glibc's thresholds and say what holds now."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return "the allocator is as the system sets it: this is no glibc"
    done = mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, LARGEST)
    if not done:
        return "glibc refused mallopt: the allocator is as the system sets it"
    return "mallopt: temporaries up to 1 GiB are kept, for all sides alike"
