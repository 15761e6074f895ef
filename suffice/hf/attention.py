"""An attention layer that an engine of transformers can take over, and when one can."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from suffice.errors import ConfigError
from suffice.hf.specs import window_of
from suffice.kernels import Softmax
from suffice.layers import Attention
from suffice.past import NoPast
from suffice.patterns import Causal
from suffice.spec import AttentionSpec

OWN = "eager"  # transformers' name for what a model computes itself


def check_servable(spec: AttentionSpec) -> None:
    """Refuse a layer whose attention no engine computes, such as vLLM.

    Engines keep keys and values themselves and compute softmax(q k) v, causal or in a causal
    window, over heads of one width.

    Raises:
        ConfigError: naming what they lack.
    """
    missing = []
    if not isinstance(spec.kernel, Softmax):
        missing.append(f"kernel={spec.kernel!r}")
    if spec.mixing.mixes:
        missing.append(f"mixing={spec.mixing!r}")
    if spec.past != NoPast():
        missing.append(f"past={spec.past!r}")
    if spec.position.biases:
        missing.append(f"position={spec.position!r}")
    if spec.pattern != Causal() and window_of(spec.pattern) is None:
        missing.append(f"pattern={spec.pattern!r}")
    if missing:
        raise ConfigError(
            f"an engine that computes attention itself cannot serve {', '.join(missing)}; it has a "
            "softmax over Causal() or Window(n) & Causal(). Use the model's own attention."
        )


class SufficeAttention(Attention):
    """`Attention` that hands queries, keys and values to an engine where the model says so.

    Args:
        config: of the model; `_attn_implementation` names the engine, "eager" is none.
        spec: of the layer.
        layer_idx: number of the layer.
        device: where the parameters live.
    """

    is_causal = True

    def __init__(
        self, config: Any, spec: AttentionSpec, layer_idx: int, *, device: torch.device | str
    ) -> None:
        super().__init__(spec, device=device)
        self.config, self.layer_idx = config, layer_idx
        self.num_key_value_groups = spec.num_heads // spec.kv_heads
        self.scaling = spec.score_scale

    def forward(self, x: Tensor, *, engine: dict[str, Any] | None = None, **where: Any) -> Tensor:
        """Return the attended x.

        Args:
            x: [B, T, d_model].
            engine: arguments for the engine, position_ids [B, T] among them; None = compute here.
            **where: of `Attention`.
        """
        if engine is None:
            return super().forward(x, **where)
        q, k, v = self._turned(x, x, engine["position_ids"])[:3]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        drop = self.spec.dropout if self.training else 0.0
        out, _ = attend(
            self,
            q,
            k,
            v,
            scaling=self.scaling,
            dropout=drop,
            sliding_window=window_of(self.spec.pattern),
            **engine,
        )
        return self.o_proj(out.reshape(*x.shape[:2], -1))
