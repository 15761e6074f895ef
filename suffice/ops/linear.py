"""The matrix product of a linear map, through the faster of the two libraries torch carries.

Few rows are multiplied by our kernel, where it is faster than torch, as measured once.

On CPUs with AVX-512 torch sends fp32 products to MKL, which on processors of some vendors runs at
half of what the machine can do; oneDNN, also inside torch, does not. There it is the faster one
from about two million multiply-adds on (benchmarks/linear.py); below, its fixed cost of some
microseconds decides. On Intel's own processors MKL is as fast or faster.
"""

from __future__ import annotations

import platform
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from suffice.ops.native.matrix import multiply, structure_of, supports
from suffice.ops.op import is_traced

FEW_ROWS = 4  # beyond, a product is bound by arithmetic
MAX_FEW_ROWS = 24  # beyond, torch's packing of the matrix pays
RACED_ROWS = 16  # in the race for more than FEW_ROWS
FEW_ROWS_GAIN = 0.85  # of the time of torch's product, at most
FEWEST_WEIGHTS = 1 << 16  # smaller matrices stay in the cache, and the call is what costs
MIN_WORK = 1 << 24  # multiply-adds, below which the call of oneDNN is what costs


def _present() -> bool:
    ops = torch.ops.mkldnn
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(ops, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _made_by_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # no Linux
        return "GenuineIntel" in platform.processor()


PRESENT = _present()
WINS = PRESENT and not _made_by_intel()  # MKL is at home there


def fast(rows: int, inputs: int, outputs: int) -> bool:
    """Return whether oneDNN is expected to win for this product."""
    return WINS and rows > 1 and rows * inputs * outputs >= MIN_WORK


def multiplier(module: nn.Module, rows: int, *, device: str, learning: bool) -> str:
    """Return what multiplies by the matrix of a linear map, in a word."""
    if not isinstance(module, nn.Linear):
        return module.kernel  # a packed layer names its own kernel
    plain = module.weight.dtype is torch.float32 and device == "cpu"
    sizes = (rows, module.in_features, module.out_features)
    few = plain and 0 < rows <= MAX_FEW_ROWS and not learning
    few = few and module.weight.numel() >= FEWEST_WEIGHTS
    if few and supports(module.weight, module.bias) and threads_of(rows):
        return "native"
    return "oneDNN" if plain and fast(*sizes) else "F.linear"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b: x [..., inputs], weight [outputs, inputs], bias [outputs]."""
    few = not torch.compiler.is_compiling() and 0 < x.numel() <= MAX_FEW_ROWS * weight.shape[1]
    if few and (threads := _native_threads(x, weight, bias)):
        return multiply(structure_of(weight, bias), x, threads)
    if not WINS or torch.compiler.is_compiling() or x.numel() * weight.shape[0] < MIN_WORK:
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    learning = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    )
    rows = x.numel() // inputs
    if not fast(rows, inputs, outputs) or not _plain(x, weight):
        return F.linear(x, weight, bias)
    if learning:
        return _Product.apply(x.reshape(-1, inputs), weight, bias).view(*x.shape[:-1], outputs)
    return _product(x, weight, bias)


def _native_threads(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    if weight.numel() < FEWEST_WEIGHTS or torch.is_grad_enabled() or not weight.is_contiguous():
        return 0
    if not (_plain(x, weight) and supports(weight, bias)) or is_traced():
        return 0
    return threads_of(x.numel() // x.shape[-1])


def threads_of(rows: int) -> int:
    """Return with how many threads our product of 1 to MAX_FEW_ROWS rows wins, 0 if it does not."""
    return threads_of_few_rows(torch.get_num_threads(), 1 if rows <= FEW_ROWS else RACED_ROWS)


@lru_cache(maxsize=8)
def threads_of_few_rows(most: int, rows: int = 1) -> int:
    """Return the threads with which our product of few rows beats torch's; 0 if none does."""
    numbers = partial(torch.ones, dtype=torch.float32, device="cpu")
    weights = numbers(24, 1536, 1024).unbind()  # more than a cache holds
    x = numbers(rows, 1024)
    runs = {
        number: partial(lambda weight, n: multiply(structure_of(weight, None), x, n), n=number)
        for number in {1, most}
    }
    seconds = {0: [], **{number: [] for number in runs}}
    for number, run in {0: partial(F.linear, x), **runs}.items():
        for weight in weights:
            begin = perf_counter()
            run(weight)
            seconds[number].append(perf_counter() - begin)
    medians = {number: median(values) for number, values in seconds.items()}
    best = min(runs, key=lambda number: medians[number])
    return best if medians[best] <= FEW_ROWS_GAIN * medians[0] else 0


def _plain(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype is weight.dtype is torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.shape[-1] == weight.shape[-1]
        and not torch.is_autocast_enabled("cpu")
        and not any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight)))
        and forward_ad._current_level < 0
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product by oneDNN, which takes 500 times as long for matrices with gaps."""
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """The same product with gradients; its backward uses the same kernels."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ARG004 - torch's signature
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.t(), None) if to_x else None,
            linear(gradient.t(), x.t(), None) if to_weight else None,
            gradient.sum(dim=0) if to_bias and ctx.biased else None,
        )


class Linear(nn.Linear):
    """`nn.Linear` with the faster product; same parameters, same state dict."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b for x [..., inputs]."""
        return linear(x, self.weight, self.bias)
