"""Keys and values of one dtype, from the first piece of a text to the last.

Letters: B batch, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ConfigError


def alike(k: Tensor, v: Tensor, held: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Return new keys and values in the dtype that a state holds.

    Under autocast columns of x keep their dtype beside what a map gives in half precision, and
    pieces in half precision may follow others.

    Args:
        k: [B, G, T, D].
        v: [B, G, T, E].
        held: dtype of those before them; None = there are none.

    Raises:
        ConfigError: for a piece that would be rounded to what is held, or read beside it.
    """
    given = torch.promote_types(k.dtype, v.dtype)
    if held is None or held is given:
        return k.to(given), v.to(given)
    widens = torch.promote_types(given, held) is held
    if not widens or not torch.is_autocast_enabled(k.device.type):
        raise ConfigError(
            f"a piece in {given} behind others in {held}: a state keeps one dtype; read all pieces "
            "of a text with the same dtype and autocast, or reset the state."
        )
    return k.to(held), v.to(held)
