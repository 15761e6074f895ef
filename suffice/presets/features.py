"""Mechanisms whose cost grows with the length: feature maps, low rank, compressive memory."""

from __future__ import annotations

from dataclasses import replace

from suffice.errors import ConfigError
from suffice.kernels import Elu, Favor, Rfa
from suffice.memory.past import Infini
from suffice.mixing import LowRank
from suffice.patterns import Block, Causal
from suffice.presets.paper import standard
from suffice.presets.sparse import checked
from suffice.spec import AttentionSpec


def linear(
    d_model: int,
    num_heads: int,
    *,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Linear Transformer: weights are products of elu(q) + 1 and elu(k) + 1.

    Choose it for long input and for streaming: time grows with the length instead of its square,
    and a state has one size. It weighs keys more smoothly than a softmax, so not where one exact
    key has to be found; below some hundred tokens a softmax is as fast.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T d (d / h + 8) FLOPs, causal
        8 T d^2 + about 4 T d (d / h + 72); state d (d / h + 1) numbers in all.
    Source: Katharopoulos et al. 2020, arXiv:2006.16236, equations 7 and 9.
    """
    return replace(standard(d_model, num_heads, causal=causal, bias=bias), kernel=Elu())


def performer(
    d_model: int,
    num_heads: int,
    *,
    features: int = 256,
    seed: int = 0,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Performer: the weights of a softmax, estimated by positive random features (FAVOR+).

    Choose it where time must grow with the length and the weights should stay near those of a
    softmax, as with a model that was trained with one. More features estimate better and cost
    more; linear is the cheaper of the two when training from scratch.

    Args:
        features: random features of a head; the error of the weights falls with their root.
        seed: seed of the random features.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 8 T d F FLOPs for F features, causal more by
        2 T h C (F + d / h) for chunks of C positions; state h (F (d / h + 1) + 1) numbers in all.
    Source: Choromanski et al. 2020, arXiv:2009.14794, lemma 1 and section 2.4.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias)
    return replace(base, kernel=Favor(features, seed))


def rfa(
    d_model: int,
    num_heads: int,
    *,
    features: int = 64,
    seed: int = 0,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Random feature attention: a softmax of cosines, estimated by sines and cosines.

    Choose it like performer, where the norms of queries and keys should not matter. Its estimates
    have both signs, so with few features some queries are estimated badly; performer's are never
    negative.

    Args:
        features: random features of a head, even: a sine and a cosine for each frequency.
        seed: seed of the frequencies.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 6 T d F FLOPs for F features, causal more by
        2 T h C (F + d / h) for chunks of C positions; state h F (d / h + 1) numbers in all.
    Source: Peng et al. 2021, arXiv:2103.02143, equations 3 to 5. Differs: without its gate.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias)
    return replace(base, kernel=Rfa(features, seed))


def linformer(
    d_model: int,
    num_heads: int,
    *,
    length: int,
    rank: int | None = None,
    shared: bool = True,
    per_head: bool = False,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Linformer: queries attend to a fixed number of learned sums of keys and of values.

    Choose it for long input of a fixed length that is read in both directions, as encoders do:
    time and memory grow with the length instead of its square. It cannot generate: the sums are
    over the whole input, so `causal` is refused, and so is input longer than `length`.

    Args:
        length: the longest input, tokens.
        rank: sums that are attended to; None: a quarter of length, at least 1, as the paper's 128
            for 512 tokens.
        shared: one map for keys and for values instead of one each.
        per_head: separate maps for each head instead of the same for all.
        causal: no look-ahead; refused.
        bias: bias terms in the feature maps; the maps along the sequence have none.

    Cost: 4 (d^2 + d) + r l parameters; 8 T d^2 + 8 T r d FLOPs.
    Source: Wang et al. 2020, arXiv:2006.04768, equation 7; sharing as in its section 4. Differs:
        the paper's sharing across layers is left out: each layer has its own maps.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    if rank is None:
        rank = max(checked("length", length) // 4, 1)
    return replace(base, mixing=LowRank(length, rank, shared=shared, per_head=per_head))


def infini(
    d_model: int,
    num_heads: int,
    *,
    segment: int = 256,
    delta: bool = True,
    causal: bool = True,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Infini-attention: a softmax within segments, and a memory of one size of all before them.

    Choose it for language models of endless text: what is kept when streaming with
    `Rolling(segment)` has one size, and each head learns how much of it to read. What lies in an
    earlier segment is read blurred; for exact recall keep a window or everything. It has no form
    that looks ahead.

    Args:
        segment: tokens of a segment.
        delta: whether to use the delta rule: a segment adds only what the memory does not hold.
        causal: no look-ahead; True alone is legal.
        dropout: probability of dropping a weight within a segment, while training.

    Cost: 4 (d^2 + d) + h parameters; 8 T d^2 + 4 T N d FLOPs for segments of N and about
        4 T d^2 / h for the memory; state d (d / h + 1 + 2 N) numbers and 2 d per token, of which
        the last N are read.
    Source: Munkhdalai et al. 2024, arXiv:2404.07143, equations 2 to 10.

    Raises:
        ConfigError: for causal=False, or a segment below 1.
    """
    if not causal:
        raise ConfigError(
            "infini keeps a memory of what came before, so it has no form that looks ahead; leave "
            "out causal=False."
        )
    base = standard(d_model, num_heads, causal=True, bias=bias, dropout=dropout)
    past = Infini(segment, delta)
    return replace(base, pattern=Block(segment) & Causal(), past=past)
