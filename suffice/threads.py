"""How many threads work on one operation."""

from __future__ import annotations

import torch

from suffice.errors import ConfigError


def threads(n: int | None = None) -> int:
    """Return the number of threads that torch and the native kernels use, set to n if it is given.

    The kernels always use torch's number, so `torch.set_num_threads` and OMP_NUM_THREADS do the
    same. For one text at a time the physical cores are most that help.

    Args:
        n: threads from now on, of the whole process; None = as it is.

    Raises:
        ConfigError: if n is no number of at least 1.

    Example:
        >>> threads() == torch.get_num_threads()
        True
    """
    if n is not None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigError(f"threads({n!r}): give a number of at least 1, or nothing to ask.")
        torch.set_num_threads(n)
    return torch.get_num_threads()
