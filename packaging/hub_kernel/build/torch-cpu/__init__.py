"""CPU kernels of `suffice` as a repository of the package `kernels`.

Functions have the names that transformers' table gives them; `layers` holds what stands for a
layer. The package `suffice` must be installed: the hub's list of dependencies cannot name it.
"""

from types import SimpleNamespace

from torch import Tensor, nn

from suffice.hf.acceleration.sequences import (
    causal_convolution as causal_conv1d_fn,
)
from suffice.hf.acceleration.sequences import (
    causal_convolution_step as causal_conv1d_update,
)
from suffice.hf.acceleration.sequences import (
    gated_delta_rule as chunk_gated_delta_rule,
)
from suffice.hf.acceleration.sequences import (
    gated_delta_step as fused_recurrent_gated_delta_rule,
)
from suffice.hf.acceleration.sequences import (
    mamba2_scan as mamba_chunk_scan_combined,
)
from suffice.hf.acceleration.sequences import (
    mamba2_step as selective_state_update,
)
from suffice.ops.native import stock


class RMSNormGated(nn.Module):
    """A root-mean-square norm times silu(gate), in float32."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """Return [..., N] in the dtype of the input [..., N]."""
        options = {"eps": self.variance_epsilon, "order": stock.GATE_LAST}
        out = stock.norm(hidden_states.float(), self.weight.float(), gate.float(), **options)
        return out.to(hidden_states.dtype)


layers = SimpleNamespace(RMSNormGated=RMSNormGated)

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "layers",
    "mamba_chunk_scan_combined",
    "selective_state_update",
]
