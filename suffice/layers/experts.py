"""Mixtures of experts: feed-forward maps of which each token reads a few.

Letters: N tokens, M d_model, K chosen experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, check_known
from suffice.layers.basic import Dropout
from suffice.layers.block import SwiGLU
from suffice.ops.linear import Linear
from suffice.utils.records import check_fields, is_whole

SCORES = ("softmax", "sigmoid")
SMALLEST_SUM = 1e-20  # added to sums of weights, as in DeepSeek's models
BEST_OF_GROUP = 2  # scores that rank a group


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Sizes of a mixture of experts, and how each token chooses among them.

    s = softmax(W_r x + b_r) or its sigmoid scores the experts. A token reads the `top_k` with the
    largest s + c, where c is a correction that no gradient trains, and adds up
    scale * s_e / sum(s of the chosen) * expert_e(x); a shared expert is added for every token.
    With groups it chooses only from the `top_groups` groups whose two best s + c have the largest
    sum. An expert is down(silu(gate(x)) * up(x)), or, with `limit`,
    down(g * sigmoid(alpha * g) * (u + 1)) with g = min(gate(x), limit) and u = up(x) held within
    -limit..limit.

    Args:
        num_experts: experts of a block.
        top_k: experts that a token reads.
        width: features inside an expert.
        scores: "softmax" or "sigmoid".
        normalised: whether the weights of the chosen are divided by their sum.
        scale: factor of the weights.
        correction: whether c exists.
        groups: number of equal groups of experts, in order; 1 disables groups.
        top_groups: groups that a token chooses from.
        router_bias: whether b_r exists.
        shared_width: features inside the shared expert; None: no shared expert.
        alpha: see above; given with limit.
        limit: see above, > 0; None: a plain SwiGLU.
        dense: numbers of the blocks that have a plain feed-forward map instead.

    Raises:
        ConfigError: naming the fields that are not legal.

    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2, without noise. Softmax of the chosen:
        Jiang et al. 2024, arXiv:2401.04088, section 2.1. Clamped experts: OpenAI 2025,
        arXiv:2508.10925, section 2.1. Sigmoid, correction, groups and the shared expert:
        DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2. Differs: nothing balances the load.
    """

    num_experts: int
    top_k: int
    width: int
    scores: str = "softmax"
    normalised: bool = True
    scale: float = 1.0
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    router_bias: bool = False
    shared_width: int | None = None
    alpha: float | None = None
    limit: float | None = None
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_known("scores", self.scores, SCORES)
        names = ("num_experts", "top_k", "width", "groups", "top_groups", "shared_width")
        sizes = {name: getattr(self, name) for name in names}
        if wrong := [n for n, size in sizes.items() if size is not None and size < 1]:
            given = ", ".join(f"{name}={sizes[name]}" for name in wrong)
            raise ConfigError(f"Experts({given}): give whole numbers of at least 1.")
        group, rest = divmod(self.num_experts, self.groups)
        if rest or self.top_groups > self.groups or (self.groups > 1 and group < BEST_OF_GROUP):
            raise ConfigError(
                f"Experts(num_experts={self.num_experts}, groups={self.groups}, "
                f"top_groups={self.top_groups}): give groups of equally many experts, at least "
                f"{BEST_OF_GROUP} each, and no more top_groups than groups."
            )
        if self.top_k > self.top_groups * group:
            raise ConfigError(
                f"Experts(top_k={self.top_k}): a token chooses among {self.top_groups * group} "
                "experts; give no more."
            )
        if (self.alpha is None) is not (self.limit is None) or (
            self.limit is not None and self.limit <= 0.0
        ):
            raise ConfigError(
                f"Experts(alpha={self.alpha}, limit={self.limit}): give both, and a limit above 0, "
                "or neither."
            )
        if not all(is_whole(number, least=0) for number in self.dense):
            raise ConfigError(f"Experts(dense={self.dense}): give numbers of blocks, from 0.")


class MixtureOfExperts(nn.Module):
    """Feed-forward maps of which each token reads the few that a router chooses.

    The tokens of each expert are gathered, so that only the chosen ones are computed.

    Args:
        d_model: features in and out.
        experts: sizes of the experts and the rule that chooses them.
        activation: function of the gates without a limit, see `SwiGLU`.
        dropout: probability, after the sum.
        bias: bias terms in the projections of the experts.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Cost: num_experts times a SwiGLU of parameters, top_k times its FLOPs.

    Example:
        >>> mixture = MixtureOfExperts(8, Experts(num_experts=4, top_k=2, width=16))
        >>> mixture(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])

    Source: see `Experts`.
    """

    correction: Tensor | None

    def __init__(
        self,
        d_model: int,
        experts: Experts,
        *,
        activation: str = "swiglu",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        options = {"activation": activation, "bias": bias, **factory}
        self.sizes = experts
        self.router = Linear(d_model, experts.num_experts, bias=experts.router_bias, **factory)
        # a buffer: its owner moves it by the load of the experts, no gradient does
        zeros = torch.zeros(experts.num_experts, **factory) if experts.correction else None
        self.register_buffer("correction", zeros)
        self.experts = nn.ModuleList(
            SwiGLU(d_model, experts.width, **options)
            if experts.alpha is None or experts.limit is None
            else _ClampedSwiGLU(experts.alpha, experts.limit, d_model, experts.width, **options)
            for _ in range(experts.num_experts)
        )
        self.shared = None
        if experts.shared_width is not None:
            self.shared = SwiGLU(d_model, experts.shared_width, **options)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts of each position."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.route(tokens)
        out = torch.zeros_like(tokens)
        for number in chosen.unique().tolist():
            rows, places = (chosen == number).nonzero(as_tuple=True)
            read = self.experts[number](tokens[rows]) * weights[rows, places, None]
            out = out.index_add_(0, rows, read.to(out.dtype))
        if self.shared is not None:
            out = out + self.shared(tokens)
        return self.dropout(out.view_as(x))

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights [N, K], in fp32 or better, and numbers [N, K] of chosen experts."""
        sizes, logits = self.sizes, self.router(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = logits.softmax(dim=-1) if sizes.scores == "softmax" else logits.sigmoid()
        ranks = scores if self.correction is None else scores + self.correction
        if sizes.groups > 1:
            groups = ranks.unflatten(1, (sizes.groups, -1))
            best = groups.topk(BEST_OF_GROUP, dim=-1).values.sum(dim=-1)
            left_out = torch.ones_like(best, dtype=torch.bool)
            left_out.scatter_(1, best.topk(sizes.top_groups, dim=-1).indices, False)
            ranks = groups.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = ranks.topk(sizes.top_k, dim=-1).indices
        weights = scores.gather(1, chosen)
        if sizes.normalised:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + SMALLEST_SUM)
        return weights * sizes.scale, chosen

    def extra_repr(self) -> str:
        """Show the sizes in the printed module."""
        return repr(self.sizes)


class _ClampedSwiGLU(SwiGLU):
    """down(g * sigmoid(alpha g) * (u + 1)) of clamped g and u; see `Experts`."""

    def __init__(self, alpha: float, limit: float, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.alpha, self.limit = alpha, limit

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).clamp(max=self.limit)
        up = self.up(x).clamp(min=-self.limit, max=self.limit)
        return self.dropout(self.down(gate * torch.sigmoid(self.alpha * gate) * (up + 1.0)))
