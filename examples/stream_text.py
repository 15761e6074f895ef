"""A language model, trained for seconds on Python source code, writes with several KV caches."""

import argparse
import inspect

import torch

import suffice
from suffice.generate import generate
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.models import LMConfig
from suffice.text import Characters

STEPS, LENGTH = 60, 64

torch.manual_seed(0)
source = inspect.getsource(argparse)
tokenizer = Characters.of([source])
tokens = torch.tensor(tokenizer.encode(source))
config = LMConfig(
    vocabulary_size=tokenizer.vocabulary_size, length=LENGTH, d_model=64, depth=2, mlp_width=128
)
model = config.build(suffice.preset("efficient", 64, 4, causal=True))

optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    positions = torch.randint(len(tokens) - LENGTH, (16, 1)) + torch.arange(LENGTH)
    rows = tokens[positions]
    loss = torch.nn.functional.cross_entropy(
        model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
    )
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"loss after {STEPS} steps: {loss.item():.2f} nats per character")

prompt = torch.tensor([tokenizer.encode("    def ")])
for memory in (Dynamic(), Rolling(32, sinks=4), Quantised(Dynamic(), bits=8)):
    output = generate(model.eval(), prompt, max_new_tokens=24, memory=memory)
    print(f"{memory!r:60} {tokenizer.decode(output.tokens[0].tolist())!r}")
