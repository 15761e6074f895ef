"""The choice of an op for a call, and its explanation.

Crossovers of torch's own ops were measured on a two-core AVX-512 CPU, fp32: of matmul and folded by
benchmarks/crossover.py, of blocked by the sparse cases of benchmarks/mechanisms.py. `MEASURED` has
each set of instructions on which the native kernels were measured. benchmarks/grid.py lists the
sizes at which a choice is wrong.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from suffice.errors import UnsupportedError, unknown
from suffice.kernels import Softmax
from suffice.ops.call import AttentionCall
from suffice.ops.flex import FLEX
from suffice.ops.fused import FOLDED, FUSED
from suffice.ops.matmul import MATMUL
from suffice.ops.native import library
from suffice.ops.native.attention import NATIVE, band_of
from suffice.ops.native.decode import DECODE
from suffice.ops.native.features import NATIVE_SCAN
from suffice.ops.native.recurrence import NATIVE_RECURRENCE, TOKEN
from suffice.ops.op import Op
from suffice.ops.recurrence import RECURRENCE
from suffice.ops.reference import REFERENCE
from suffice.ops.scan import SCAN
from suffice.ops.sparse.blocked import BLOCKED
from suffice.patterns import Causal, Full
from suffice.spec.cost import computed_pairs

OPS: dict[str, Op] = {
    op.name: op
    for op in (FUSED, FOLDED, DECODE, NATIVE, BLOCKED, FLEX, NATIVE_SCAN, SCAN, MATMUL, REFERENCE)
}
# what computes recurrences, the fastest first; they read gates that a layer makes
RECURRENCES: dict[str, Op] = {
    op.name: op for op in (TOKEN, NATIVE_RECURRENCE, RECURRENCE, REFERENCE)
}
PLANS = 256  # choices that are cached

FEW_QUERIES = 4
FEW_PAIRS = 1024  # of one query's heads and their keys: up to here torch's call by AMX is cheapest
AMX_ROWS = 8  # heads that share keys, from which AMX reads many keys for them the fastest
WIDE_HEAD = 256  # features
WIDE_TRAINING = 128
WIDE_KEYS = range(64, 513)
SPARSE_KEYS = 512  # keys from which skipping blocks pays, if enough of them are skipped
SPARSE_SHARE = 0.35  # of the pairs, computed
LONG_PAIRS = 1 << 22  # pairs from which the mask itself is what costs
LONG_SHARE = 0.6
LANES = 16  # queries of a vector of the native kernels
APART = 4  # times the pairs that `blocked` gathers may be those of lists of keys
HALF_KEYS = 2048  # below which lists always pay in half types, for which torch gathers slowly
SPARSE_PAIRS = 512 * 512  # from which a pattern pays on sets that were not measured
LISTED_KEYS = 1 << 22  # of all blocks together; longer lists cost more than they save
# Pairs from which torch's products of bfloat16 by AMX outweigh kernels without it: every key seen,
# forward and with gradients; earlier keys; and lists of keys, which pay again from more pairs on.
AMX_DENSE, AMX_TRAINED, AMX_CAUSAL, AMX_LISTED = 1 << 14, 1 << 18, 1 << 20, 1 << 18
# Pairs and features from which torch trains faster where ours have it, in the forward pass alone.
AMX_BACKWARD, AMX_WIDTH = 1 << 20, 64


# Sets on which the native kernels were measured. AVX-VNNI multiplies codes by instructions that
# AVX2 lacks; it shares AVX2's kernels of numbers, and AMX those of AVX-512 but for the attention of
# bfloat16.
MEASURED = ("amx", "avx512", "avxvnni", "avx2")
# Pairs of float32 from which they train heads of 64 features that see every key: a call from Python
# costs more than fewer do. Heads of WIDE_TRAINING features leave more to torch: from WIDE_PAIRS on
# products around kept weights are faster than kernels that form the weights twice, up to KEPT_KEYS
# keys (WIDE_HEAD features: any number) and KEPT_WEIGHTS weights of all heads.
TRAINED_PAIRS, TRAINED_WIDTH = 48 * 48, 64
WIDE_PAIRS, KEPT_KEYS, KEPT_WEIGHTS = 128 * 128, 512, 1 << 22
LONG_WIDE = 1024  # keys from which AVX2 is faster in torch's products, for WIDE_TRAINING features


def fewest_pairs(call: AttentionCall) -> int | None:
    """Return the pairs from which native kernels pay; None: never, where nothing was measured."""
    instructions = library.instructions() if library.available() else ""
    dense = type(call.pattern) in (Full, Causal)
    if instructions not in MEASURED:
        return None if dense else SPARSE_PAIRS  # what they skip outweighs the set of instructions
    trained = call.grad and call.dtype is torch.float32 and type(call.pattern) is Full
    if not trained or call.head_dim < TRAINED_WIDTH:
        return 1
    return WIDE_PAIRS if call.head_dim >= WIDE_TRAINING else TRAINED_PAIRS


def choose(call: AttentionCall, impl: str = "auto") -> Op:
    """Return the op for a call.

    Args:
        call: description of the attention to compute.
        impl: "auto", or an op by name, which is then used or refused, never replaced.

    Raises:
        ConfigError: for an unknown name.
        UnsupportedError: if the op named cannot compute the call.
    """
    ops = RECURRENCES if call.kernel.lane == "recurrence" else OPS
    if impl == "auto":
        return next(op for op in ranking(call) if not op.refuses(call))
    if impl in OPS and impl not in ops:
        names = ", ".join(map(repr, ops))
        raise UnsupportedError(
            f"impl={impl!r} cannot compute this: {type(call.kernel).__name__} is a recurrence, "
            f"which has no weights of pairs. Use impl='auto' or one of {names}."
        )
    if impl not in ops:
        raise unknown("impl", impl, ["auto", *ops])
    reasons = ops[impl].refuses(call)
    if reasons:
        raise UnsupportedError(
            f"impl={impl!r} cannot compute this: {'; '.join(reasons)}. Use impl='auto'."
        )
    return ops[impl]


_cached_choice = lru_cache(maxsize=PLANS)(choose)


def plan(call: AttentionCall, impl: str = "auto") -> Op:
    """Return the op that `choose` returns, from a cache."""
    if impl != "auto" or call.compiling:  # nothing to choose, or lengths may be symbols
        return choose(call, impl)
    return _cached_choice(call, impl)


def forget_plans() -> None:
    """Clear the cache of `plan`, after a change of the ops' supported cases."""
    _cached_choice.cache_clear()


def explain(call: AttentionCall, impl: str = "auto") -> str:
    """Return the op chosen and why each other one was not, a line each."""
    chosen = choose(call, impl)
    lines = [f"{chosen.name}: {chosen.about}"]
    for op in (RECURRENCES if call.kernel.lane == "recurrence" else OPS).values():
        if op is not chosen:
            reasons = op.refuses(call)
            lines.append(f"not {op.name}: {'; '.join(reasons) or _why_slower(op, call)}")
    return "\n".join(lines)


def ranking(call: AttentionCall) -> tuple[Op, ...]:
    """Return the fast ops, the one expected to be fastest first."""
    if call.kernel.lane == "recurrence":
        return (TOKEN, NATIVE_RECURRENCE, RECURRENCE)
    if call.kernel.lane != "pairs":
        return (NATIVE_SCAN, SCAN, MATMUL)
    if type(call.kernel) is not Softmax:
        return (MATMUL,)
    if call.compiling and torch.compiler.is_exporting():
        return (FUSED, MATMUL)  # at all lengths, or that of the example would limit the graph's
    if _prefers_decode(call):
        return (DECODE, FUSED, MATMUL)
    if _prefers_folded(call):
        return (FOLDED, FUSED, MATMUL)
    if _prefers_kept_weights(call):
        return (MATMUL, FUSED)
    sparse = {NATIVE: _prefers_native, FLEX: _prefers_flex, BLOCKED: _prefers_blocked}
    if (op := next((op for op, prefers in sparse.items() if prefers(call)), None)) is not None:
        return (op, FUSED, MATMUL)
    if _prefers_matmul(call):
        return (MATMUL, FUSED)
    return (FUSED, MATMUL)


def _prefers_decode(call: AttentionCall) -> bool:
    """The kernels for few queries pay where keys are masked, for several queries, in long texts."""
    # a graph must not depend on lengths, or each length would need another graph
    if call.grad or (call.compiling and call.queries > 1) or DECODE.refuses(call):
        return False
    if multiplies_by_amx(call):
        many = call.group > 1 and call.keys * call.num_heads > FEW_PAIRS
        if call.compiling or (many and call.group >= AMX_ROWS and call.queries <= FEW_QUERIES):
            return False
        return call.queries > 1 or many
    if call.queries > 1 or call.position.biases or not call.unrestricted:
        return True
    return not call.compiling and fewest_pairs(call) is not None


def _prefers_folded(call: AttentionCall) -> bool:
    """With few queries reading the keys is the cost, which torch's kernels for CUDA read once.

    On an H100 one query of 16 heads on 32,768 keys of one head took them a sixth of the time; with
    a mask torch leaves them.
    """
    reads_once = call.device == "cuda" and call.unrestricted and not call.position.biases
    if not call.compiling and multiplies_by_amx(call) and call.keys * call.num_heads <= FEW_PAIRS:
        return False
    return call.group > 1 and call.queries <= FEW_QUERIES and not reads_once


@lru_cache(maxsize=1)
def capabilities() -> frozenset[str]:
    """Return the CPU's instruction sets; none with older versions of torch, or without AVX-512."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return frozenset()  # torch was told to use less than the CPU has, or there is no more
    get_capabilities = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(name for name, present in get_capabilities().items() if present is True)


def multiplies_by_amx(call: AttentionCall) -> bool:
    """Return whether torch's kernels compute a call by AMX."""
    return call.dtype is torch.bfloat16 and call.device == "cpu" and "amx_bf16" in capabilities()


def _prefers_kept_weights(call: AttentionCall) -> bool:
    """Wide heads train by six products where the weights are kept, instead of seven."""
    plain = call.unrestricted and not call.position.biases and call.device == "cpu"
    if not (plain and call.grad and call.dtype is torch.float32) or call.compiling:
        return False
    if call.head_dim < WIDE_TRAINING:
        return False
    pairs = call.queries * call.keys
    few = call.head_dim >= WIDE_HEAD or call.keys <= KEPT_KEYS
    return pairs >= WIDE_PAIRS and few and call.num_heads * pairs <= KEPT_WEIGHTS


def _left_to_amx(call: AttentionCall) -> bool:
    if not multiplies_by_amx(call) or call.compiling:
        return False
    pairs = call.queries * call.keys
    if library.instructions() == "amx":
        wide = type(call.pattern) is Full and call.head_dim >= AMX_WIDTH
        return call.grad and wide and pairs >= AMX_BACKWARD
    if type(call.pattern) is Full:
        return pairs >= (AMX_TRAINED if call.grad else AMX_DENSE)
    if call.grad or band_of(call.pattern) not in (None, (None, 0)):
        return False  # windows are few pairs
    if type(call.pattern) is Causal:
        return pairs * (4 if call.group > 1 else 1) >= AMX_CAUSAL
    return pairs <= AMX_LISTED


def _left_to_avx2(call: AttentionCall) -> bool:
    exact = call.dtype is torch.float32 and type(call.pattern) is Full and not call.compiling
    wide = exact and call.head_dim >= WIDE_TRAINING and call.keys >= LONG_WIDE
    return wide and library.instructions() in ("avx2", "avxvnni")


def _prefers_native(call: AttentionCall) -> bool:
    """The kernels pay from a vector of queries on, unless keys lie so far apart that lists of
    those that 32 queries see are long.
    """
    if call.queries < LANES or NATIVE.refuses(call):
        return False
    fewest = fewest_pairs(call)
    if _left_to_amx(call) or _left_to_avx2(call):
        return False
    if fewest is None or (not call.compiling and call.queries * call.keys < fewest):
        return False
    if band_of(call.pattern) is not None:
        return not call.compiling or not call.pattern.dense
    if call.compiling:
        return False
    listed = 32 * int((call.pattern.layout(call.queries, call.keys, 32).touched > 0).sum())
    if listed > LISTED_KEYS:
        return False
    short = SPARSE_KEYS if call.dtype is torch.float32 else HALF_KEYS
    gathered = computed_pairs(call.pattern, call.queries, call.keys)
    return call.keys < short or 32 * listed <= APART * gathered


def _prefers_flex(call: AttentionCall) -> bool:
    """On CUDA every sparse pattern of a long sequence has its kernels."""
    sparse = not call.pattern.dense and call.keys >= SPARSE_KEYS
    return call.device == "cuda" and sparse and call.queries > FEW_QUERIES


def _prefers_blocked(call: AttentionCall) -> bool:
    """Skipping blocks pays where the pattern leaves most of a long sequence out."""
    if call.pattern.dense or call.device != "cpu" or call.keys < SPARSE_KEYS:
        return False
    if call.compiling:  # lengths may be symbols there
        return call.queries > FEW_QUERIES
    share = _computed_share(call)
    pairs = call.queries * call.keys
    return share <= SPARSE_SHARE or (pairs > LONG_PAIRS and share <= LONG_SHARE)


def _computed_share(call: AttentionCall) -> float:
    pairs = call.queries * call.keys
    return computed_pairs(call.pattern, call.queries, call.keys) / pairs


def _prefers_matmul(call: AttentionCall) -> bool:
    """One wide head at moderate lengths runs at the speed of the matrix product.

    So does training in float16 under a mask: torch's fused backward pass is slower there.
    """
    if call.device != "cpu" or call.queries <= FEW_QUERIES:
        return False
    if call.grad and call.dtype is torch.float16 and type(call.pattern) not in (Full, Causal):
        return call.keys < SPARSE_KEYS
    if call.grad and not call.compiling and call.queries * call.keys < WIDE_PAIRS:
        return False
    return call.head_dim >= WIDE_HEAD and WIDE_KEYS.start <= call.keys < WIDE_KEYS.stop


def _why_slower(op: Op, call: AttentionCall) -> str:
    if op is REFERENCE:
        return "it is the float64 specification, for tests"
    if op is MATMUL and call.kernel.lane != "pairs":
        return "it forms the weights of all pairs, which sums of features do not need"
    if op is MATMUL:
        return (
            f"pays on a CPU for heads of {WIDE_HEAD} features or more and {WIDE_KEYS.start} to "
            f"{WIDE_KEYS.stop - 1} keys; here {call.head_dim} features, {call.keys} keys on "
            f"{call.device}"
        )
    if op in (BLOCKED, FLEX):
        return _why_not_sparse(call)
    if op is NATIVE:
        return _why_not_native(call)
    if op is DECODE and call.grad:
        return "it has no gradients, as torch.no_grad() and torch.inference_mode() allow"
    if op is DECODE and fewest_pairs(call) is None:
        return f"not measured on {library.instructions()} for one query that sees all"
    if op is FOLDED and call.device == "cpu":
        return f"pays for at most {FEW_QUERIES} queries; here {call.queries}"
    return "slower for these sizes, as measured"


def _why_not_sparse(call: AttentionCall) -> str:
    if call.pattern.dense:
        return "the pattern leaves no region out"
    share = _computed_share(call)
    return (
        f"pays from {SPARSE_KEYS} keys on where at most {SPARSE_SHARE:.0%} of the pairs lie in "
        f"blocks it computes; here {call.keys} keys and {share:.0%}"
    )


def _why_not_native(call: AttentionCall) -> str:
    pairs, fewest = call.queries * call.keys, fewest_pairs(call)
    if fewest is None:
        return f"not measured on {library.instructions()} where all or all earlier keys are seen"
    if call.queries < LANES or pairs < fewest:
        return f"pays from {LANES} queries and {fewest} pairs on; here {call.queries} and {pairs}"
    return (
        "pays unless keys lie far apart, as it computes 32 neighbouring queries with each key that "
        "one of them sees"
    )
