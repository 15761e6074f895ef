"""Target modules for low-rank adapters."""

from __future__ import annotations

from torch import nn

from suffice.layers.attention import Attention


def lora_targets(model: nn.Module) -> list[str]:
    """Return the names of the attention's learned maps, for `peft.LoraConfig(target_modules=...)`.

    Optimised attention has no v_proj to adapt, Efficient neither k_proj nor v_proj.
    """
    return [
        f"{name}.{child}"
        for name, layer in model.named_modules()
        if isinstance(layer, Attention)
        for child, module in layer.named_children()
        if isinstance(module, nn.Linear)
    ]
