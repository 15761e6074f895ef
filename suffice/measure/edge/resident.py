"""Memory that the process holds, as the system counts it."""

from __future__ import annotations

from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FIELDS = {"now": "VmRSS", "peak": "VmHWM"}


def resident(field: str = "now", status: Path = STATUS) -> int | None:
    """Return the resident bytes "now", or their "peak"; None where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{FIELDS[field]}:")]
    return 1024 * int(found[0]) if found else None


def forget_peak(clear: Path = CLEAR) -> bool:
    """Let the peak start from what is resident now; return whether the system did."""
    try:
        clear.write_text("5")
    except OSError:
        return False
    return True
