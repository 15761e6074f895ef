"""What inference mode made is copied where it is to be written."""

from __future__ import annotations

import torch

from suffice.torch_compat import usable


def test_only_what_is_locked_is_copied():
    plain = torch.zeros(2)
    with torch.inference_mode():
        locked = torch.ones(2)
        assert usable((locked,))[0] is locked
    same, copied = usable((plain, locked))
    assert same is plain
    copied.add_(1.0)
    assert copied.tolist() == [2.0, 2.0]
