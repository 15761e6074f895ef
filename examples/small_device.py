"""Weights in 8 and 4 bits: bytes, and tokens a second on this machine."""

import copy
import time

import torch

import suffice
from suffice.generate import generate
from suffice.models import LMConfig
from suffice.quantise import quantise

TOKENS = 32

torch.manual_seed(0)
config = LMConfig(vocabulary_size=512, length=128, d_model=128, depth=4, mlp_width=256)
model = config.build(suffice.preset("efficient", 128, 4, causal=True)).eval()
prompt = torch.randint(512, (1, 16))


def tokens_per_second(model):
    """Return the best rate of three runs."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        generate(model, prompt, max_new_tokens=TOKENS)
        seconds.append(time.perf_counter() - start)
    return TOKENS / min(seconds)


print(f"32 bits: {tokens_per_second(model):8.0f} tokens/s")
for bits in (8, 4):
    packed = copy.deepcopy(model)
    report = quantise(packed, bits=bits)
    print(
        f"{bits:2} bits: {tokens_per_second(packed):8.0f} tokens/s, "
        f"{report.bytes_before / 1e6:.2f} -> {report.bytes_after / 1e6:.2f} MB"
    )
