"""Target modules for low-rank adapters."""

from __future__ import annotations

from torch import nn

from suffice.layers.attention import Attention

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def lora_targets(model: nn.Module) -> list[str]:
    """Return the names of the attention's learned maps, for `peft.LoraConfig(target_modules=...)`.

    Optimised attention has no v_proj to adapt, Efficient neither k_proj nor v_proj.

    Args:
        model: any that holds `Attention` layers.
    """
    return [
        f"{name}.{projection}"
        for name, module in model.named_modules()
        if isinstance(module, Attention)
        for projection in PROJECTIONS
        if isinstance(getattr(module, projection), nn.Linear)
    ]
