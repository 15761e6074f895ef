"""Packed weights against torchao's of the same bits and groups, on this CPU: change and time.

Torchao rounds by its own `IntxWeightOnlyConfig`; "our codes by torchao" is what packed models do
on CUDA. The embedding, which is the head, too, stays whole on all sides, as torchao packs linear
maps only. The weights are random: divergence compares roundings, not models.

Run: python -m benchmarks.packed
"""

from __future__ import annotations

import copy
import statistics

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import nn

from benchmarks.report import CONSOLE, gate, print_machine
from suffice.choose.bench import prompt_of, shaped
from suffice.models.packed import replace_module
from suffice.ops.linear import Linear
from suffice.quantise import quantise, unpack, with_torchao
from suffice.utils.timing import interleave

WHOLE = "embedding.tokens"
BITS, GROUP = (8, 4), 32
READ = 64  # tokens that the divergence is measured on and that are read at once


def of_torchao(lm: nn.Module, bits: int, group: int) -> nn.Module:
    """Return the model with linear maps as torchao rounds them."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    lm = copy.deepcopy(lm)
    for name, module in list(lm.named_modules()):
        if type(module) is Linear:
            plain = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = module.weight
            replace_module(lm, name, plain)
    dtype = {8: torch.int8, 4: torch.int4}[bits]
    quantize_(lm, IntxWeightOnlyConfig(weight_dtype=dtype, granularity=PerGroup(group)))
    return lm


def sides(whole: nn.Module, bits: int) -> dict[str, nn.Module]:
    """Return the model in 32 bits and packed in each way."""
    ours = copy.deepcopy(whole)
    report = quantise(ours, bits, GROUP, skip=[WHOLE])
    through = copy.deepcopy(ours)
    with_torchao(through)
    kernel = next(layer.kernel for layer in report.layers if layer.kernel)
    return {
        "float32": whole,
        f"ours ({kernel})": ours,
        "our codes by torchao": through,
        "torchao's own": of_torchao(whole, bits, GROUP),
    }


@torch.inference_mode()
def main() -> None:
    print_machine()
    whole = shaped("15m")
    tokens = prompt_of(whole, READ)[None]
    for bits in BITS:
        models = sides(whole, bits)
        answers = {name: one(tokens)[0].log_softmax(-1) for name, one in models.items()}
        unpacked = copy.deepcopy(models["our codes by torchao"])
        unpack(unpacked)
        gate("torchao", answers["our codes by torchao"], unpacked(tokens)[0].log_softmax(-1), 1e-3)
        last = tokens[:, :1]
        times = {
            count: interleave(
                {name: lambda one=one, x=x: one(x) for name, one in models.items()},
                rounds=3, warmup=1, min_seconds_per_sample=0.001,
            )
            for count, x in ((1, last), (READ, tokens))
        }  # fmt: skip
        title = f"15m, int{bits} in groups of {GROUP}"
        table = Table(title=title, title_justify="left")
        for column in ("weights", "divergence, nats/token", "1 token, ms", f"{READ} tokens, ms"):
            table.add_column(column, justify="left" if column == "weights" else "right")
        want = answers["float32"]
        for name, got in answers.items():
            lost = F.kl_div(got, want, reduction="batchmean", log_target=True)
            spent = (f"{1e3 * statistics.median(times[n][name]):,.1f}" for n in times)
            table.add_row(name, f"{float(lost):.5f}", *spent)
        CONSOLE.print(table)


if __name__ == "__main__":
    main()
