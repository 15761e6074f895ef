"""The first of the digits only, so that comparisons train in a moment."""

from __future__ import annotations

import torch

from suffice.data import vision


def use_few_digits(monkeypatch) -> None:
    few = vision.read_digits().take(torch.arange(300))
    monkeypatch.setattr(vision, "read_digits", lambda: few)
