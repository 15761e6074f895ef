"""Sums of features: inputs of many layouts, and the native ones held against the specification."""

from __future__ import annotations

import torch

from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops.op import Parts
from suffice.testing import assert_close


def heads(batch, number, length, width, *, layout="rows", seed=0):
    """Heads as a layer gives them, as such, cut out of something wider, or 4 bytes off."""
    make = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=make)

    if layout == "heads":
        return draw(batch, number, length, width)
    if layout == "wide":
        return draw(batch, length, number, 3 * width)[..., width : 2 * width].transpose(1, 2)
    if layout == "off":
        flat = draw(batch * number * length * width + 1)[1:]
        return flat.view(batch, length, number, width).transpose(1, 2)
    if layout == "spaced":
        return draw(batch, number, length, 2 * width)[..., ::2]
    return draw(batch, length, number, width).transpose(1, 2)


def inputs(queries, keys, *, groups=2, width=8, wide=8, size=1.0, layout="rows"):
    """Two rows of queries of four heads, keys and values."""
    return (
        size * heads(2, 4, queries, width, layout=layout, seed=1),
        size * heads(2, groups, keys, width, layout=layout, seed=2),
        heads(2, groups, keys, wide, layout=layout, seed=3),
    )


def posed(q, k, v, kernel, pattern, *, where=None, **other):
    """Return the problem and what a layer owns."""
    problem = AttentionCall(
        queries=q.shape[2],
        keys=k.shape[2],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[3],
        value_dim=v.shape[3],
        scale=q.shape[3] ** -0.5,
        pattern=pattern,
        kernel=kernel,
        plain=where is None or where.plain,
        dtype=q.dtype,
        **other,
    )
    maps = kernel.build(head_dim=q.shape[3], scale=problem.scale, device=None)
    return problem, Parts(features=maps)


def assert_as_specified(q, k, v, kernel, pattern, *, where=None, n=None):
    """Hold outputs and gradients against the specification; return the outputs."""
    problem, parts = posed(q, k, v, kernel, pattern, where=where)
    assert not OPS["native_scan"].refuses(problem)
    where = where or MaskInputs()
    k, v = where.clean(k, v)
    ours = [x.detach().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    got = OPS["native_scan"].run(*ours, where, problem, parts)
    want = OPS["reference"].run(*exact, where, problem, parts)
    longest = n or 4 * max(k.shape[2], q.shape[3], kernel.num_features(q.shape[3]))
    assert_close(got.detach(), want.detach(), n=longest)
    with torch.no_grad():
        assert torch.equal(OPS["native_scan"].run(q, k, v, where, problem, parts), got)
    slope = torch.randn(want.shape, generator=torch.Generator().manual_seed(4))
    gradients = torch.autograd.grad(got, ours, slope)
    for a, b in zip(gradients, torch.autograd.grad(want, exact, slope.double()), strict=True):
        assert_close(a, b, n=8 * max(longest, q.shape[2], v.shape[3]))
    return got.detach()
