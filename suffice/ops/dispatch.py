"""Which op computes a problem: decided once, from its sizes, and explained.

Crossovers on a two-core AVX-512 CPU, fp32: of matmul and folded by benchmarks/crossover.py, of
blocked judged by the sparse cases of benchmarks/mechanisms.py, of native_decode by
benchmarks/decode.py --crossover.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from suffice.cost import computed_pairs
from suffice.errors import UnsupportedError, unknown
from suffice.ops.call import AttentionCall
from suffice.ops.flex import FLEX
from suffice.ops.fused import FOLDED, FUSED
from suffice.ops.matmul import MATMUL
from suffice.ops.native.attention import NATIVE, Band, near, share_of_lanes, sight
from suffice.ops.native.decode import LOOK
from suffice.ops.native.features import NATIVE_SCAN
from suffice.ops.op import Op
from suffice.ops.reference import REFERENCE
from suffice.ops.scan import SCAN
from suffice.ops.sparse.blocked import BLOCKED
from suffice.patterns import Full

OPS: dict[str, Op] = {
    op.name: op
    for op in (FUSED, FOLDED, LOOK, NATIVE, BLOCKED, FLEX, NATIVE_SCAN, SCAN, MATMUL, REFERENCE)
}

FEW_QUERIES = 4
WIDE_HEAD = 256  # features
WIDE_KEYS = range(64, 513)
NEAR_KEYS = 256  # up to which wide heads that see everything are native
SPARSE_KEYS = 512  # keys from which skipping blocks pays, if enough of them are skipped
SPARSE_SHARE = 0.35  # of the pairs, computed
LONG_PAIRS = 1 << 22  # pairs from which the mask itself is what costs
LONG_SHARE = 0.6
LANES = 16  # queries of a vector of the native kernels
NATIVE_PAIRS, LEARNT_PAIRS = 64 * 128, 128 * 128  # of queries and keys; calls in Python cost more
FULL_LANES = 0.5  # share of what they compute that is seen, from which lists of keys pay
LISTED_KEYS = 1 << 22  # of all blocks together; longer lists cost more than they save

LONG_KEYS = {torch.float32: 2048, torch.float16: 1024}  # from which one query that sees all pays


def prefers_look(problem: AttentionCall) -> bool:
    """The kernels for few queries pay where keys are hidden, for several queries, in long texts."""
    # a graph must not ask for lengths: each answer would be a graph of its own
    graph = torch.compiler.is_compiling()
    if torch.is_grad_enabled() or (graph and problem.queries > 1) or LOOK.refuses(problem):
        return False
    if problem.dtype not in LONG_KEYS and "avx512_bf16" in capabilities():
        return False  # products of bfloat16 are torch's there
    if problem.queries > 1 or problem.position.biases or not problem.unrestricted:
        return True
    return not graph and problem.keys >= LONG_KEYS.get(problem.dtype, 1)


def prefers_folded(problem: AttentionCall) -> bool:
    """Folding pays while reading the keys is the cost."""
    return problem.group > 1 and problem.queries <= FEW_QUERIES


def prefers_native(problem: AttentionCall) -> bool:
    """The kernels pay from a vector of queries on, where most of what they compute is seen."""
    if problem.queries < LANES or NATIVE.refuses(problem):
        return False
    if not torch.compiler.is_compiling() and problem.queries * problem.keys < fewest_pairs():
        return False
    if isinstance(problem.pattern, Full) and problem.head_dim >= WIDE_HEAD:
        return problem.keys <= NEAR_KEYS  # beyond, products of whole matrices are faster
    if near(problem.pattern) is not None:
        return not torch.compiler.is_compiling() or not problem.pattern.dense
    if torch.compiler.is_compiling() or problem.pattern.spacing > 1:
        return False
    blocks = problem.pattern.layout(problem.queries, problem.keys, 32).touched
    if 32 * int((blocks > 0).sum()) > LISTED_KEYS:
        return False
    lists = sight(problem.pattern, problem.queries, problem.keys, problem.num_heads)
    return isinstance(lists, Band) or share_of_lanes(lists) >= FULL_LANES


@lru_cache(maxsize=1)
def capabilities() -> frozenset[str]:
    """Return the instructions that torch finds here, as it names them; older ones find none."""
    ask = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(name for name, there in ask().items() if there is True)


def fewest_pairs() -> int:
    """Return from how many pairs on a call into the native kernels pays."""
    return LEARNT_PAIRS if torch.is_grad_enabled() else NATIVE_PAIRS


def prefers_matmul(problem: AttentionCall) -> bool:
    """One wide head at moderate lengths runs at the speed of the matrix product."""
    return (
        problem.device == "cpu"
        and problem.head_dim >= WIDE_HEAD
        and WIDE_KEYS.start <= problem.keys < WIDE_KEYS.stop
        and problem.queries > FEW_QUERIES
    )


def prefers_blocked(problem: AttentionCall) -> bool:
    """Skipping blocks pays where the pattern leaves most of a long sequence out."""
    if problem.pattern.dense or problem.device != "cpu" or problem.keys < SPARSE_KEYS:
        return False
    if torch.compiler.is_compiling():  # lengths may be symbols there
        return problem.queries > FEW_QUERIES
    share = computed_share(problem)
    pairs = problem.queries * problem.keys
    return share <= SPARSE_SHARE or (pairs > LONG_PAIRS and share <= LONG_SHARE)


def prefers_flex(problem: AttentionCall) -> bool:
    """On CUDA every sparse pattern of a long sequence has its kernels."""
    sparse = not problem.pattern.dense and problem.keys >= SPARSE_KEYS
    return problem.device == "cuda" and sparse and problem.queries > FEW_QUERIES


def computed_share(problem: AttentionCall) -> float:
    """Return the share of the query-key pairs that lie in blocks the pattern touches."""
    pairs = problem.queries * problem.keys
    return computed_pairs(problem.pattern, problem.queries, problem.keys) / pairs


def ranking(problem: AttentionCall) -> tuple[Op, ...]:
    """Return the fast ops, the one expected to be fastest first."""
    if not problem.kernel.weighs_pairs:
        return (NATIVE_SCAN, SCAN, MATMUL)
    if prefers_look(problem):
        return (LOOK, FUSED, MATMUL)
    if prefers_folded(problem):
        return (FOLDED, FUSED, MATMUL)
    if prefers_native(problem):
        return (NATIVE, FUSED, MATMUL)
    if prefers_flex(problem):
        return (FLEX, FUSED, MATMUL)
    if prefers_blocked(problem):
        return (BLOCKED, FUSED, MATMUL)
    if prefers_matmul(problem):
        return (MATMUL, FUSED)
    return (FUSED, MATMUL)


def choose(problem: AttentionCall, impl: str = "auto") -> Op:
    """Return the op for a problem.

    Args:
        problem: what to compute.
        impl: "auto", or an op by name, which is then used or refused, never replaced.

    Raises:
        ConfigError: for an unknown name.
        UnsupportedError: if the op named cannot compute the problem.
    """
    if impl == "auto":
        return next(op for op in ranking(problem) if not op.refuses(problem))
    if impl not in OPS:
        raise unknown("impl", impl, ["auto", *OPS])
    reasons = OPS[impl].refuses(problem)
    if reasons:
        raise UnsupportedError(
            f"impl={impl!r} cannot compute this: {'; '.join(reasons)}. Use impl='auto'."
        )
    return OPS[impl]


def explain(problem: AttentionCall, impl: str = "auto") -> str:
    """Return the op chosen and why each other one was not, a line each."""
    chosen = choose(problem, impl)
    lines = [f"{chosen.name}: {chosen.about}"]
    for op in OPS.values():
        if op is not chosen:
            lines.append(f"not {op.name}: {'; '.join(op.refuses(problem)) or _slower(op, problem)}")
    return "\n".join(lines)


def _not_sparse(problem: AttentionCall) -> str:
    """Say why skipping blocks would not pay."""
    if problem.pattern.dense:
        return "the pattern leaves no region out"
    share = computed_share(problem)
    return (
        f"pays from {SPARSE_KEYS} keys on where at most {SPARSE_SHARE:.0%} of the pairs lie in "
        f"blocks it computes; here {problem.keys} keys and {share:.0%}"
    )


def _not_native(problem: AttentionCall) -> str:
    """Say why the native kernels would not pay."""
    pairs = problem.queries * problem.keys
    if problem.queries < LANES or pairs < fewest_pairs():
        return (
            f"pays from {LANES} queries and {fewest_pairs()} pairs on; here {problem.queries} and "
            f"{pairs}"
        )
    return (
        f"pays where {FULL_LANES:.0%} of the pairs it computes are seen, 32 neighbouring queries "
        "beside each key that one of them sees"
    )


def _slower(op: Op, problem: AttentionCall) -> str:
    """Say why an op that could compute the problem was not preferred."""
    if op is REFERENCE:
        return "it is the float64 specification, for tests"
    if op is MATMUL and not problem.kernel.weighs_pairs:
        return "it forms the weights of all pairs, which sums of features do not need"
    if op is MATMUL:
        return (
            f"pays on a CPU for heads of {WIDE_HEAD} features or more and {WIDE_KEYS.start} to "
            f"{WIDE_KEYS.stop - 1} keys; here {problem.head_dim} features, {problem.keys} keys on "
            f"{problem.device}"
        )
    if op in (BLOCKED, FLEX):
        return _not_sparse(problem)
    if op is NATIVE:
        return _not_native(problem)
    if op is LOOK and torch.is_grad_enabled():
        return "it has no gradients, as torch.no_grad() and torch.inference_mode() allow"
    if op is LOOK and problem.dtype in LONG_KEYS:
        return f"pays for one query that sees all from {LONG_KEYS[problem.dtype]} keys on"
    if op is FOLDED:
        return f"pays for at most {FEW_QUERIES} queries; here {problem.queries}"
    return "slower for these sizes, as measured"
