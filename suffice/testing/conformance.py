"""Conformance checks of a spec: patterns, padding, packing, dtypes, gradients and every op."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, SufficeError, check_known
from suffice.kernels import Softmax
from suffice.layers import Attention
from suffice.mixing import RowLayout
from suffice.patterns import Pattern
from suffice.spec import AttentionSpec
from suffice.testing.closeness import assert_close
from suffice.testing.inputs import BATCH, SIDES, Case, documents, gradients, padded

BLOCKS = (1, 2, 3, 64)  # block sizes to check layouts with


def mask_is_the_predicate(case: Case) -> None:
    """The mask matches `allowed` for each pair, for queries aligned with the last keys."""
    pattern, length = case.spec.pattern, case.length
    pairs = _pair_by_pair(pattern, length)
    for queries in {1, length - 1, length}:
        assert_close(pattern.mask(queries, length), pairs[..., length - queries :, :], "exact")
    at = torch.stack([torch.arange(length), torch.arange(length).flip(0)])
    rows = pattern.allowed(at[:, None, :, None], at[:, None, None, :])
    for row, positions in zip(rows.expand(2, -1, -1, -1), at, strict=True):
        want = pairs[..., positions, :][..., positions]
        assert_close(row.expand(row.shape[0], length, length), _heads(want), "exact")


def causal_patterns_look_back(case: Case) -> None:
    """A pattern that calls itself causal allows no later key."""
    late = case.spec.pattern.mask(case.length, case.length).triu(diagonal=1)
    if case.spec.pattern.causal and bool(late.any()):
        raise AssertionError(f"causal, but allows (head,) query, key {late.nonzero()[0].tolist()}")


def spacing_is_kept(case: Case) -> None:
    """Allowed pairs lie only at distances that are multiples of the pattern's spacing."""
    pattern, length = case.spec.pattern, case.length
    at = torch.arange(length)
    between = (at[:, None] - at[None, :]) % pattern.spacing != 0
    wrong = (pattern.mask(length, length) & between).nonzero()
    if len(wrong):
        raise AssertionError(f"spacing {pattern.spacing}, but allows {wrong[0].tolist()}")


def pairs_are_counted(case: Case) -> None:
    """The pattern counts exactly the pairs it allows to some head."""
    pattern, length = case.spec.pattern, case.length
    for queries in {1, length - 1, length}:
        want = _heads(pattern.mask(queries, length)).any(dim=0).sum().item()
        got = pattern.pairs(queries, length)
        if got != want:
            raise AssertionError(f"{got} pairs of {queries} queries, the mask has {want}")


def layout_is_the_mask(case: Case) -> None:
    """A layout classifies each block as empty, partial or full."""
    pattern, length = case.spec.pattern, case.length
    for queries in {1, length - 1, length}:
        mask = _heads(pattern.mask(queries, length))
        for block in BLOCKS:
            got = pattern.layout(queries, length, block)
            if got.block != block:
                raise AssertionError(f"asked for blocks of {block}, got blocks of {got.block}")
            want = [
                [int(part.any()) + int(part.all()) for part in rows.split(block, dim=2)]
                for rows in mask.split(block, dim=1)
            ]
            assert_close(got.touched, torch.tensor(want, dtype=torch.int8), "exact")


def bounds_are_never_wrong(case: Case) -> None:
    """The bounds of a rectangle hold for every pair in it."""
    pattern, length = case.spec.pattern, case.length
    mask = _heads(pattern.mask(length, length))
    at = torch.arange(length)
    spans = torch.combinations(at, with_replacement=True)  # first and last, included
    (q_first, q_last), (k_first, k_last) = spans[:, None].unbind(-1), spans[None].unbind(-1)
    bounds = pattern.bounds(q_first, q_last, k_first, k_last).expand(len(spans), len(spans))
    inside = ((spans[:, :1] <= at) & (at <= spans[:, 1:])).double()
    some = inside @ mask.any(dim=0).double() @ inside.T > 0
    every = inside @ (~mask.all(dim=0)).double() @ inside.T == 0
    for name, wrong in (("nothing", (bounds == 0) & some), ("everything", (bounds == 2) & ~every)):  # noqa: PLR2004
        if bool(wrong.any()):
            q, k = (spans[i].tolist() for i in wrong.nonzero()[0])
            raise AssertionError(f"queries {q}, keys {k}: said to hold {name}")


def parts_make_the_pattern(case: Case) -> None:
    """A pattern equals its terms, its heads and its stride-2 subsets."""
    pattern, length, heads = case.spec.pattern, case.length, case.spec.query_heads
    mask = pattern.mask(length, length)
    terms = torch.stack([_heads(term.mask(length, length)).any(dim=0) for term in pattern.terms()])
    assert_close(terms.any(dim=0), _heads(mask).any(dim=0), "exact")
    of_heads = torch.stack([part.mask(length, length) for part in pattern.of_heads(heads)])
    assert_close(of_heads, _heads(mask).expand_as(of_heads), "exact")
    for first in (0, 1):
        among = pattern.every(2, first).mask(*2 * [len(range(first, length, 2))])
        assert_close(among, mask[..., first::2, first::2], "exact")


def _pair_by_pair(pattern: Pattern, length: int) -> Tensor:
    single = [
        [pattern.allowed(torch.tensor([[q]]), torch.tensor([[k]])) for k in range(length)]
        for q in range(length)
    ]
    return torch.cat([torch.cat(row, dim=-1) for row in single], dim=-2)


def _heads(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 3 else mask[None]  # noqa: PLR2004


def stored_as_plain_data(case: Case) -> None:
    """A spec survives JSON."""
    text = json.dumps(case.spec.to_json())
    again = AttentionSpec.from_json(json.loads(text))
    if again != case.spec:
        raise AssertionError(f"{case.spec} came back as {again}")


def parameters_as_counted(case: Case) -> None:
    """The layer's number of parameters equals its cost's."""
    layer = Attention(case.spec, device="meta")
    built = sum(p.numel() for p in layer.parameters())
    counted = case.spec.cost(case.length).parameters
    if built != counted:
        raise AssertionError(f"the layer has {built} parameters, its cost says {counted}")


def state_dict_is_complete(case: Case) -> None:
    """A new layer with the state dict of another computes the same."""
    layer = case.layer()
    other = Attention(layer.spec, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert_close(other(case.x), layer(case.x), "exact")


def ops_agree(case: Case) -> None:
    """Every op gives the reference's output and gradients, padded or packed or neither."""
    for where in case.data():
        want = gradients(case.layer("reference"), case.x, **where)
        for name in case.ops(plain=not where):
            got = gradients(case.layer(name), case.x, **where)
            for a, b in zip(got, want, strict=True):
                assert_close(a, b)


def rows_are_independent(case: Case) -> None:
    """A row's output depends on no other row, nor on the order or number of rows."""
    layer = case.layer()
    out = layer(case.x)
    for row in range(BATCH):
        assert_close(layer(case.x[row : row + 1]), out[row : row + 1])
    assert_close(layer(case.x.flip(0)), out.flip(0))


def padding_is_not_read(case: Case) -> None:
    """The content of padded positions has no effect, not even NaN or infinities."""
    layer = case.layer()
    for side in SIDES:
        valid = padded(BATCH, case.length, side)
        want = gradients(layer, case.x, valid=valid)
        if not bool((want[1][~valid] == 0).all()):
            raise AssertionError(f"{side} padding gets a gradient")
        for poison in (torch.nan, torch.inf, -1e300):
            poisoned = case.x.masked_fill(~valid[..., None], poison)
            for a, b in zip(gradients(layer, poisoned, valid=valid), want, strict=True):
                assert_close(a, b, "exact")


def padding_changes_nothing(case: Case) -> None:
    """A padded row gives its real tokens what they get without padding, on every side."""
    layer = case.layer()
    for side in SIDES:
        valid = padded(BATCH, case.length, side)
        out = layer(case.x, valid=valid)
        for row, keep, got in zip(case.x, valid, out, strict=True):
            assert_close(got[keep], layer(row[keep][None])[0])


def padding_gets_nothing(case: Case) -> None:
    """A padded query gets exactly 0 before the output map, and weights of exactly 0."""
    layer, nothing = case.layer(), torch.zeros(1, case.spec.widths.o, dtype=torch.float64)
    for side in SIDES:
        valid = padded(BATCH, case.length, side)
        got = layer(case.x, valid=valid)[~valid]
        assert_close(got, layer.o_proj(nothing).expand_as(got), "exact")
        weights = layer.weights(case.x, valid=valid).transpose(1, 2)[~valid]
        assert_close(weights, torch.zeros_like(weights), "exact")


def packing_changes_nothing(case: Case) -> None:
    """A packed row gives its documents what they get alone, or the layer refuses packed rows."""
    layer = case.layer()
    segments = documents(BATCH, case.length, seed=1)
    if not case.takes_documents:
        _refused(lambda: layer(case.x, segments=segments), "segments")
        return
    whole = torch.ones(BATCH, case.length, dtype=torch.bool)
    for valid in (whole, padded(BATCH, case.length, "inside")):
        data = {} if valid is whole else {"valid": valid}
        out = layer(case.x, segments=segments, **data)
        for row, numbers, keep, got in zip(case.x, segments, valid, out, strict=True):
            for number in numbers[keep].unique():
                here = (numbers == number) & keep
                assert_close(got[here], layer(row[here][None])[0])


def pattern_is_kept(case: Case) -> None:
    """No output depends on a position its pattern hides, nor a causal one on a later position."""
    if "mixing" in case.spec.beyond_pairs and not case.spec.pattern.causal:
        return
    layer, x = case.layer(), case.x[:1].clone().requires_grad_()
    later = torch.ones(case.length, case.length).triu(diagonal=1).bool()
    if case.spec.beyond_pairs.keys() & {"mixing", "past"}:
        visible = ~later
    else:
        visible = case.visible().any(dim=0) | torch.eye(case.length).bool()
    if case.spec.pattern.causal:
        visible = visible & ~later
    out = layer(x)
    for t in range(case.length):
        (gradient,) = torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)
        leaks = gradient[0].abs().amax(dim=-1).gt(0) & ~visible[t]
        if bool(leaks.any()):
            raise AssertionError(f"output {t} depends on position {int(leaks.int().argmax())}")


def weights_are_correct(case: Case) -> None:
    """The weights make the output, are 0 at hidden keys, and are shares unless a kernel says so."""
    layer, spec = case.layer(), case.spec
    weights = layer.weights(case.x)
    shape = (BATCH, spec.query_heads, case.length, case.keys)
    if weights.shape != shape:
        raise AssertionError(f"weights have shape {list(weights.shape)}, want {list(shape)}")
    allowed = case.visible().expand(shape[1:])
    assert_close(weights.masked_fill(allowed, 0.0), torch.zeros_like(weights), "exact")
    if spec.lane == "recurrence":  # its weights are not shares; values may be convolved
        return
    if spec.lane == "sums" or type(spec.kernel) is Softmax:  # others normalise as they say
        _are_shares(weights, allowed, signed=spec.lane != "pairs", leaks=bool(layer.learned))
    if "past" in spec.beyond_pairs:  # the weights are those within a segment, the output is more
        return
    k, v = layer.keys_and_values(case.x)
    v = layer.mixing(k, v, RowLayout())[1]
    v = v.repeat_interleave(spec.query_heads // v.shape[1], dim=1)
    own = layer.encode(layer.inputs(case.x)).cached
    assert_close(spec.combine.output(layer, weights @ v, case.x, own), layer(case.x))


def _are_shares(weights: Tensor, allowed: Tensor, *, signed: bool, leaks: bool) -> None:
    """Raise unless rows sum to 1, or to 0 without any key.

    A kernel whose products may be negative keeps its sums from 0, which makes the shares of such
    a row smaller: they sum to less than 1. So do those of a row with a sink (`leaks`).
    """
    sums = weights.sum(dim=-1)
    totals = allowed.any(dim=-1).double().expand(sums.shape)
    less = (weights < 0).any(dim=-1) | (sums < 1.0 if leaks else torch.tensor(False))
    if not signed and bool((weights < 0).any()):
        raise AssertionError(f"a weight is negative: {weights.min().item()}")
    assert_close(torch.where(less, totals, sums), totals)
    assert_close(sums.clamp(0.0, 1.0), sums)


def chunks_change_nothing(case: Case) -> None:
    """A causal row read in chunks, from a KV cache or a state, gives what it gives at once."""
    if not case.spec.pattern.causal:
        return
    layer = case.layer()
    with torch.no_grad():
        want = layer(case.x)
        for size in (1, case.length // 2 + 1):
            state = layer.state()
            chunks = [layer(chunk, state=state) for chunk in case.x.split(size, dim=1)]
            assert_close(torch.cat(chunks, dim=1), want)


def flags_change_nothing(case: Case) -> None:
    """Training, evaluation, gradients, strides and earlier calls never change the result."""
    layer, x = case.layer().eval(), case.x
    with torch.inference_mode():
        first = layer(x).clone()
    want = layer(x)
    assert_close(first, want)
    assert_close(layer.train()(x), want, "exact")
    with torch.no_grad():
        assert_close(layer(x), want)
    apart = x.transpose(0, 1).contiguous().transpose(0, 1)
    spread = torch.stack([x, x], dim=-1)[..., 0]
    for same in (apart, spread):
        assert_close(layer(same), want)
    assert_close(layer(x[:1].expand(BATCH, -1, -1)), want[:1].expand(BATCH, -1, -1))


def dtypes_are_kept(case: Case) -> None:
    """Each dtype gives its own kind, near the float64 result."""
    want = case.layer()(case.x)
    for dtype in (torch.float32, torch.bfloat16):
        got = case.layer().to(dtype)(case.x.to(dtype))
        if got.dtype is not dtype or not bool(torch.isfinite(got).all()):
            raise AssertionError(f"{dtype} in, {got.dtype} out")
        if dtype is torch.float32:
            assert_close(got, want, n=max(case.spec.d_model, case.length))


def source_is_read_as_x(case: Case) -> None:
    """Cross-attention to x itself is self-attention, or is refused where it has no meaning."""
    spec, layer = case.spec, case.layer()
    if spec.refuses_source():
        _refused(lambda: layer(case.x, case.x.clone()), "cross-attention")
        return
    assert_close(layer(case.x, case.x.clone()), layer(case.x))


def _refused(call: Callable[[], Tensor], what: str) -> None:
    try:
        call()
    except ConfigError:
        return
    raise AssertionError(f"{what} means nothing here, but was not refused")


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        stored_as_plain_data,
        mask_is_the_predicate,
        causal_patterns_look_back,
        spacing_is_kept,
        pairs_are_counted,
        layout_is_the_mask,
        bounds_are_never_wrong,
        parts_make_the_pattern,
        parameters_as_counted,
        state_dict_is_complete,
        ops_agree,
        rows_are_independent,
        padding_is_not_read,
        padding_changes_nothing,
        padding_gets_nothing,
        packing_changes_nothing,
        pattern_is_kept,
        weights_are_correct,
        chunks_change_nothing,
        flags_change_nothing,
        dtypes_are_kept,
        source_is_read_as_x,
    )
}
"""Each check by its name."""


class ConformanceError(SufficeError, AssertionError):
    """A spec breaks a promise that every attention layer here keeps."""


Formula = Callable[..., Tensor]


def conform(
    spec: AttentionSpec,
    *,
    formula: Formula | None = None,
    length: int = 5,
    checks: Iterable[str] = CHECKS,
) -> str:
    """Raise unless layers of this spec keep every promise of `CHECKS`, and are the formula.

    For whoever writes an axis value of their own: put it in a small spec (`spec_around`) and
    call this from a test. The promises hold for a wrong formula, too: a kernel that squares what
    it should cube is as indifferent to padding as a right one.

    Args:
        spec: the layer, for self-attention; the smaller the faster.
        formula: the definition in plain torch. It takes by name what it needs of q [B, H, T, D],
            k [B, H, S, D], v [B, H, S, E], allowed (bool [B, H, T, S], each query with at least
            one True), scale, bias (what a position adds to the scores; None: nothing) and the
            parameters of the kernel, and returns the outputs of the heads [B, H, T, E]. Outputs
            and gradients of the layer are compared with it in float64, with padding, with
            documents, and with neither. None: the formula is not tested.
        length: positions of the input, >= 2; cut to what the spec's mixing allows.
        checks: names of checks to run; all by default.

    Returns:
        One sentence: what was tested, and whether a formula was.

    Raises:
        ConformanceError: naming the check that failed, its promise and what came out.
        ConfigError: for no spec, an unknown check, a length below 2, a spec that only reads a
            memory, or a formula of something that is not there or reads more than q, k and v.

    Example:
        >>> from suffice import AttentionSpec
        >>> def softmax(q, k, v, allowed, scale):
        ...     scores = (scale * q @ k.mT).masked_fill(~allowed, -torch.inf)
        ...     return scores.softmax(-1) @ v
        >>> conform(AttentionSpec(d_model=4, num_heads=2), formula=softmax, checks=[])
        'It is the formula: outputs and gradients agree in float64. 0 of 22 promises tested.'
    """
    if not isinstance(spec, AttentionSpec):
        raise ConfigError(f"spec={spec!r:.60} is a {type(spec).__name__}; give an AttentionSpec.")
    if isinstance(checks, str):
        raise ConfigError(f"checks={checks!r}: give a list of names, such as [{checks!r}].")
    if length < 2:  # noqa: PLR2004
        raise ConfigError(f"length={length}: one position attends to itself alone; give 2 or more.")
    if spec.widths.d_source != spec.d_model:
        raise ConfigError(
            f"d_source={spec.d_source} with d_model={spec.d_model}: conform tries "
            "self-attention; give a spec without d_source."
        )
    case = Case(spec=spec, length=min(length, spec.max_length or length))
    for name in checks:
        check_known("check", name, CHECKS)
    tests = {name: CHECKS[name] for name in checks}
    tested = f"{len(tests)} of {len(CHECKS)} promises tested."
    if formula is not None:
        _check_formula(formula, spec)
        tests = {"formula": partial(is_the_formula, formula=formula), **tests}
    for name, test in tests.items():
        try:
            test(case)
        except (AssertionError, SufficeError, RuntimeError) as error:
            promise = inspect.getdoc(test.func if isinstance(test, partial) else test)
            raise ConformanceError(
                f"{name} failed: {promise} Found: {error}\nLength {case.length}, {spec}."
            ) from error
    if formula is None:
        return f"{tested} They hold for a wrong formula, too: give formula= to test it."
    return f"It is the formula: outputs and gradients agree in float64. {tested}"


def _check_formula(formula: Formula, spec: AttentionSpec) -> None:
    if spec.lane == "recurrence" or "past" in spec.beyond_pairs:
        raise ConfigError(
            f"formula= is one of queries, keys and values, and {spec.kernel!r} with {spec.past!r} "
            "reads more; write the test of this layer from its formula."
        )
    learned = spec.kernel.learned(spec.query_heads, spec.head_width)
    legal = [*("q", "k", "v", "allowed", "scale", "bias"), *learned]
    for name in inspect.signature(formula).parameters:
        check_known("argument of the formula", name, legal)


def is_the_formula(case: Case, formula: Formula) -> None:
    """Outputs and gradients are those of the formula, padded or packed or neither."""
    for where in case.data():
        got = gradients(case.layer(), case.x, **where)
        want = gradients(_ByFormula(case.layer(), formula), case.x, **where)
        for ours, theirs in zip(got, want, strict=True):
            assert_close(ours, theirs)


class _ByFormula(nn.Module):
    def __init__(self, layer: Attention, formula: Formula) -> None:
        super().__init__()
        self.layer, self.formula = layer, formula

    def forward(self, x: Tensor, **where: Tensor) -> Tensor:
        layer = self.layer
        inputs = layer.inputs(x, **where)
        q, own, _ = layer.encode(inputs)
        view = inputs.view(layer, own)
        q, k, v = layer.spec.encoder.products(layer, q, view.cached)
        call = layer.call(q, k, v, view)
        allowed = view.masks.allowed(call.pattern, call.queries, call.keys, x.device)
        allowed = allowed.expand(*q.shape[:3], call.keys)
        empty = ~allowed.any(dim=-1, keepdim=True)
        heads = q.shape[1]
        values = {
            "q": q,
            "k": k.repeat_interleave(heads // k.shape[1], dim=1),
            "v": v.repeat_interleave(heads // v.shape[1], dim=1),
            "allowed": allowed | empty,
            "scale": call.scale,
            "bias": view.masks.bias(call, x.device),
            **layer.parts().learned,
        }
        out = self.formula(
            **{name: values[name] for name in inspect.signature(self.formula).parameters}
        )
        out = view.masks.zero_padded(out.masked_fill(empty, 0.0))
        return layer.spec.combine.output(layer, out, inputs.x, own)
