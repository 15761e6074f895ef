"""Our weights by the names of a Llama's parts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from suffice.models import LM

PATHS = {
    **{name: f"attention.{name}_proj" for name in "qkvo"},
    **{name: f"mlp.{name}" for name in ("gate", "up", "down")},
    **{name: name for name in ("attention_norm", "mlp_norm")},
}


def layers(lm: LM) -> Iterator[dict[str, Tensor]]:
    """Give the weights of each layer: q, k, v, o, gate, up, down and both norms."""
    for block in lm.blocks:
        own = block.state_dict()
        yield {name: own[f"{path}.weight"] for name, path in PATHS.items()}


def head(lm: LM) -> Tensor:
    """Return the weight of the head [V, d_model]."""
    return (lm.embedding.tokens if lm.head is None else lm.head).weight.detach()
