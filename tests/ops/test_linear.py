"""The linear map through oneDNN equals torch's own: values, all derivatives, every way to call."""

from __future__ import annotations

import copy
from time import thread_time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from suffice.ops import linear as module
from suffice.ops import register_flops
from suffice.ops.linear import MIN_WORK, Linear, fast, linear
from suffice.ops.native.library import available
from suffice.ops.native.matrix import multiply
from suffice.testing import assert_close, normal

ROWS, INPUTS, OUTPUTS = 256, 256, 256  # together exactly MIN_WORK multiply-adds
FLOAT = torch.float32


def operands(rows=ROWS, inputs=INPUTS, outputs=OUTPUTS, dtype=FLOAT):
    x = normal(rows, inputs, seed=1, dtype=dtype)
    weight = normal(outputs, inputs, seed=2, dtype=dtype)
    return x, weight, normal(outputs, seed=3, dtype=dtype)


@pytest.fixture
def always(monkeypatch):
    """Take the fast product at every size, so that small odd shapes go through it."""
    monkeypatch.setattr(module, "MIN_WORK", 1)


@pytest.fixture(autouse=True)
def wins_everywhere(monkeypatch):
    """Let the sizes of these tests take the fast product on any processor."""
    monkeypatch.setattr(module, "WINS", module.PRESENT)


def test_the_operands_stand_at_the_threshold():
    assert ROWS * INPUTS * OUTPUTS == MIN_WORK
    assert fast(ROWS, INPUTS, OUTPUTS) is module.PRESENT
    assert not fast(ROWS - 1, INPUTS, OUTPUTS)
    assert not fast(1, MIN_WORK, 2)


@pytest.mark.parametrize(
    ("message", "intel"), [("vendor_id : GenuineIntel", True), ("vendor_id : AuthenticAMD", False)]
)
def test_the_maker_of_the_processor(monkeypatch, message, intel):
    monkeypatch.setattr(module.Path, "read_text", lambda *_, **__: message)
    assert module._made_by_intel() is intel


def test_the_maker_where_there_is_no_proc(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(module.Path, "read_text", absent)
    monkeypatch.setattr(module.platform, "processor", lambda: "Intel64 Family 6, GenuineIntel")
    assert module._made_by_intel()


def test_nothing_is_fast_without_the_library(monkeypatch):
    monkeypatch.setattr(module, "WINS", False)
    assert not fast(ROWS, INPUTS, OUTPUTS)
    assert torch.equal(linear(*operands()), F.linear(*operands()))


@pytest.mark.skipif(not module.PRESENT, reason="no AVX-512 or no oneDNN on this machine")
@pytest.mark.parametrize("learning", [False, True])
def test_large_products_take_the_fast_library(learning):
    x, weight, bias = operands()
    weight.requires_grad_(learning)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        linear(x, weight, bias)
    names = {event.key for event in profiled.key_averages()}
    assert "mkldnn::_linear_pointwise" in names
    assert "aten::addmm" not in names


@pytest.mark.parametrize("rows", [1, 2, ROWS - 1, ROWS, ROWS + 1])
@pytest.mark.parametrize("width", [INPUTS - 1, INPUTS, INPUTS + 1])
@pytest.mark.parametrize("biased", [True, False])
def test_value_and_gradients_around_the_threshold(rows, width, biased):
    compare(*operands(rows, width), biased=biased)


@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 5, 7), (33, 1, 9), (2, 64, 3), (17, 31, 65)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.usefixtures("always")
def test_value_and_gradients_of_small_shapes(shape, biased):
    compare(*operands(*shape), biased=biased)


def compare(x, weight, bias, *, biased):
    results = []
    for function in (linear, F.linear):
        given = [t.clone().requires_grad_() for t in (x, weight, bias)][: 3 if biased else 2]
        out = function(*given, *([] if biased else [None]))
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    n = max(x.shape[0], *weight.shape)
    for got, want in zip(*results, strict=True):
        assert got.shape == want.shape
        assert_close(got, want, n=n)
    plain = linear(x, weight, bias if biased else None)
    assert_close(plain, results[1][0].detach(), n=n)


@pytest.mark.parametrize("order", ["x", "weight", "bias"])
@pytest.mark.usefixtures("always")
def test_each_operand_may_be_the_only_one_that_learns(order):
    """Fine-tuning only biases, or only the first layer, must not lose a gradient."""
    gradients = []
    for function in (linear, F.linear):
        given = dict(zip(("x", "weight", "bias"), operands(9, 8, 7), strict=True))
        learned = given[order].requires_grad_()
        out = function(*given.values())
        assert out.requires_grad
        gradients.append(torch.autograd.grad(out.square().sum(), learned)[0])
    assert_close(gradients[0], gradients[1], n=9)


@pytest.mark.usefixtures("always")
def test_second_derivatives():
    gradients = []
    for function in (linear, F.linear):
        x, weight, bias = (t.requires_grad_() for t in operands(9, 8, 7))
        slopes = torch.autograd.grad(
            function(x, weight, bias).pow(3).sum(), (x, weight, bias), create_graph=True
        )
        curved = sum(slope.square().sum() for slope in slopes)
        gradients.append([*slopes, *torch.autograd.grad(curved, (x, weight, bias))])
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want, n=100)


def test_second_derivatives_above_the_threshold():
    gradients = []
    for function in (linear, F.linear):
        x, weight, bias = (t.requires_grad_() for t in operands())
        (slope,) = torch.autograd.grad(
            function(x, weight, bias).square().sum(), weight, create_graph=True
        )
        gradients.append(torch.autograd.grad(slope.square().mean(), (x, weight)))
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want, n=ROWS * ROWS)


@pytest.mark.parametrize(
    "shape", [(2, 3, 8), (2, 3, 4, 8), (5, 8), (8,), (1, 8), (0, 8), (2, 0, 8)]
)
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.usefixtures("always")
def test_leading_axes(shape, learning):
    _, weight, bias = operands(1, 8, 7)
    x = normal(*shape, seed=4, dtype=FLOAT).requires_grad_(learning)
    got, want = linear(x, weight, bias), F.linear(x, weight, bias)
    assert got.shape == want.shape
    if got.numel():
        assert_close(got, want, n=8)


LAYOUTS = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "every-second": lambda t: torch.stack([t, -t], dim=-1)[..., 0],
    "slice": lambda t: torch.cat([t, t], dim=0)[: len(t)],
    "columns": lambda t: torch.cat([t, t], dim=1)[:, : t.shape[1]],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("of_x", LAYOUTS)
@pytest.mark.parametrize("of_weight", LAYOUTS)
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.usefixtures("always")
def test_strides(of_x, of_weight, learning):
    x, weight, bias = operands(6, 8, 7)
    x, weight = LAYOUTS[of_x](x), LAYOUTS[of_weight](weight)
    if learning:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    got, want = linear(x, weight, bias), F.linear(x, weight, bias)
    assert_close(got, want, n=8)
    if learning:
        slopes = [torch.autograd.grad(out.square().sum(), (x, weight)) for out in (got, want)]
        for a, b in zip(*slopes, strict=True):
            assert_close(a, b, n=8)


@pytest.mark.parametrize("of_x", LAYOUTS)
@pytest.mark.parametrize("of_weight", LAYOUTS)
def test_no_layout_takes_a_slow_kernel(of_x, of_weight):
    """oneDNN's kernel of last resort takes hundreds of times as long."""
    x, weight, _ = operands(512, 512, 256)

    def seconds(x, weight):
        times = []
        for _ in range(3):
            begin = thread_time()
            linear(x, weight, None)
            times.append(thread_time() - begin)
        return min(times)

    assert seconds(LAYOUTS[of_x](x), LAYOUTS[of_weight](weight)) < 30 * seconds(x, weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("always")
def test_other_dtypes_go_to_torch(dtype):
    given = operands(9, 8, 7, dtype)
    assert torch.equal(linear(*given), F.linear(*given))
    assert linear(*given).dtype is dtype


@pytest.mark.usefixtures("always")
def test_other_devices_go_to_torch():
    x, weight, bias = (t.to("meta") for t in operands(9, 8, 7))
    assert linear(x, weight, bias).shape == (9, 7)


@pytest.mark.parametrize("learning", [False, True])
def test_autocast_is_respected(learning):
    x, weight, bias = operands()
    weight.requires_grad_(learning)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = linear(x, weight, bias)
        want = F.linear(x, weight, bias)
    assert got.dtype is torch.bfloat16
    assert_close(got, want, "exact")
    with torch.autocast("cpu", enabled=False):
        assert linear(x, weight, bias).dtype is FLOAT


@pytest.mark.usefixtures("always")
def test_backward_under_autocast_of_a_forward_outside():
    gradients = []
    for function in (linear, F.linear):
        x, weight, bias = (t.requires_grad_() for t in operands(9, 8, 7))
        out = function(x, weight, bias).square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gradients.append(torch.autograd.grad(out, (x, weight, bias)))
    for got, want in zip(*gradients, strict=True):
        assert got.dtype is want.dtype is FLOAT


@pytest.mark.usefixtures("always")
def test_inference_mode_and_no_grad():
    given = operands(9, 8, 7)
    want = F.linear(*given)
    with torch.inference_mode():
        assert_close(linear(*given).clone(), want, n=8)
    with torch.no_grad():
        out = linear(given[0].requires_grad_(), *given[1:])
    assert not out.requires_grad
    assert_close(out, want, n=8)


@pytest.mark.usefixtures("always")
def test_a_weight_changed_before_backward_is_noticed():
    x, weight, bias = operands(9, 8, 7)
    x.requires_grad_()
    out = linear(x, weight, bias).sum()
    weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.usefixtures("always")
def test_torch_func_grad():
    x, weight, bias = operands(9, 8, 7)
    for at in range(3):
        got, want = (
            grad(lambda *given, f=function: f(*given).square().sum(), argnums=at)(x, weight, bias)
            for function in (linear, F.linear)
        )
        assert_close(got, want, n=9)


@pytest.mark.usefixtures("always")
def test_torch_func_vmap():
    xs, (_, weight, bias) = normal(4, 9, 8, seed=5, dtype=FLOAT), operands(9, 8, 7)
    assert_close(vmap(lambda x: linear(x, weight, bias))(xs), F.linear(xs, weight, bias), n=8)
    weights = normal(4, 7, 8, seed=6, dtype=FLOAT)
    got = vmap(lambda w: linear(xs[0], w, bias))(weights)
    assert_close(got, torch.stack([F.linear(xs[0], w, bias) for w in weights]), n=8)


@pytest.mark.usefixtures("always")
def test_gradients_per_sample():
    xs, (_, weight, bias) = normal(4, 9, 8, seed=5, dtype=FLOAT), operands(9, 8, 7)
    got, want = (
        vmap(grad(lambda w, x, f=f: f(x, w, bias).square().sum()), (None, 0))(weight, xs)
        for f in (linear, F.linear)
    )
    assert_close(got, want, n=9)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own rules
def test_forward_mode(at):
    """A tangent must arrive: one that is dropped is a wrong derivative without a word."""
    given = operands(9, 8, 7)
    tangent = normal(*given[at].shape, seed=7, dtype=FLOAT)

    def along(function):
        def moved(t):
            return function(*(t if i == at else g for i, g in enumerate(given)))

        return jvp(moved, (given[at],), (tangent,))[1]

    want = along(F.linear)
    assert_close(along(linear), want, n=8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given[at], tangent)
        out = linear(*(dual if i == at else g for i, g in enumerate(given)))
        assert_close(forward_ad.unpack_dual(out).tangent, want, n=8)


@pytest.mark.usefixtures("always")
def test_a_wrong_width_raises_the_error_of_torch():
    _, weight, bias = operands(9, 8, 7)
    for x in (torch.randn(9, 4), torch.randn(9, 16), torch.randn(8, 9)):
        for learning in (False, True):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                linear(x.detach().requires_grad_(learning), weight, bias)


@pytest.mark.usefixtures("always")
def test_the_module_is_a_linear():
    ours, theirs = Linear(8, 7), nn.Linear(8, 7)
    assert isinstance(ours, nn.Linear)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = normal(9, 8, seed=1, dtype=FLOAT)
    assert_close(ours(x), theirs(x), n=8)
    assert_close(copy.deepcopy(ours)(x), ours(x), "exact")
    assert repr(ours) == "Linear(in_features=8, out_features=7, bias=True)"
    assert Linear(8, 7, bias=False, dtype=torch.bfloat16).weight.dtype is torch.bfloat16


@pytest.mark.usefixtures("always")
def test_gradients_of_a_batch_are_the_sum_of_its_rows():
    ours = Linear(8, 7)
    x = normal(12, 8, seed=1, dtype=FLOAT)
    ours(x).square().sum().backward()
    gradient = ours.weight.grad.clone()
    ours.zero_grad()
    for part in x.split(3):
        ours(part).square().sum().backward()
    assert_close(ours.weight.grad, gradient, n=12)


@pytest.mark.skipif(not module.PRESENT, reason="no oneDNN product on this processor")
def test_its_products_are_counted():
    x, weight = torch.randn(512, 128), torch.randn(256, 128)
    assert fast(512, 128, 256)
    register_flops()
    with FlopCounterMode(display=False) as counter:
        linear(x, weight, None)
    assert counter.get_total_flops() == 2 * 512 * 128 * 256


FEW = 2, 256, 256  # rows, inputs and outputs of a matrix that is worth reading by our kernel


@pytest.fixture
def ours_wins(monkeypatch):
    """Let the kernel of few rows win, and return the rows of the products that it computes."""
    if not available():
        pytest.skip("no native kernels were built")
    rows = []

    def multiplied(matrix, x, threads):
        rows.append(x.numel() // matrix.columns)
        return multiply(matrix, x, threads)

    monkeypatch.setattr(module, "threads_of_few_rows", lambda *_: 1)
    monkeypatch.setattr(module, "multiply", multiplied)
    return rows


@torch.no_grad()
@pytest.mark.parametrize("biased", [True, False])
def test_few_rows_are_multiplied_by_our_kernel(ours_wins, biased):
    x, weight, bias = operands(module.MAX_FEW_ROWS, *FEW[1:])
    bias = bias if biased else None
    for rows in range(1, module.MAX_FEW_ROWS + 1):
        some = x[:rows, None]
        with torch.device("meta"):  # results lie where their inputs do
            got = linear(some, weight, bias)
        exact = None if bias is None else bias.double()
        assert_close(got, F.linear(some.double(), weight.double(), exact), n=FEW[1])
    assert ours_wins == list(range(1, module.MAX_FEW_ROWS + 1))


def test_few_rows_are_torchs_where_the_kernel_does_not_serve(ours_wins):
    x, weight, bias = operands(*FEW)
    linear(x, weight.clone().requires_grad_(), bias).sum().backward()
    with torch.no_grad():
        linear(x, weight[:8], bias[:8])  # in the cache anyway
        linear(x, weight.t(), bias)
        linear(x.double(), weight.double(), bias.double())
        linear(x[:0], weight, bias)
        linear(operands(module.MAX_FEW_ROWS + 1, *FEW[1:])[0], weight, bias)
        vmap(lambda row: linear(row, weight, bias))(x)
        with torch.autocast("cpu"):
            linear(x, weight, bias)
        with FlopCounterMode(display=False) as counter:
            linear(x, weight, bias)
    assert counter.get_total_flops() == 2 * FEW[0] * FEW[1] * FEW[2]
    assert ours_wins == []


def test_the_threads_of_few_rows_are_those_of_this_process():
    if not available():
        pytest.skip("no native kernels were built")
    for rows in (1, module.MAX_FEW_ROWS):
        assert module.threads_of(rows) in (0, 1, torch.get_num_threads())


@pytest.mark.parametrize(("rows", "raced"), [(1, 1), (module.FEW_ROWS, 1), (5, module.RACED_ROWS)])
def test_rows_are_raced_with_their_like(monkeypatch, rows, raced):
    monkeypatch.setattr(module, "threads_of_few_rows", lambda _, rows: rows)
    assert module.threads_of(rows) == raced
