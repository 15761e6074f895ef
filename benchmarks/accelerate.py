"""Stock models of transformers before and after `suffice.hf.accelerate`, in one process.

The linear maps stay transformers' own; their time alone is the least that a model can take.

Run: python -m benchmarks.accelerate [--threads 2] [--layers 8] [--length 2048] [--rounds 5]
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import replace

import torch
import transformers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Mamba2Config,
    Mamba2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from benchmarks.report import Row, gate, print_machine, print_rows
from suffice.hf import accelerate
from suffice.hf.cache import CACHE_NAME
from suffice.utils.timing import interleave

TRAINED = 512  # positions of a training step
SIZES = {"vocab_size": 1024, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
REACH = {  # our time over that of transformers: prefill, decode, training
    "Qwen3.5 0.8B": (1 / 4, 1 / 3, 1 / 3),
    "Mamba-2 130M": (1 / 4, 1 / 3, 1 / 3),
    "Gemma 3 1B": (1 / 2, 1 / 1.5, None),
}


def qwen(layers: int) -> transformers.PreTrainedModel:
    """Return the shapes of Qwen3.5 0.8B, fewer layers."""
    config = Qwen3_5TextConfig(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_value_heads=16,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        **SIZES,
    )
    return Qwen3_5ForCausalLM(config)


def mamba(layers: int) -> transformers.PreTrainedModel:
    """Return the shapes of Mamba-2 130M, fewer layers."""
    config = Mamba2Config(
        hidden_size=768, num_heads=24, n_groups=1, num_hidden_layers=layers, **SIZES
    )
    return Mamba2ForCausalLM(config)


def gemma(layers: int) -> transformers.PreTrainedModel:
    """Return the shapes of Gemma 3 1B, fewer layers, five of six with windows of 512."""
    config = Gemma3TextConfig(
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        max_position_embeddings=32768,
        **SIZES,
    )
    return Gemma3ForCausalLM(config)


MODELS = {"Qwen3.5 0.8B": qwen, "Mamba-2 130M": mamba, "Gemma 3 1B": gemma}


def prefill(model, tokens):  # noqa: ANN001, ANN201
    """The logits of the last position, without a cache of the whole."""
    with torch.inference_mode():
        return model(tokens, logits_to_keep=1).logits


def decoding(model, tokens):  # noqa: ANN001, ANN201
    """Return what decodes one more token each time it is called."""
    before = model.config.model_type == "mamba2" and CACHE_NAME != "cache"  # transformers < 5.24
    key = "cache_params" if before else CACHE_NAME
    with torch.inference_mode():
        cache = getattr(model(tokens, use_cache=True, logits_to_keep=1), key)

    def step():  # noqa: ANN202
        with torch.inference_mode():
            return model(tokens[:, :1], use_cache=True, **{key: cache}).logits

    return step


def trained(model, tokens):  # noqa: ANN001, ANN201
    """Forward and backward."""
    model.zero_grad()
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss


def linear_maps(model, tokens, *, trains=False):  # noqa: ANN001, ANN201
    """Return what runs the linear maps of a pass alone, on the inputs that they had."""
    calls = []
    hooks = [
        module.register_forward_hook(lambda m, inputs, _: calls.append((m, inputs[0])))
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.no_grad():
        model(tokens, **({} if trains else {"logits_to_keep": 1}))
    for hook in hooks:
        hook.remove()

    def run():  # noqa: ANN202
        with torch.set_grad_enabled(trains):
            for module, x in calls:
                out = module(x.detach().requires_grad_(trains))
                if trains:
                    out.backward(out.detach())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread, for a machine that others use"
    )
    parser.add_argument("--model", choices=MODELS, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1 if given.cpu_time else given.threads)
    print_machine()
    transformers.logging.set_verbosity_error()
    clock = time.process_time if given.cpu_time else None
    settings = {
        "clock": clock,
        "rounds": given.rounds,
        "warmup": 1,
        "min_seconds_per_sample": 0.001,
    }
    rows = []
    for name in given.model or MODELS:
        torch.manual_seed(0)
        stock = MODELS[name](given.layers).eval()
        ours = copy.deepcopy(stock)
        print(accelerate(ours).explain())
        tokens = torch.randint(1, 1024, (1, given.length))
        gate(name, prefill(ours, tokens), prefill(stock, tokens), 1e-4)
        short = tokens[:, :TRAINED]
        steps = {
            "ours": decoding(ours, tokens),
            "theirs": decoding(stock, tokens),
            "linear maps": linear_maps(stock, tokens[:, :1]),
        }
        cases = {
            f"prefill of {given.length}": {
                "ours": lambda m=ours, t=tokens: prefill(m, t),
                "theirs": lambda m=stock, t=tokens: prefill(m, t),
                "linear maps": linear_maps(stock, tokens),
            },
            f"a token after {given.length}": steps,
            f"training on {short.shape[1]}": {
                "ours": lambda m=ours, t=short: trained(m, t),
                "theirs": lambda m=stock, t=short: trained(m, t),
                "linear maps": linear_maps(stock, short, trains=True),
            },
        }
        for (case, runs), reach in zip(cases.items(), REACH[name], strict=True):
            times = interleave(runs, **settings)
            rows.append(
                Row(
                    case=f"{name}, {given.layers} layers, {case}",
                    peer=f"transformers {transformers.__version__}",
                    ours=times["ours"],
                    theirs=times["theirs"],
                    reach=reach,
                )
            )
            alone = replace(rows[-1], case="its linear maps alone", ours=times["linear maps"])
            rows.append(replace(alone, reach=None))
    print_rows("stock models", rows)


if __name__ == "__main__":
    main()
