"""Random specs beside the formula: outputs, gradients, padding, documents, streams.

A case is one seed. It draws a spec over all axes with unequal sizes, and what a layer of it gives
to texts in padded or packed rows, in every op and in pieces, must be what `formula.attention` gives
each text alone in float64. Beside it the bare operation is drawn, in half types and with NaN.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from suffice import Attention, AttentionSpec, attend, combine, encoders, kernels, mixing
from suffice import patterns as pt
from suffice import positions as po
from suffice.errors import ConfigError, SufficeError, UnsupportedError
from suffice.kernels import Kernel, Softmax
from suffice.layers import state as layer_state
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static
from suffice.memory.past import Infini, NoPast
from suffice.ops import OPS, AttentionCall, scan
from suffice.ops.native import attention as native_attention
from suffice.ops.sparse import blocked, plan, tiles
from suffice.patterns import Causal, Full, Pattern
from suffice.testing import Case as Checked
from suffice.testing import assert_close, conformance, drawn, normal
from tools.fuzz.damage import data_of
from tools.fuzz.formula import NoFormula, Parameters, attention, keys_of

F32, F64 = torch.float32, torch.float64
HALVES = (torch.bfloat16, torch.float16)
EPS = torch.finfo(F32).eps
ROUNDINGS = 100  # float32 may be off by so much of what rounding its inputs moves the formula


# --- kernels of one's own --------------------------------------------------------------------


@dataclass(frozen=True)
class SweptRelu(Kernel):
    """w = relu(s) / n, n the keys that a query may see: weights alone, no shares."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.relu() / allowed.sum(dim=-1, keepdim=True)

    def own_weights(self, scores: Tensor, p: Parameters, n: int) -> Tensor:
        return torch.where(scores > 0, scores, 0.0) / len(scores)


@dataclass(frozen=True)
class SweptSigmoid(Kernel):
    """w = sigmoid(s - b) with a learned b of each head."""

    def learned(self, heads: int, head_dim: int) -> dict[str, Tensor]:
        return {"offsets": torch.zeros(heads)}

    def weights(self, scores: Tensor, allowed: Tensor, offsets: Tensor) -> Tensor:
        return (scores - offsets[:, None, None]).sigmoid()

    def own_weights(self, scores: Tensor, p: Parameters, n: int) -> Tensor:
        return 1 / (1 + (p["offsets"][n] - scores).exp())


@dataclass(frozen=True)
class SweptDistance(Kernel):
    """A softmax of minus the squared distances: scores that are no products."""

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return -scale * torch.cdist(q, k).square()

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    def own_scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return -scale * ((k - q) * (k - q)).sum(1)

    def own_weights(self, scores: Tensor, p: Parameters, n: int) -> Tensor:
        return scores.exp() / scores.exp().sum()


# --- draws -----------------------------------------------------------------------------------


class Draw(random.Random):
    """A random state with the draws that are made most."""

    def chance(self, share: float) -> bool:
        return self.random() < share

    def upto(self, most: int) -> int:
        """Return a whole number from 1."""
        return self.randint(1, max(most, 1))

    def any_of(self, *values: Any) -> Any:
        return self.choice(values)


def length_of(pick: Draw, theme: str) -> int:
    """Return tokens: few as a rule, so that loops are short, and some past blocks of 64."""
    if theme in ("sums", "mixed") and pick.chance(0.3):
        return pick.randint(*{"sums": (130, 200), "mixed": (66, 100)}[theme])
    return pick.randint(*pick.any_of(*((2, 9),) * 5, *((6, 20),) * 3, (14, 40), (64, 100)))


LANES = ("sums", "recurrence")
THEMES = ("pairs",) * 5 + ("whole", "gates", "mixed", "mixed", "past") + LANES * 2


def single(pick: Draw, length: int) -> Pattern:
    """Return a pattern of one kind."""
    few, columns, first = pick.upto(max(2, length // 3)), pick.upto(5), pick.randint(0, 2)
    rows = -(-length // columns) + pick.randint(0, 1)
    side = pick.upto(min(rows, columns))
    return pick.any_of(
        Full(), Causal(), pt.Window(few), pt.Dilated(pick.upto(4), pick.randint(2, 3)),
        pt.Strided(few), pt.Global(pick.upto(3)), pt.Random(pick.upto(4), seed=pick.randint(-2, 5)),
        pt.Random(few, length=length + pick.randint(0, 3), seed=pick.randint(0, 1 << 70)),
        pt.Block(few), pt.Fixed(few + 1, pick.upto(few)),
        pt.Block(few, pick.any_of(Causal(), pt.Window(2), pt.Random(2), pt.Global(1))),
        pt.Neighbourhood(rows, columns, side, first),
        pt.ShiftedWindows(rows, columns, side, pick.randint(0, side - 1), first),
    )  # fmt: skip


def one_pattern(pick: Draw, length: int) -> Pattern:
    """Return a pattern of up to three parts, causal as a rule."""
    if pick.chance(0.3):
        return pick.any_of(Full(), Causal(), Causal())
    parts = [single(pick, length) for _ in range(pick.any_of(1, 1, 2, 2, 3))]
    joined = reduce(pick.any_of(and_, or_, or_), parts)
    return joined & Causal() if pick.chance(0.6) else joined


def pattern_of(pick: Draw, length: int, heads: int) -> Pattern:
    """Return a pattern for all heads, or one for each."""
    if pick.chance(0.15):
        several = [one_pattern(pick, length) for _ in range(2)]
        return pt.PerHead(tuple(pick.choice(several) for _ in range(heads)))
    return one_pattern(pick, length)


def position_of(pick: Draw, width: int, length: int) -> po.Position:
    """Return a position that rotates heads of this width, or biases products."""
    every = () if width % 2 else (None, None)
    features = pick.any_of(*every, 2 * pick.upto(width // 2))
    trained, factors = pick.any_of(4, 16, 64), [pick.uniform(0.5, 3.0) for _ in range(width)]
    scaling = pick.any_of(
        None, None, po.LinearScaling(3.0), po.NTKScaling(2.5), po.FastPairs(pick.any_of(0.3, 0.75)),
        po.Llama3Scaling(4.0, length=trained, low=0.3, high=1.5),
        po.YarnScaling(4.0, length=trained, fast=4.0, slow=0.2, truncate=pick.chance(0.5)),
        po.YarnScaling(2.0, length=64, fast=8.0, attention_factor=1.3),
        po.PairScaling(tuple(factors[: max((features or width) // 2, 1)]), 1.2),
    )  # fmt: skip
    theta, layout = pick.any_of(10_000.0, 50.0), pick.any_of("half", "interleaved")
    rope = po.Rope(theta, layout, features, scaling, pick.any_of(None, length))
    axial = po.AxialRope(pick.upto(5), theta=pick.any_of(100.0, 10.0), first=pick.randint(0, 2))
    rotary = (rope, rope) if width % 4 else (rope, rope, axial)
    return pick.any_of(po.NoPosition(), po.NoPosition(), po.Alibi(), *rotary)


def mixing_of(pick: Draw, length: int) -> mixing.Mixing:
    """Return a map of the values along the text."""
    longest, width = length + pick.randint(0, 2), pick.upto(length // 2)
    options = {"per_head": pick.chance(0.5), "bias": pick.chance(0.7)}
    return pick.any_of(
        mixing.Alignment(longest, **options), mixing.BlockAlignment(width, **options),
        mixing.BandedAlignment(longest, width, **options),
        mixing.ToeplitzAlignment(width, **options),
        mixing.LowRank(longest, pick.upto(longest), pick.chance(0.5), pick.chance(0.5)),
    )  # fmt: skip


def kernel_of(pick: Draw, heads: int, theme: str) -> Kernel:
    """Return a kernel, of sums or recurrences where these are the theme."""
    taps, seed = pick.any_of(None, 2, 4), pick.randint(0, 3)
    decays = pick.any_of(None, tuple(pick.any_of(0.4, 0.9, 1.0) for _ in range(heads)))
    pairs = (Softmax(), Softmax(True), Softmax(cap=1.5), Softmax(True, 3.0))
    own = (SweptRelu(), SweptSigmoid(), SweptDistance())
    sums = (
        kernels.Elu(),
        kernels.Favor(pick.upto(9), seed),
        kernels.Rfa(pick.any_of(32, 48), seed),
    )
    recurrent = (
        kernels.Decayed(decays=decays, convolution=taps), kernels.Decayed("token", None, taps),
        kernels.Decayed("feature", None, taps), kernels.Delta(pick.chance(0.5), taps),
    )  # fmt: skip
    lanes = {"sums": sums, "recurrence": recurrent}
    return pick.choice(lanes.get(theme, (*pairs, *pairs[:2], *own)))


def encoder_of(pick: Draw, theme: str) -> encoders.Encoder:
    """Return an encoder."""
    mla = encoders.MLA(
        pick.upto(6), 2 * pick.upto(3), pick.any_of(None, 3, 5), pick.any_of(None, 4)
    )
    standard, latent, forgetting = encoders.Standard(), encoders.Latent(), encoders.Forgetting()
    columns = (encoders.Optimised(), encoders.Efficient())
    several = (standard, standard, *columns, latent, mla)
    return forgetting if theme == "gates" else pick.choice(several)


def combine_of(pick: Draw, theme: str) -> combine.Combine:
    """Return a combination of the heads."""
    per, activation = pick.any_of("feature", "head"), pick.any_of("sigmoid", "silu")
    gated = combine.Gated(per, activation, pick.chance(0.5), pick.any_of(1e-6, 1e-2))
    differential = combine.Differential(pick.randint(0, 3), pick.any_of(1e-5, 1e-2))
    concat, exclusive = combine.Concat(), combine.Exclusive()
    if theme in (*LANES, "past"):
        return pick.any_of(concat, gated)
    return pick.any_of(concat, exclusive, gated, exclusive if theme == "gates" else differential)


def norm_of(pick: Draw) -> encoders.Norm:
    """Return a norm of queries and keys."""
    by_head = encoders.HeadRMS(pick.any_of(1e-6, 0.1)), encoders.QKVNorm(), encoders.HeadLayerNorm()
    none = encoders.NoNorm()
    return pick.any_of(none, none, none, *by_head, encoders.ProjectionRMS(1e-3))


def spec_of(pick: Draw) -> tuple[AttentionSpec, int]:
    """Return a random spec and a length; ConfigError if what was drawn does not go together.

    The theme says how queries read keys. Axis after axis is drawn, and again where it does not go
    with those before; in one of five the first draws stay.
    """
    theme, first = pick.choice(THEMES), pick.chance(0.2)
    length = length_of(pick, theme)
    mixes = {"whole": 0.8, "mixed": 1.0}.get(theme, 0.3)
    heads, width, tries = pick.any_of(1, 2, 2, 3, 4, 4, 6), pick.any_of(2, 3, 4, 4, 5, 6, 8, 16), 6
    groups = pick.choice([n for n in range(1, heads + 1) if heads % n == 0])
    wider, far, bias = pick.randint(0, 3), pick.chance(0.3), pick.chance(0.7)
    chosen: dict[str, Any] = {"combine": combine_of(pick, theme), "encoder": encoders.Standard()}
    maps, segment = chosen["combine"].maps, pick.upto(length // 2)
    usual = {"recurrence": Causal(), "gates": Causal(), "sums": pick.any_of(Full(), Causal())}
    near = pick.any_of(Causal(), pt.Window(segment) & Causal())
    usual |= {"whole": Full(), "past": pt.Block(segment) & Causal(), "mixed": near}

    def built(axes: dict[str, Any]) -> AttentionSpec:
        kv, encoder = groups * width * axes["combine"].maps, axes["encoder"]
        columns = isinstance(encoder, (encoders.Optimised, encoders.Efficient))
        own_width = heads * width * maps if far and not columns else kv + wider
        own_width = kv if columns and groups == heads else own_width
        source = {"d_source": own_width if columns else kv + 2 * bias} if axes.get("source") else {}
        shared = {} if isinstance(encoder, encoders.MLA) else {"num_kv_heads": groups}
        sizes = {"d_model": own_width, "num_heads": heads, "head_dim": width, "bias": bias}
        values = {name: value for name, value in axes.items() if name != "source"}
        return AttentionSpec(**sizes, **shared, **source, **values)

    def position() -> po.Position:
        rotary = getattr(chosen["encoder"], "rotary_dim", width)
        return position_of(pick, rotary, length)

    draws: dict[str, Callable[[], Any]] = {
        "pattern": lambda: usual.get(theme) or pattern_of(pick, length, heads * maps),
        "past": lambda: Infini(segment, pick.chance(0.5)) if theme == "past" else NoPast(),
        "encoder": lambda: encoder_of(pick, theme),
        "kernel": lambda: kernel_of(pick, heads, theme),
        "mixing": lambda: mixing_of(pick, length) if pick.chance(mixes) else mixing.NoMixing(),
        "norm": lambda: norm_of(pick),
        "position": position,
        "scale": lambda: pick.any_of(None, None, 0.3, 1.1),
        "dropout": lambda: pick.any_of(0.0, 0.0, 0.0, 0.2),
    }
    for name, draw in draws.items():
        for _ in range(tries):
            value = draw()
            try:
                built({**chosen, name: value})
            except ConfigError:
                if not first:
                    continue
            chosen[name] = value
            break
    crosses = type(chosen.get("pattern")) is Full and pick.chance(0.6)
    if crosses and not first and not built(chosen).refuses_source():
        chosen["source"] = True
    return built(chosen), length


# --- rows ------------------------------------------------------------------------------------


class Text(NamedTuple):
    """Where a text stands: its row, and the places of its queries and of its keys."""

    row: int
    at: list[int]
    keys: list[int]


class Rows(NamedTuple):
    """Rows of texts: the arguments of the layer, and the texts."""

    data: dict[str, Tensor]
    texts: list[Text]
    batch: int
    length: int
    mask: Tensor | None = None

    def of_texts(self) -> Tensor:
        """Return which places hold a text, bool [B, T]."""
        made = torch.zeros(self.batch, self.length, dtype=torch.bool)
        for text in self.texts:
            made[text.row, text.at] = True
        return made


PADDED = ("left", "right", "inside", "hidden row")
KINDS = (*PADDED, "documents", "padded documents", "mask")


def numbers_of(pick: Draw, batch: int, length: int) -> Tensor:
    """Return the numbers of documents, runs of random lengths."""
    starts = [[t > 0 and pick.chance(0.25) for t in range(length)] for _ in range(batch)]
    return torch.tensor(starts).cumsum(1)


def valid_of(pick: Draw, kind: str, batch: int, length: int) -> Tensor:
    """Return the real tokens, another number in each row."""
    valid = torch.ones(batch, length, dtype=torch.bool)
    for row in valid:
        gone = pick.randint(0, length - 1)
        sides = {"left": range(gone), "right": range(length - gone, length), "hidden row": ()}
        row[list(sides.get(kind, pick.sample(range(length), gone)))] = False
    valid[-1] &= kind != "hidden row"
    return valid


def rows_of(pick: Draw, spec: AttentionSpec, kind: str, sizes: tuple[int, int, int]) -> Rows:
    """Return how texts stand in rows of T queries and S keys; ones that differ from row to row."""
    batch, queries, keys = sizes
    itself, data, mask = spec.d_source is None, {}, None
    numbers, of_queries = (torch.zeros(batch, n, dtype=torch.long) for n in (keys, queries))
    valid = torch.ones(batch, keys, dtype=torch.bool)
    if kind == "mask":
        mask = torch.tensor(
            [pick.chance(0.7) for _ in range(batch * spec.query_heads * queries * keys)]
        )
        data["mask"] = mask.view(batch, spec.query_heads, queries, keys)
        data["mask"] = data["mask"][:, : pick.any_of(1, spec.query_heads)]
        mask = data["mask"].expand(-1, spec.query_heads, -1, -1)
    if "documents" in kind:
        numbers, of_queries = (numbers_of(pick, batch, n) for n in (keys, queries))
        of_queries = numbers if itself else of_queries
        data = {"segments": of_queries, "source_segments": numbers}
        if itself:  # a number that comes again is another document
            data = {"segments": numbers % 2}
    if kind in PADDED or "padded" in kind:
        valid = valid_of(pick, kind, batch, keys)
        data["valid"] = valid
    texts = []
    for row in range(batch):
        for number in of_queries[row].unique().tolist():
            seen = ((numbers[row] == number) & valid[row]).nonzero().flatten().tolist()
            at = (of_queries[row] == number).nonzero().flatten().tolist()
            texts.append(Text(row, seen if itself else at, seen))
    return Rows(data, [text for text in texts if text.at], batch, queries, mask)


def expected(
    spec: AttentionSpec, p: Parameters, x: Tensor, source: Tensor, rows: Rows, **more: Any
) -> Tensor:
    """Return the outputs [B, T, d_model] of each text alone; the output map's bias elsewhere."""
    nothing = p.get("o_proj.bias", x.new_zeros(spec.d_model)).detach()
    made = [list(row.unbind(0)) for row in nothing.expand(*x.shape[:2], -1)]
    for text in rows.texts:
        mask = None if rows.mask is None else rows.mask[text.row]
        mine = source[text.row, text.keys]
        out = attention(spec, p, x[text.row, text.at], mine, mask=mask, **more)
        for t, vector in zip(text.at, out, strict=True):
            made[text.row][t] = vector
    return torch.stack([torch.stack(row) for row in made])


def poisoned(pick: Draw, x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x with padding that nothing may read."""
    if valid is None:
        return x.clone()
    return x.masked_fill(~valid[..., None], pick.any_of(torch.nan, torch.inf, 1e30))


# --- the layer -------------------------------------------------------------------------------


@contextmanager
def in_small_pieces(yes: bool) -> Iterator[None]:
    """Cut work into pieces far below the usual size, so that short inputs have several."""
    small = [
        (blocked, "PIECE", 1 << 9), (blocked, "GATHERED", 1 << 9),
        (tiles, "PAIRS_AT_ONCE", 1 << 10), (scan, "NUMBERS", 1 << 10),
        (native_attention, "BLOCKS_AT_ONCE", 3), (layer_state, "MIXED_AT_ONCE", 7),
    ]  # fmt: skip
    cached = (plan.cut, native_attention._lists) if yes else ()
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in small if yes else ():
            assert getattr(module, constant) > value
            patch.setattr(module, constant, value)
        for function in cached:
            function.cache_clear()
        yield
    for function in cached:
        function.cache_clear()


Results = list[Tensor | None]


class Case:
    """A legal spec with numbers for a layer of it, the same in float32 and float64."""

    def __init__(self, pick: Draw, spec: AttentionSpec, length: int) -> None:
        self.pick, self.spec, self.length = pick, spec, length
        self.batch, self.itself = 2 if length > 24 else 3, spec.d_source is None  # noqa: PLR2004
        self.keys = length
        if not self.itself:
            self.keys = min(pick.upto(length + 2), spec.mixing.max_length or length + 2)
        self.layers: dict[tuple[str, torch.dtype], Attention] = {}
        first = drawn(self.layer("auto", F32), seed=pick.randrange(1 << 20))
        self.tensors = {name: tensor.to(F64) for name, tensor in first.state_dict().items()}
        self.parameters = [name for name, _ in first.named_parameters()]
        self.small = pick.chance(0.5)
        self.x = self._normal(self.batch, length, spec.d_model)
        self.source = self.x if self.itself else self._normal(self.batch, self.keys, spec.d_source)

    def _normal(self, *shape: int) -> Tensor:
        return normal(*shape, seed=self.pick.randrange(1 << 20), dtype=F32).to(F64)

    def layer(self, impl: str, dtype: torch.dtype) -> Attention:
        """Return the layer in evaluation."""
        if (impl, dtype) not in self.layers:
            layer = Attention(self.spec, impl=impl, dtype=F32)
            if self.layers:
                layer.load_state_dict(self.layers["auto", F32].state_dict())
            self.layers[impl, dtype] = layer.to(dtype).eval()
        return self.layers[impl, dtype]

    def ops(self, data: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
        """Return the names of the ops that take a call, "auto" before them."""
        spec = self.spec
        if spec.lane == "recurrence":
            return ["auto", "reference"]
        call = AttentionCall.of(
            spec, self.length, spec.mixing.reads(self.keys), plain=not data, dtype=dtype,
            pairwise=bool({"mask", "segments"} & data.keys()),
            padding=data.keys() == {"valid"} and spec.pattern in (Full(), Causal()),
        )  # fmt: skip
        return ["auto", *(name for name, op in OPS.items() if not op.refuses(call))]

    def formula(
        self, rows: Rows, slope: Tensor | None, *, noise: float = 0.0, **more: Any
    ) -> Results:
        """Return the outputs of the formula, then gradients of x, the source and the parameters.

        With noise all numbers are off by as much as float32 rounds them, and so are all results.
        """

        def near(t: Tensor) -> Tensor:
            return (t * (1 + noise * self._normal(*t.shape))).to(F32) if noise else t.clone()

        sources = [self.x] if self.itself else [self.x, self.source]
        sources = [near(one).requires_grad_(slope is not None) for one in sources]
        p = {name: near(tensor) for name, tensor in self.tensors.items()}
        sources += [p[name].requires_grad_(slope is not None) for name in self.parameters]
        x = sources[0][: rows.batch, : rows.length]
        want = expected(self.spec, p, x, x if self.itself else sources[1], rows, **more)
        if slope is None or not want.requires_grad:
            return [want, *(None for _ in sources)]
        return [want, *torch.autograd.grad(want, sources, slope, allow_unused=True)]

    def whole(self, kind: str) -> None:
        """Every op in float64 and float32: outputs, and gradients of x, source and parameters."""
        rows = rows_of(self.pick, self.spec, kind, (self.batch, self.length, self.keys))
        slope = self._normal(*self.x.shape) * rows.of_texts()[..., None]
        want = self.formula(rows, slope)
        names = ["output", "x", *(() if self.itself else ("source",)), *self.parameters]
        for dtype in (F64, F32):
            for op in self.ops(rows.data, dtype):
                trains = op not in OPS or OPS[op].trains
                layer = self.layer(op, dtype)
                mine = poisoned(self.pick, self.source, rows.data.get("valid")).to(dtype)
                inputs = [mine] if self.itself else [self.x.to(dtype, copy=True), mine]
                with in_small_pieces(self.small), torch.set_grad_enabled(trains):
                    out = layer(*(one.requires_grad_(trains) for one in inputs), **rows.data)
                    found: Results = [out]
                    if trains:
                        inputs += layer.parameters()
                        into = slope.to(dtype)
                        found += torch.autograd.grad(out, inputs, into, allow_unused=True)
                what = f"{kind} by {op} in {dtype}"
                self.compare(what, names, found, want, lambda: self.formula(rows, slope, noise=EPS))

    def compare(
        self,
        what: str,
        names: Sequence[str],
        found: Results,
        want: Results,
        again: Callable[[], Results],
    ) -> None:
        """Compare results; float32 may be off by what rounding its inputs moves the formula."""
        nearby: list[Results] = []
        longest = self.batch * self.length * max(8 * self.length, self.spec.d_model, 32)
        for number, (name, got, wanted) in enumerate(zip(names, found, want, strict=False)):
            if wanted is None:  # nothing depends on it
                assert got is None or not got.any(), f"{what}, {name}: not 0"
                continue
            got = torch.zeros_like(wanted) if got is None else got
            try:
                assert_close(got, wanted, n=1 if got.dtype is F64 else longest)
            except AssertionError as error:
                moved = 0.0
                if got.dtype is F32 and got.isfinite().all():
                    nearby = nearby or [again() for _ in range(3)]
                    moved = max(float((one[number] - wanted).abs().max()) for one in nearby)
                if not (got - wanted).abs().max() <= ROUNDINGS * moved:
                    raise AssertionError(f"{what}, {name}: {error}; noise {moved:.1g}") from None

    def autocast(self) -> None:
        """Under autocast a layer is near, and learns alike if that is on in the backward pass."""
        rows = rows_of(self.pick, self.spec, "plain", (self.batch, self.length, self.keys))
        want, kernel = self.formula(rows, None)[0], self.spec.kernel
        ours = {"reference"} ^ OPS.keys() if kernel == Softmax() else {"scan"}  # own graphs
        given = [self.x] if self.itself else [self.x, self.source]
        for op in self.ops({}, F32):
            if op in OPS and not OPS[op].trains:
                continue
            layer, inputs = self.layer(op, F32), [x.to(F32, copy=True) for x in given]
            sources = [*(x.requires_grad_() for x in inputs), *layer.parameters()]
            with torch.autocast("cpu", torch.bfloat16), in_small_pieces(self.small):
                out = layer(*inputs)
                slope = self._normal(*out.shape).to(out.dtype)
                options = {"retain_graph": True, "allow_unused": True}
                inside = torch.autograd.grad(out, sources, slope, **options)
            off, size = (out.double() - want).norm(), want.norm().clamp(min=1.0)
            assert off < 0.25 * size, f"autocast by {op}, output: {off} of {size}"  # noqa: PLR2004
            if op in ours and not self.spec.past.reads:
                outside = torch.autograd.grad(out, sources, slope, **options)
                again = lambda outside=outside: list(outside)  # noqa: E731
                names = ["gradient"] * len(sources)
                self.compare(f"autocast by {op}", names, inside, outside, again)

    def later(self) -> None:
        """What stands after a token of a causal layer has no effect on it, NaN neither."""
        if not self.spec.pattern.causal or not self.itself:
            return
        at = self.pick.upto(self.length)
        rows = rows_of(self.pick, self.spec, "plain", (1, at, at))
        want = self.formula(rows, None)
        for dtype in (F64, F32):
            x = self.x[:1].to(dtype, copy=True)
            x[:, at:] = self.pick.any_of(torch.nan, 1e30, -3.0)
            found: Results = [self.layer("auto", dtype)(x)[:, :at]]
            again = lambda: self.formula(rows, None, noise=EPS)  # noqa: E731
            self.compare(f"future in {dtype}", ("output",), found, want, again)

    def stream(self) -> None:
        """A text in pieces, whatever the memory; rows move half way, or drafts come and go."""
        pick, spec, dtype = self.pick, self.spec, self.pick.any_of(F64, F32, F32)
        memory = memory_of(pick, spec, self.length)
        blocked_too = ("blocked",) if "blocked" in self.ops({}, dtype) else ()
        layer = self.layer(pick.any_of("auto", "auto", *blocked_too), dtype)
        try:
            state = layer.state(memory)
        except ConfigError:
            assert memory != Dynamic() or not spec.pattern.causal
            return
        near, kinds = None, ("plain", *(kind for kind in PADDED if kind != "right"))
        if memory.window is not None:
            kinds = ("plain",) if memory.sinks else ("plain", "left")
            if spec.pattern.reach is None or spec.pattern.reach > memory.window:
                near = (memory.window, memory.sinks)
        learning = memory.window is None and not memory.lossy and pick.chance(0.4)
        then = pick.any_of("nothing", "select", "select" if learning else "drop")
        rows = rows_of(pick, spec, pick.choice(kinds), (self.batch, self.length, self.length))
        order = torch.arange(self.batch)
        if then == "select":
            order = torch.tensor([pick.randrange(self.batch) for _ in order])
        slope = self._normal(*self.x.shape) * rows.of_texts()[order][..., None]
        of_rows = torch.zeros_like(slope).index_add(0, order, slope) if learning else None

        def formula(noise: float = 0.0) -> Results:
            want, of_x, *_ = self.formula(rows, of_rows, noise=noise, near=near)
            return [want[order], of_x]

        what, want = f"stream with {memory}, then {then}, in {dtype}", formula()
        valid = rows.data.get("valid")
        mine = poisoned(pick, self.x, valid).to(dtype).requires_grad_(learning)
        draws = pick.getstate()
        with torch.set_grad_enabled(learning), in_small_pieces(self.small):
            try:
                found: Results = [self.read(layer, state, mine, valid, then, order)]
            except UnsupportedError:  # an op by name that has no masks of single pairs
                assert layer.impl != "auto"
                return
            if learning:
                found += torch.autograd.grad(found[0], mine, slope.to(dtype))
        if memory.lossy:  # near, and what is computed from the dequantised numbers
            off = (found[0].double() - want[0]).norm()
            assert off < 0.25 * want[0].norm().clamp(min=1.0), what  # noqa: PLR2004
            if then == "drop":  # what is dropped may have pushed others into codes
                return
            pick.setstate(draws)
            slow = self.layer("reference", dtype)
            with torch.no_grad():
                want = [self.read(slow, slow.state(memory), mine, valid, then, order).double()]
        self.compare(what, ("output", "x"), found, want, lambda: formula(EPS))

    def read(
        self,
        layer: Attention,
        state: Any,
        x: Tensor,
        valid: Tensor | None,
        then: str,
        order: Tensor,
    ) -> Tensor:
        """Return the outputs of the pieces of a text."""
        pick, start, outs = self.pick, 0, []
        pieces = pick.any_of((1,), (1, 1, 1, 2, 5), (1, 3, 9), (7, 40, 70), (1, 1, 2, 12))
        half = pick.randrange(self.length)
        while start < self.length:
            if start >= half and then == "drop":
                if start + 2 <= (self.spec.max_length or start + 2):
                    state = self.with_drafts_dropped(layer, state, valid)
                then = "nothing"
            part = slice(start, min(start + pick.choice(pieces), self.length))
            if then == "select" and part.stop > half:
                x, outs = x[order], [out[order] for out in outs]
                valid = None if valid is None else valid[order]
                if start:
                    state.select(order)
                then = "nothing"
            here = None if valid is None else valid[:, part]
            outs.append(layer(x[:, part], state=state, valid=here))
            start = part.stop
        return torch.cat(outs, 1)

    def with_drafts_dropped(self, layer: Attention, state: Any, valid: Tensor | None) -> Any:
        """Return the state after two drafts were dropped, or a copy where that is refused."""
        drafts = self._normal(self.batch, 2, self.spec.d_model).to(layer.o_proj.weight.dtype)
        before, real = copy.deepcopy(state), torch.ones(self.batch, 2, dtype=torch.bool)
        layer(drafts, state=state, valid=None if valid is None else real)
        if state.can_drop(2):
            state.drop_last(2)
            return state
        memory = state.memory
        kept = self.spec.lane != "pairs" or "past" in self.spec.beyond_pairs or memory.lossy
        assert kept or getattr(memory, "spare", 2) < 2, "a memory must drop its spare"  # noqa: PLR2004
        with pytest.raises(ConfigError, match="drop_last"):
            state.drop_last(2)
        return before


def memory_of(pick: Draw, spec: AttentionSpec, length: int) -> Memory:
    """Return a memory, exact ones as a rule."""
    if spec.lane != "pairs":
        return Dynamic()
    reach = spec.pattern.reach
    window = reach if reach and pick.chance(0.6) else pick.upto(length)
    rolling = Rolling(window, sinks=pick.any_of(0, 0, 2), spare=pick.any_of(0, 2))
    recent, inner = pick.randint(0, 5), pick.any_of(Dynamic(), Dynamic(), rolling)
    rounded = Quantised(inner, block=2 * pick.upto(4), recent=recent)
    return pick.any_of(Dynamic(), Static(length + 2), rolling, rolling, rounded, rounded)


# --- the bare operation ----------------------------------------------------------------------

HEADS, WIDTH, BATCH = 4, 16, 3


def restricted(pick: Draw, kind: str, allowed: Tensor) -> tuple[dict[str, Any], Tensor]:
    """Return the arguments that mask a call, and the pairs [B, H, T, S] that it allows."""
    batch, _, queries, keys = allowed.shape
    if kind in PADDED:
        valid = valid_of(pick, kind, batch, keys)
        return {"valid": valid}, allowed & valid[:, None, None, :]
    if kind == "documents":
        of_keys = numbers_of(pick, batch, keys)
        of_queries = of_keys[:, -queries:] if queries <= keys else numbers_of(pick, batch, queries)
        together = of_queries[:, None, :, None] == of_keys[:, None, None, :]
        return {"segments": (of_queries, of_keys)}, allowed & together
    if kind == "mask":
        mask = normal(batch, HEADS, queries, keys, seed=pick.randrange(1 << 20)) > -0.5  # noqa: PLR2004
        mask[:, :, : queries // 3] = False
        return {"mask": mask}, allowed & mask
    return {}, allowed


def by_formula(
    inputs: Sequence[Tensor], allowed: Tensor, slope: Tensor, *, scale: float, cap: float | None
) -> list[Tensor]:
    """Return softmax attention and the gradients of its product with `slope`, in float64.

    The inputs are q, k, v and, where heads have sinks, those.
    """
    sources = [x.detach().double().clone().requires_grad_() for x in inputs]
    q, k, v, *sinks = sources
    k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (k, v))
    scores = scale * (q @ k.mT)
    scores = (scores if cap is None else cap * (scores / cap).tanh()).masked_fill(
        ~allowed, -torch.inf
    )
    if sinks:
        sink = sinks[0][:, None, None].expand(*scores.shape[:3], 1)
        out = torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v
    else:
        empty = ~allowed.any(-1, keepdim=True)
        out = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v
    return [out.detach(), *torch.autograd.grad(out, sources, slope.double())]


def check_ops(pick: Draw) -> None:
    """Every op is the formula in four types; a NaN reaches the queries that may see its key."""
    keys = pick.any_of(pick.upto(40), pick.upto(300), 64, 65, 128, 129, 257)
    queries = pick.any_of(1, pick.upto(8), keys, pick.upto(keys), keys + 7)
    groups = pick.any_of(4, 2, 1)
    window, hubs = pt.Window(pick.upto(keys)) & Causal(), pt.Global(3) & pt.Window(pick.upto(9))
    drawn_patterns = (pattern_of(pick, keys, HEADS) for _ in range(3))
    pattern = pick.any_of(*drawn_patterns, window, hubs)  # behind hubs most queries see nothing
    kind = pick.any_of("plain", "plain", *KINDS[:5], "mask")
    dtype, odd = pick.any_of(F32, F32, F64, *HALVES), pick.any_of("hidden", "k", "v", "none")
    seed, width = pick.randrange(1 << 20), pick.any_of(WIDTH, 12)
    scale, cap = pick.any_of(WIDTH**-0.5, 0.4), pick.any_of(None, None, 2.0)
    q = normal(BATCH, HEADS, queries, WIDTH, seed=seed, dtype=dtype)
    k = normal(BATCH, groups, keys, WIDTH, seed=seed + 1, dtype=dtype)
    v = normal(BATCH, groups, keys, width, seed=seed + 2, dtype=dtype)
    slope = normal(BATCH, HEADS, queries, width, seed=seed + 3, dtype=dtype)
    sinks = (
        [normal(HEADS, seed=seed + 4, dtype=dtype)]
        if pick.chance(0.3) and dtype not in HALVES
        else []
    )
    places = range(keys - queries, keys)
    allowed = torch.zeros(HEADS, queries, keys, dtype=torch.bool)
    for head in range(HEADS):
        for row, seen in zip(allowed[head], keys_of(pattern, places, keys, head), strict=True):
            row[seen] = True
    data, allowed = restricted(pick, kind, allowed.expand(BATCH, -1, -1, -1))
    want = by_formula((q, k, v, *sinks), allowed, slope, scale=scale, cap=cap)
    sees_odd = torch.zeros(BATCH, HEADS, queries, dtype=torch.bool)
    if odd == "hidden" and "valid" in data:
        gone = ~data["valid"][:, None, :, None]
        k, v = k.masked_fill(gone, torch.nan), v.masked_fill(gone, torch.inf)
    elif odd in ("k", "v"):
        head, at = groups - 1, int(allowed[-1, -1].any(0).int().argmax())
        of_heads = slice(head * HEADS // groups, None)
        (k if odd == "k" else v)[-1, head, at, 5] = torch.nan
        sees_odd[-1, of_heads] = allowed[-1, of_heads, :, at]
    call = AttentionCall(
        queries=queries, keys=keys, num_heads=HEADS, num_kv_heads=groups, head_dim=WIDTH,
        value_dim=width, scale=scale, pattern=pattern, plain=not data, dtype=dtype,
        kernel=Softmax(bool(sinks), cap), padding="valid" in data,
        pairwise=bool({"mask", "segments"} & data.keys()),
    )  # fmt: skip
    small = pick.chance(0.5)
    for name, op in OPS.items():
        if op.refuses(call):
            continue
        inputs = [x.detach().clone().requires_grad_(op.trains) for x in (q, k, v, *sinks)]
        extra = {"sinks": inputs[3]} if sinks else {}
        options = {"pattern": pattern, "impl": name, "scale": scale, "cap": cap, **extra, **data}
        with in_small_pieces(small):
            out = attend(*inputs[:3], **options)
            found = [out.detach()]
            if op.trains and not sees_odd.any():
                found += torch.autograd.grad(out, inputs, slope)
        what = f"operation by {name} in {dtype}: {kind}, odd {odd}, {queries} of {keys}, {pattern}"
        what += f", {groups} groups, values {width} wide, cap {cap}, scale {scale}, sinks {sinks}"
        assert torch.equal(found[0].isnan().any(-1), sees_odd), what
        found[0] = torch.where(sees_odd[..., None], want[0].to(dtype), found[0])
        for got, expected_value in zip(found, want, strict=False):
            try:
                assert_close(got, expected_value, n=keys)
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from None


# --- a case ----------------------------------------------------------------------------------

ADVICE = ("use ", "omit ", "make ", "give ", "change ", "choose ", "leave ", "legal: ")
OF_PATTERNS = ("mask_is_the_predicate", "pairs_are_counted", "layout_is_the_mask",
               "bounds_are_never_wrong", "parts_make_the_pattern", "spacing_is_kept")  # fmt: skip


def survives_json(pick: Draw, spec: AttentionSpec) -> None:
    """A spec is the same again from JSON; a damaged one is refused, or a spec that is."""
    data = json.loads(json.dumps(spec.to_json()))
    again = AttentionSpec.from_json(data)
    assert (again, repr(again), hash(again)) == (spec, repr(spec), hash(spec))
    try:
        damaged = AttentionSpec.from_json(data_of(pick, data))
    except SufficeError:
        return
    assert AttentionSpec.from_json(json.loads(json.dumps(damaged.to_json()))) == damaged


def check(state: random.Random) -> None:
    """Draw a spec and compare it; ConfigError if it is illegal, NoFormula if none is known."""
    pick = Draw(state.randrange(1 << 62))
    try:
        spec, length = spec_of(pick)
    except ConfigError as error:
        if not any(word in str(error).lower() for word in ADVICE):
            raise AssertionError(f"a refusal without advice: {error}") from None
        raise
    try:
        compare(pick, spec, length)
    except (NoFormula, AssertionError) as error:
        raise type(error)(f"{error} ({spec})") from None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error!s:.300} ({spec})") from error


def compare(pick: Draw, spec: AttentionSpec, length: int) -> None:
    """Compare a layer with the formula in whole rows and in pieces, and the bare operation."""
    length = min(length, spec.pattern.max_length or length)
    kinds = [kind for kind in KINDS if spec.keeps_documents or "documents" not in kind]
    if spec.lane != "pairs" or spec.mixing.mixes or spec.past.reads:
        kinds.remove("mask")
    if spec.d_source is not None and spec.mixing.mixes:
        kinds = [kind for kind in kinds if "documents" not in kind]
    survives_json(pick, spec)
    case = Case(pick, spec, length)
    case.whole("plain")
    case.whole(pick.choice(kinds))
    case.later()
    if case.itself:
        case.stream()
    if pick.chance(0.3):
        case.autocast()
    if pick.chance(0.3):
        check_ops(pick)
    if 1 < length < 10 and pick.chance(0.3):  # noqa: PLR2004
        heads = range(spec.pattern.heads or 1)
        mask = spec.pattern.mask(length, length).expand(len(heads), length, length)
        seen = [[row.nonzero().flatten().tolist() for row in of_head] for of_head in mask]
        assert seen == [keys_of(spec.pattern, range(length), length, head) for head in heads], (
            "mask"
        )
        for name in OF_PATTERNS:
            getattr(conformance, name)(Checked(spec=spec, length=length))
