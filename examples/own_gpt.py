"""A loop in the manner of nanoGPT, compared: next characters, with shared keys and a window."""

import inspect
import tempfile
import turtle

import torch
from torch import nn
from torch.nn import functional as F

import suffice

text = inspect.getsource(turtle)
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
cut = len(data) * 9 // 10
LENGTH, WIDTH, HEADS = 32, 48, 4


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention(WIDTH, HEADS, causal=True, length=LENGTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(2)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters)))

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.places.weight))


def batch(part, size):
    starts = torch.randint(len(part) - LENGTH - 1, (size,))
    rows = starts[:, None] + torch.arange(LENGTH)
    return part[rows], part[rows + 1]


def train(attention, seed):  # noqa: ARG001 - the generators are seeded already
    """Characters of Python's turtle, a small GPT"""
    model = GPT(attention)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        ids, following = batch(data[:cut], 24)
        loss = F.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    rows = torch.arange(cut, len(data) - LENGTH - 1, LENGTH)[:, None] + torch.arange(LENGTH)
    with torch.no_grad():
        logits, following = model(data[rows]).flatten(0, 1), data[rows + 1].flatten()
    right = (logits.argmax(dim=1) == following).double().mean()
    return {"accuracy": right, "loss": F.cross_entropy(logits, following)}


def window(d_model, num_heads, **options):
    return suffice.preset("sliding_window", d_model, num_heads, window=8, causal=options["causal"])


mechanisms = {"standard": "standard", "mqa": "mqa", "window of 8": window}
with tempfile.TemporaryDirectory() as out:
    print(suffice.compare(train, mechanisms, seeds=3, margin=0.02, out=out))
