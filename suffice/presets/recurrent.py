"""Mechanisms whose state has one size: sums that decay, and the delta rule."""

from __future__ import annotations

import math

from suffice.combine import Gated
from suffice.errors import ConfigError
from suffice.kernels import Decayed, Delta, Recurrent
from suffice.patterns import Causal
from suffice.positions import NoPosition, Position, Rope
from suffice.spec import AttentionSpec

NOWHERE = NoPosition()


def _recurrent(
    name: str,
    d_model: int,
    num_heads: int,
    kernel: Recurrent,
    *,
    causal: bool,
    bias: bool,
    activation: str = "silu",
    position: Position = NOWHERE,
) -> AttentionSpec:
    if not causal:
        raise ConfigError(
            f"{name} sums what came before from token to token, so it has no form that looks "
            "ahead; leave out causal=False."
        )
    return AttentionSpec(
        d_model=d_model,
        num_heads=num_heads,
        pattern=Causal(),
        kernel=kernel,
        position=position,
        combine=Gated(activation=activation, norm=True),
        bias=bias,
    )


def retnet(
    d_model: int, num_heads: int, *, causal: bool = True, bias: bool = False
) -> AttentionSpec:
    """RetNet's retention: sums of keys and values in which each head forgets at its own pace.

    Choose it for language models whose state must have one size and whose training must be as
    simple as can be: nothing but the pace of a head decides what is forgotten. Where it should
    depend on the text, take mamba2 or gated_deltanet.

    Args:
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the paper's model has none.

    Cost: 5 d^2 + d / h parameters; 10 T d^2 + about 4 T d (d / h + 64) FLOPs; state d^2 / h numbers
        in all.
    Source: Sun et al. 2023, arXiv:2307.08621, equations 5 to 8. Differs: values are as wide as
        keys, positions are rotary without xPos, and the heads' norm has gains.

    Raises:
        ConfigError: for causal=False.
    """
    options = {"causal": causal, "bias": bias, "position": Rope()}
    return _recurrent("retnet", d_model, num_heads, Decayed(), **options)


def lightning(
    d_model: int, num_heads: int, *, causal: bool = True, bias: bool = False
) -> AttentionSpec:
    """Lightning attention: fixed decays, fast in the first heads and slow in the last ones.

    Choose it as retnet, with a gate of sigmoids instead of SiLU.

    Args:
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the released models have none.

    Cost: 5 d^2 + d / h parameters; 10 T d^2 + about 4 T d (d / h + 64) FLOPs; state d^2 / h numbers
        in all.
    Source: Qin et al. 2024, arXiv:2401.04658, section 3, in the layer of MiniMax 2025,
        arXiv:2501.08313, section 2.2: head h of H decays by exp(-2^(-8 h / H)). Differs: no SiLU of
        queries, keys and values, and the same decays in all layers.

    Raises:
        ConfigError: for causal=False.
    """
    decays = tuple(math.exp(-(2.0 ** (-8 * (h + 1) / num_heads))) for h in range(num_heads))
    options = {"causal": causal, "bias": bias, "activation": "sigmoid"}
    return _recurrent("lightning", d_model, num_heads, Decayed(decays=decays), **options)


def mamba2(
    d_model: int,
    num_heads: int,
    *,
    convolution: int = 4,
    causal: bool = True,
    bias: bool = False,
) -> AttentionSpec:
    """Mamba-2's recurrence as attention: every token decides how much of the past it keeps.

    Choose it for streams with breaks, where a token should clear or hold what came before.

    Args:
        convolution: tokens that each feature of queries, keys and values reads before.
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the released models have none.

    Cost: 5 d^2 + (h + 3 c) d + 2 h + d / h parameters for a convolution of c tokens; 10 T d^2 +
        about 4 T d (d / h + 64) FLOPs; state d^2 / h + 3 d (c - 1) numbers in all.
    Source: Dao and Gu 2024, arXiv:2405.21060, section 7. Differs: queries and keys of each head, no
        skip from values to outputs, and heads are normalised one by one before the gate.

    Raises:
        ConfigError: for causal=False, or a convolution of fewer than 2 tokens.
    """
    kernel = Decayed(per="token", convolution=convolution)
    return _recurrent("mamba2", d_model, num_heads, kernel, causal=causal, bias=bias)


def gla(d_model: int, num_heads: int, *, causal: bool = True, bias: bool = False) -> AttentionSpec:
    """Gated linear attention: every feature of a key decays by itself, as each token says.

    Choose it where retnet forgets too bluntly. The native kernels read a text about as fast as with
    one decay for each head; by products of torch it is far slower than the other recurrences, as
    pairs of tokens within a chunk are products of features and not of matrices.

    Args:
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the paper's model has none.

    Cost: 5 d^2 + 33 d + d / h parameters; 10 T d^2 + about 4 T d (d / h + 4) FLOPs of products;
        state d^2 / h numbers in all.
    Source: Yang et al. 2023, arXiv:2312.06635, section 4. Differs: keys are as wide as values.

    Raises:
        ConfigError: for causal=False.
    """
    kernel = Decayed(per="feature")
    return _recurrent("gla", d_model, num_heads, kernel, causal=causal, bias=bias)


def deltanet(
    d_model: int,
    num_heads: int,
    *,
    convolution: int = 4,
    causal: bool = True,
    bias: bool = False,
) -> AttentionSpec:
    """DeltaNet: a key's value is moved to the new one, not added to the old.

    Choose it where a state of one size must recall what a key was last given. What is no longer
    needed stays until its place is taken; gated_deltanet can clear it.

    Args:
        convolution: tokens that each feature of queries, keys and values reads before.
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the paper's model has none.

    Cost: 5 d^2 + (h + 3 c) d + d / h parameters for a convolution of c tokens; 10 T d^2 + about
        6 T d (d / h + 64) FLOPs of products; state d^2 / h + 3 d (c - 1) numbers in all.
    Source: Yang et al. 2024, arXiv:2406.06484, section 2.2 and 3.4. Differs: with a gate after the
        norm of the heads.

    Raises:
        ConfigError: for causal=False, or a convolution of fewer than 2 tokens.
    """
    kernel = Delta(gated=False, convolution=convolution)
    return _recurrent("deltanet", d_model, num_heads, kernel, causal=causal, bias=bias)


def gated_deltanet(
    d_model: int,
    num_heads: int,
    *,
    convolution: int = 4,
    causal: bool = True,
    bias: bool = False,
) -> AttentionSpec:
    """Gated DeltaNet: the delta rule on a state that each token may let decay.

    Choose it first among the mechanisms with a state of one size: the linear layers of Qwen3-Next
    are these, three to each layer of full attention.

    Args:
        convolution: tokens that each feature of queries, keys and values reads before.
        causal: no look-ahead; True alone is legal.
        bias: bias terms in the projections; the released models have none.

    Cost: 5 d^2 + (2 h + 3 c) d + 2 h + d / h parameters for a convolution of c tokens; 10 T d^2 +
        about 6 T d (d / h + 64) FLOPs of products; state d^2 / h + 3 d (c - 1) numbers in all.
    Source: Yang et al. 2024, arXiv:2412.06464, equation 10 and section 3.4. No difference.

    Raises:
        ConfigError: for causal=False, or a convolution of fewer than 2 tokens.
    """
    kernel = Delta(convolution=convolution)
    return _recurrent("gated_deltanet", d_model, num_heads, kernel, causal=causal, bias=bias)
