"""Heads that share keys and values: fitted in closed form, next to the usual mean of heads."""

import argparse
import inspect

import torch

import suffice
from suffice.convert import convert
from suffice.models import LMConfig
from suffice.text import Characters

STEPS, LENGTH = 60, 48

torch.manual_seed(0)
source = inspect.getsource(argparse)
tokenizer = Characters.of([source])
tokens = torch.tensor(tokenizer.encode(source))
rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
trained, calibration, held_out = rows[:-96], rows[-96:-48].split(16), rows[-48:].split(16)

config = LMConfig(
    vocabulary_size=tokenizer.vocabulary_size, length=LENGTH, d_model=64, depth=2, mlp_width=128
)
model = config.build(suffice.preset("standard", 64, 4, causal=True))
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    batch = trained[torch.randint(len(trained), (16,))]
    loss = torch.nn.functional.cross_entropy(
        model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
    )
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

for naive in (True, False):
    conversion = convert(model, "mqa", calibration=calibration, held_out=held_out, naive=naive)
    change = conversion.certificate.loss
    assert change  # there is one wherever rows are held out
    kind = "mean of heads" if naive else "closed form"
    print(
        f"mqa, {kind:13}: loss {change.before:.4f} -> {change.after:.4f} nats per character, "
        f"change {change.change:+.4f} ({change.low:+.4f} to {change.high:+.4f})"
    )
