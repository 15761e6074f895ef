"""Pairs of features at sizes that pass one chunk, piece and buffer, in the dtypes people use.

Each table holds every pair of values of its factors once (`pairwise`). Expected values come from
the formula in float64, written here, or from one whole call in float64; outputs, gradients and
streams are compared at all positions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from suffice import Attention, AttentionSpec, attend
from suffice.combine import Differential
from suffice.encoders import MLA, Efficient, HeadRMS, Latent
from suffice.errors import ConfigError
from suffice.kernels import Elu, Favor, Rfa
from suffice.layers import state as layer_state
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static
from suffice.memory.past import Infini
from suffice.mixing import Alignment, BandedAlignment, BlockAlignment, ToeplitzAlignment
from suffice.ops import OPS, AttentionCall, scan
from suffice.ops.native import attention as native_attention
from suffice.ops.sparse import blocked, plan, tiles
from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Full,
    Global,
    PerHead,
    Random,
    Strided,
    Window,
)  # fmt: skip
from suffice.positions import Alibi, Rope
from suffice.testing import assert_close, documents, drawn, normal, padded

from .pairwise import Case, pairwise

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
HEADS = 4


def name(case: Case) -> str:
    return "-".join(str(value).replace(" ", "").removeprefix("torch.") for value in case.values())


@contextmanager
def in_small_pieces(yes: bool) -> Iterator[None]:
    """Cut work into pieces far below the usual size, so that short inputs have several."""
    small = [
        (blocked, "PIECE", 1 << 9), (blocked, "GATHERED", 1 << 9),
        (tiles, "PAIRS_AT_ONCE", 1 << 12), (scan, "NUMBERS", 1 << 10),
        (native_attention, "BLOCKS_AT_ONCE", 3), (layer_state, "MIXED_AT_ONCE", 7),
    ]  # fmt: skip
    cached = (plan.cut, native_attention._lists)
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in small if yes else ():
            assert getattr(module, constant) > value
            patch.setattr(module, constant, value)
        for function in cached if yes else ():
            function.cache_clear()
        yield
    for function in cached if yes else ():
        function.cache_clear()


# --- the operation ---------------------------------------------------------------------------

PATTERNS = (
    Full(),
    Causal(),
    Window(70) & Causal(),
    Window(9),
    Dilated(5, 3) & Causal(),
    (Window(8) | Strided(16)) & Causal(),
    (Window(9) | Global(3)) & Causal(),
    Random(9, seed=3) | Global(2),
    Block(50),
    Global(3) & Window(9),  # most queries see nothing
    Block(64, Random(2, seed=1)) & Causal(),
    PerHead((Window(5) & Causal(), Causal(), Window(5) & Causal(), Full())),
)
LENGTHS = (
    (1, 1100),
    (7, 600),
    (40, 33),
    (70, 70),
    (130, 257),
    (300, 300),
    (700, 700),
)  # queries, keys
OP_FACTORS = {
    "pattern": PATTERNS,
    "kv_heads": (4, 2, 1),
    "lengths": LENGTHS,
    "data": ("plain", "padded", "hidden rows", "documents", "mask"),
    "odd": ("none", "masked", "key", "value"),
    "dtype": (F32, F64, BF16, F16),
    "pieces": (False, True),
}


def op_is_legal(case: Case) -> bool:
    return case["odd"] != "masked" or case["data"] in ("padded", "hidden rows")


def masks_of(case: Case, batch: int, queries: int, keys: int) -> tuple[dict, Tensor]:
    """Return the arguments that mask the call, and the allowed pairs: bool [B, H, T, S]."""
    allowed = case["pattern"].mask(queries, keys)
    allowed = allowed.expand(batch, HEADS, queries, keys)
    if case["data"] in ("padded", "hidden rows"):
        valid = padded(batch, keys, "inside", seed=1)
        valid[:, keys // 2 :] &= valid.flip(1)[:, keys // 2 :]
        if case["data"] == "hidden rows":
            valid[0] = False
        return {"valid": valid}, allowed & valid[:, None, None, :]
    if case["data"] == "documents":
        of_keys = (torch.arange(keys) * 5 // keys)[None].expand(batch, -1).contiguous()
        of_queries = (
            of_keys[:, -queries:] if queries <= keys else torch.zeros(batch, queries).long()
        )
        together = of_queries[:, None, :, None] == of_keys[:, None, None, :]
        return {"segments": (of_queries, of_keys)}, allowed & together
    if case["data"] == "mask":
        mask = normal(batch, HEADS, queries, keys, seed=5) > -0.5
        mask[:, :, : queries // 3] = False
        return {"mask": mask}, allowed & mask
    return {}, allowed


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, slope: Tensor
) -> tuple[Tensor, ...]:
    """Return softmax attention and the gradients of its product with `slope`, in float64."""
    inputs = [x.detach().double().clone().requires_grad_() for x in (q, k, v)]
    q, k, v = inputs
    k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~allowed, -torch.inf)
    empty = ~allowed.any(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    out = weights @ v
    return out.detach(), *torch.autograd.grad(out, inputs, slope.double())


ODD_KEYS = {**OP_FACTORS, "odd": ("key", "value"), "dtype": (F32,), "data": ("plain",)}
ODD_KEYS.update(kv_heads=(2,), pieces=(False,))
CASES = pairwise(OP_FACTORS, op_is_legal) + [
    dict(zip(ODD_KEYS, values, strict=True)) for values in product(*ODD_KEYS.values())
]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_op_is_the_formula(case):
    """Outputs and gradients; a NaN is seen by the queries of its heads that may see its key."""
    assert check_ops(case) >= 2


def check_ops(case: Case) -> int:
    """Compare every op that takes a case with the formula; return how many did."""
    (queries, keys), dtype, batch, groups = case["lengths"], case["dtype"], 3, case["kv_heads"]
    width = 16
    q = normal(batch, HEADS, queries, width, seed=1, dtype=dtype)
    k, v = (normal(batch, groups, keys, width, seed=s, dtype=dtype) for s in (2, 3))
    slope = normal(batch, HEADS, queries, width, seed=4, dtype=dtype)
    data, allowed = masks_of(case, batch, queries, keys)
    want = by_formula(q, k, v, allowed, slope)
    sees_odd = torch.zeros(batch, HEADS, queries, dtype=torch.bool)
    if case["odd"] == "masked":
        hidden = ~data["valid"][:, None, :, None]
        k, v = k.masked_fill(hidden, torch.nan), v.masked_fill(hidden, torch.inf)
    elif case["odd"] in ("key", "value"):
        head, at = groups - 1, int(allowed[-1, -1].any(0).int().argmax())
        of_heads = slice(head * HEADS // groups, None)
        (k if case["odd"] == "key" else v)[-1, head, at, 5] = torch.nan
        sees_odd[-1, of_heads] = allowed[-1, of_heads, :, at]
    call = AttentionCall(
        queries=queries, keys=keys, num_heads=HEADS, num_kv_heads=groups, head_dim=width,
        value_dim=width, scale=width**-0.5, pattern=case["pattern"], plain=not data,
        pairwise="mask" in data or "segments" in data, padding="valid" in data, dtype=dtype,
    )  # fmt: skip
    ran = 0
    for op_name, op in OPS.items():
        if op.refuses(call):
            continue
        inputs = [x.detach().clone().requires_grad_(op.trains) for x in (q, k, v)]
        with in_small_pieces(case["pieces"]):
            out = attend(*inputs, pattern=case["pattern"], impl=op_name, **data)
            results = [out.detach()]
            if op.trains and not sees_odd.any():
                results += torch.autograd.grad(out, inputs, slope)
        assert torch.equal(results[0].isnan().any(-1), sees_odd), op_name
        results[0] = torch.where(sees_odd[..., None], want[0].to(dtype), results[0])
        for got, expected in zip(results, want, strict=False):
            try:
                assert_close(got, expected, n=keys)
            except AssertionError as error:
                raise AssertionError(f"{op_name}: {error}") from error
        ran += 1
    return ran


# --- layers ----------------------------------------------------------------------------------

LONGEST = 320
SPECS: dict[str, dict] = {
    "causal": {"pattern": Causal(), "position": Rope()},
    "full": {},
    "window": {"pattern": Window(33) & Causal(), "position": Rope(layout="interleaved")},
    "sinks": {"pattern": (Window(20) | Global(3)) & Causal(), "position": Alibi()},
    "dilated": {"pattern": Dilated(5, 3) & Causal()},
    "per head": {
        "pattern": PerHead((Window(5) & Causal(), Causal(), Causal(), Dilated(3, 4) & Causal()))
    },
    "alignment": {"mixing": Alignment(LONGEST, per_head=True, init="orthogonal")},
    "causal alignment": {
        "pattern": Causal(), "mixing": Alignment(LONGEST, per_head=True, init="orthogonal"),
    },
    "banded": {"pattern": Causal(), "mixing": BandedAlignment(LONGEST, 9, init="glorot")},
    "toeplitz": {
        "pattern": Window(70) & Causal(), "position": Rope(),
        "mixing": ToeplitzAlignment(11, per_head=True, init="glorot"),
    },
    "blocks": {
        "pattern": Causal(), "encoder": Efficient(), "mixing": BlockAlignment(7, init="glorot"),
    },
    "latent": {"pattern": Causal(), "encoder": Latent(), "norm": HeadRMS()},
    "mla": {"pattern": Window(70) & Causal(), "encoder": MLA(8, 4), "position": Rope()},
    "differential": {"pattern": Causal(), "combine": Differential()},
    "elu": {"pattern": Causal(), "kernel": Elu(), "position": Rope()},
    "elu over all": {"kernel": Elu()},
    "favor": {"pattern": Causal(), "kernel": Favor(16)},
    "favor over all": {"kernel": Favor(16)},
    "rfa": {"pattern": Causal(), "kernel": Rfa(32)},
    "infini": {
        "pattern": Block(24) & Causal(), "position": Rope(), "past": Infini(24, delta=True),
    },
}  # fmt: skip
LAYER_FACTORS = {
    "spec": tuple(SPECS),
    "kv_heads": (4, 2, 1),
    "data": ("plain", "left", "inside", "hidden row", "documents"),
    "length": (33, 70, 300),
    "dtype": (F32, F64, BF16),
    "odd": (False, True),
    "pieces": (False, True),
}
BATCH, WIDTH = 3, 32


@cache
def spec_of_heads(name: str, kv_heads: int) -> AttentionSpec | None:
    """Return the spec, or None where it is illegal."""
    try:
        return AttentionSpec(d_model=WIDTH, num_heads=HEADS, num_kv_heads=kv_heads, **SPECS[name])
    except ConfigError:
        return None


def spec_of(case: Case) -> AttentionSpec:
    spec = spec_of_heads(case["spec"], case["kv_heads"])
    assert spec is not None
    return spec


def layer_is_legal(case: Case) -> bool:
    if case["odd"] and case["data"] in ("plain", "documents"):
        return False
    spec = spec_of_heads(case["spec"], case["kv_heads"])
    return spec is not None and (case["data"] != "documents" or spec.keeps_documents)


def layer_of(spec: AttentionSpec, impl: str = "auto", dtype: torch.dtype = F64) -> Attention:
    return drawn(Attention(spec, impl=impl, dtype=dtype), seed=2)


def rows_of(case: Case) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the arguments of the layer, and the positions of each text as an index of [B, T]."""
    length, data = case["length"], case["data"]
    if data == "documents":
        segments = documents(BATCH, length, seed=2) // (length // 9)  # some pass a chunk
        segments[0] = torch.arange(length) // 64  # and some begin with one
        apart = [(b, n) for b in range(BATCH) for n in segments[b].unique().tolist()]
        return {"segments": segments % 2}, [  # a number that comes again is another document
            torch.nn.functional.one_hot(torch.tensor(b), BATCH).bool()[:, None] & (segments == n)
            for b, n in apart
        ]
    valid = torch.ones(BATCH, length, dtype=torch.bool)
    if data in ("left", "inside"):
        valid = padded(BATCH, 9, data, seed=1).repeat_interleave(length // 9 + 1, 1)[:, :length]
    elif data == "hidden row":
        valid[1] = False
    apart = [torch.zeros_like(valid) for _ in range(BATCH)]
    for b in range(BATCH):
        apart[b][b] = valid[b]
    return ({} if data == "plain" else {"valid": valid}), [i for i in apart if i.any()]


def alone(layer: Attention, x: Tensor, texts: list[Tensor]) -> Tensor:
    """Return the outputs [B, T, M] of each text without anything beside it, 0 elsewhere."""
    parts = [layer(x[text][None])[0] for text in texts]
    index = torch.cat([text.nonzero() for text in texts]).unbind(1)
    return x.new_zeros(x.shape, dtype=parts[0].dtype).index_put(index, torch.cat(parts))


# each composition on documents that begin with a chunk and pass it, in the dtype of the kernels
PACKED = {"kv_heads": 2, "data": "documents", "length": 300, "dtype": F32, "odd": False}
LAYER_CASES = pairwise(LAYER_FACTORS, layer_is_legal) + [
    case for spec in SPECS if layer_is_legal(case := {"spec": spec, **PACKED, "pieces": False})
]


@pytest.mark.parametrize("case", LAYER_CASES, ids=name)
def test_a_layer_gives_each_text_what_it_gets_alone(case):
    """Every op in every dtype, outputs and gradients; hidden NaN is not read."""
    check_layer(case)


def check_layer(case: Case) -> None:
    """Compare a layer of every op that takes a case with the reference on each text alone."""
    spec, dtype, length = spec_of(case), case["dtype"], case["length"]
    data, texts = rows_of(case)
    real = torch.stack(texts).any(0)[..., None]
    slope = normal(BATCH, length, WIDTH, seed=7).masked_fill(~real, 0.0)
    x = normal(BATCH, length, WIDTH, seed=1)
    stored = F64 if dtype is F64 else F32
    autocast = torch.autocast("cpu", BF16) if dtype is BF16 else nullcontext()
    # what autocast rounds before an op is no error of the op
    reference = layer_of(spec, "reference", F32 if dtype is BF16 else F64)
    apart = x.to(reference.o_proj.weight.dtype).requires_grad_()
    with autocast:
        want = alone(reference, apart, texts)
        sources = [apart, *reference.parameters()]
        grads = torch.autograd.grad(want, sources, slope.to(want.dtype), allow_unused=True)
    want = [want.detach(), *grads]
    call = AttentionCall.of(
        spec, length, spec.mixing.reads(length), plain=not data, dtype=dtype,
        padding="valid" in data and spec.pattern in (Full(), Causal()),
    )  # fmt: skip
    names = [n for n, op in OPS.items() if not op.refuses(call) and op.trains]
    assert len(names) > 1
    if case["odd"]:
        x = x.masked_fill(~data["valid"][..., None], torch.nan)
    for op in ("auto", *names):
        layer = layer_of(spec, op, stored)
        mine = x.to(stored).requires_grad_()
        with in_small_pieces(case["pieces"]), autocast:
            out = layer(mine, **data)
            sources = [mine, *layer.parameters()]
            into = slope.to(out.dtype)
            grads = torch.autograd.grad(out, sources, into, retain_graph=True, allow_unused=True)
        outside = torch.autograd.grad(out, sources, into, allow_unused=True)
        assert out.isfinite().all()
        results = [out.masked_fill(~real, 0.0), *grads]
        for i, (got, expected) in enumerate(zip(results, want, strict=True)):
            if expected is None:
                assert got is None or not got.any()
            elif i and dtype is BF16:  # rounded at each map; but no more where autocast is on
                if "past" not in spec.beyond_pairs and (
                    spec.lane == "pairs" or op == "scan"
                ):  # own graphs
                    assert_close(got, outside[i - 1], n=length * WIDTH)
            else:
                try:
                    assert_close(got, expected, n=1 if dtype is BF16 else length * WIDTH)
                except AssertionError as error:
                    raise AssertionError(f"{op}: result {i}: {error}") from error


# --- streams ---------------------------------------------------------------------------------

PIECES = {  # of a text; few tokens at a time are what native kernels take without gradients
    "once": lambda n: [n],
    "one by one": lambda n: [n - 30, *[1] * 30],
    "odd": lambda n: [1, 7, 64, 1, n - 90, 1, 1, 8, 6, 1],
    "from nothing": lambda n: [*[1] * 40, n - 45, 5],
    "half way": lambda n: [
        n // 2,
        *[1] * min(100, n // 4),
        n - n // 2 - min(100, n // 4) - 9,
        1,
        8,
    ],
}
STREAM_FACTORS = {
    "spec": tuple(n for n in SPECS if n not in ("full", "elu over all", "favor over all")),
    "kv_heads": (4, 2, 1),
    "data": ("plain", "left", "inside", "hidden row"),
    "memory": ("dynamic", "static", "rolling", "short", "coded", "coded short"),
    "pieces": tuple(PIECES),
    "length": (96, 310, 900),
    "then": ("nothing", "select", "drop"),
    "kind": (F32, F64, BF16, "learning"),
    "odd": (False, True),
}
ORDER = torch.tensor([2, 0, 0])  # of rows, after a selection


def memory_of(case: Case) -> Memory:
    short = Rolling(case["length"] // 3, sinks=0 if case["data"] == "left" else 2, spare=3)
    return {
        "dynamic": Dynamic(), "static": Static(910), "short": short,
        "rolling": Rolling(spec_of(case).pattern.reach or 1, spare=3),
        "coded": Quantised(block=16, recent=9), "coded short": Quantised(short, block=16),
    }[case["memory"]]  # fmt: skip


def stream_is_legal(case: Case) -> bool:
    windowed, learning = keeps_a_window(case), case["kind"] == "learning"
    if not layer_is_legal({**case, "dtype": F32}):
        return False
    spec = spec_of(case)
    if learning and case["then"] == "drop":  # a copy cannot be kept of what has a graph
        return False
    if windowed and (learning or case["data"] in ("inside", "hidden row")):
        return False
    if learning and "coded" in case["memory"]:
        return False
    if case["memory"] == "rolling" and spec.pattern.reach is None:
        return False
    if case["length"] > (spec.max_length or case["length"]):
        return False
    return can_be_kept(spec, memory_of(case))


@cache
def can_be_kept(spec: AttentionSpec, memory: Memory) -> bool:
    try:
        layer_state.LayerState(spec, memory)
    except ConfigError:
        return False
    return True


def keeps_a_window(case: Case) -> bool:
    return case["memory"] in ("rolling", "short", "coded short")


def seen_through(spec: AttentionSpec, memory: Memory) -> AttentionSpec:
    """Return the spec whose whole call is what a stream with this memory gives."""
    window, reach = memory.window, spec.pattern.reach
    if window is None or (reach is not None and reach <= window):
        return spec
    near = Window(window) | Global(memory.sinks) if memory.sinks else Window(window)
    return replace(spec, pattern=spec.pattern & near)


def streamed(layer: Attention, memory: Memory, x: Tensor, valid: Tensor | None, case: Case):
    """Return the outputs of a text in pieces; half way rows move, or tokens come and go."""
    state, outs, start = layer.state(memory), [], 0
    pieces = PIECES[case["pieces"]](x.shape[1])
    for number, piece in enumerate(pieces):
        if number == len(pieces) // 2:
            if case["then"] == "select":
                x, outs = x[ORDER], [out[ORDER] for out in outs]
                valid = None if valid is None else valid[ORDER]
                if number:
                    state.select(ORDER)
            elif case["then"] == "drop":
                state = with_drafts_dropped(layer, state, x[:, :3] + 1.0, valid)
        part = slice(start, start + piece)
        outs.append(layer(x[:, part], state=state, valid=None if valid is None else valid[:, part]))
        start += piece
    return torch.cat(outs, dim=1)


def with_drafts_dropped(layer: Attention, state, drafts: Tensor, valid: Tensor | None):
    """Return the state after drafts that were read and dropped, or a copy where it must not be."""
    before = copy.deepcopy(state)
    drafts = drafts.nan_to_num()
    layer(drafts, state=state, valid=None if valid is None else torch.ones_like(valid[:, :3]))
    if state.can_drop(3):
        state.drop_last(3)
        return state
    kept = layer.spec.lane != "pairs" or "past" in layer.spec.beyond_pairs or state.memory.lossy
    assert kept, "a memory must be able to drop its spare"
    with pytest.raises(ConfigError, match="drop_last"):
        state.drop_last(3)
    return before


# each composition past one piece of everything, in a chunk behind a cache, then token by token
FAR = {**{name: values[:1] for name, values in STREAM_FACTORS.items()}, "spec": tuple(SPECS)}
FAR.update(pieces=("odd", "half way"), length=(900,), memory=("dynamic", "coded"), kv_heads=(2,))
STREAM_CASES = pairwise(STREAM_FACTORS, stream_is_legal) + [
    case
    for values in product(*FAR.values())
    if stream_is_legal(case := dict(zip(FAR, values, strict=True)))
]


@pytest.mark.parametrize("case", STREAM_CASES, ids=name)
def test_a_stream_gives_what_each_text_gets_alone(case):
    """Whatever the pieces, the memory and what happens between; drafts leave no trace."""
    check_stream(case)


def check_stream(case: Case) -> None:
    """Compare a stream in pieces with the reference on each text alone."""
    spec, memory, length, kind = spec_of(case), memory_of(case), case["length"], case["kind"]
    learning = kind == "learning"
    dtype = F32 if learning else kind
    data, texts = rows_of(case)
    x = normal(BATCH, length, WIDTH, seed=1)
    autocast = torch.autocast("cpu", BF16) if dtype is BF16 else nullcontext()
    reference = layer_of(seen_through(spec, memory), "reference", F32 if dtype is BF16 else F64)
    apart = x.to(reference.o_proj.weight.dtype).requires_grad_(learning)
    layer = layer_of(spec, dtype=F64 if dtype is F64 else F32)
    with torch.set_grad_enabled(learning), autocast:
        want = alone(reference, apart, texts)
        real = torch.stack(texts).any(0)
        if case["then"] == "select":
            real, want = real[ORDER], want[ORDER]
        mine = x.masked_fill(~data["valid"][..., None], torch.nan) if case["odd"] else x
        mine = mine.to(layer.o_proj.weight.dtype).requires_grad_(learning)
        got = streamed(layer, memory, mine, data.get("valid"), case)
    assert got.isfinite().all()
    got = got.masked_fill(~real[..., None], 0.0)
    if memory.lossy:  # near; and exactly what is computed from the dequantised numbers
        assert (got.double() - want.double()).norm() < 0.02 * want.double().norm()
        if case["then"] == "drop":  # tokens that are dropped may have pushed others into codes
            return
        with torch.no_grad(), autocast:
            slow = layer_of(spec, "reference", layer.o_proj.weight.dtype)
            want = streamed(slow, memory, mine, data.get("valid"), case)
            want = want.masked_fill(~real[..., None], 0.0)
    assert_close(got, want, n=1 if dtype is BF16 else 2 * length)
    if learning:
        slope = normal(*want.shape, seed=7)
        (expected,) = torch.autograd.grad(want, apart, slope)
        (of_x,) = torch.autograd.grad(got, mine, slope.to(got.dtype))
        assert_close(of_x, expected, n=2 * length)
