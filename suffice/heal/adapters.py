"""Low-rank adapters of a language model's attention, by PEFT, which is optional."""

from __future__ import annotations

import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.layers.lora import lora_targets
from suffice.models import LM
from suffice.train.seeds import derive


def check_installed() -> None:
    """Refuse to go on without PEFT.

    Raises:
        ConfigError: if it cannot be imported.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "low-rank adapters need peft, which is not installed: pip install 'suffice[lora]', or "
            "leave --lora out and train all weights."
        ) from error


def adapted(lm: LM, *, rank: int, alpha: float, seed: int) -> nn.Module:
    """Return a model around `lm` in which adapters of its attention's maps learn, and nothing else.

    Its answers are those of `lm` as long as nothing has been learned.

    Args:
        lm: changed in place, until `merged` gives it back.
        rank: of the adapters.
        alpha: their scale is alpha over rank.
        seed: of their first weights.
    """
    import peft

    torch.manual_seed(derive("adapters", seed))
    wanted = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=lora_targets(lm))
    return peft.LoraModel(lm, wanted, "default")


def merged(model: nn.Module) -> LM:
    """Return the language model that `adapted` was given, with its adapters added to its maps."""
    lm = model.merge_and_unload()
    return lm.requires_grad_(True)
