"""Your own model and training loop, compared: a plain loop of PyTorch on images of digits."""

import tempfile

import torch
from torch import nn

import suffice
from suffice.data import load

digits = load("digits")
splits = (digits.train, digits.validation, digits.test)
images = torch.cat([split.inputs for split in splits]).view(-1, 8, 8) / 16.0  # 8 rows of 8 pixels
labels = torch.cat([split.labels for split in splits])
cut = len(labels) * 3 // 4  # the rest is for the test


class Net(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.places = nn.Parameter(torch.zeros(8, 32))
        self.attention = attention(32, 4, length=8)  # was nn.MultiheadAttention(32, 4)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))

    def forward(self, x):
        x = self.embed(x) + self.places
        return self.head((x + self.attention(x)).mean(dim=1))


def train(attention, seed):  # noqa: ARG001 - the generators are seeded already
    """Digits, one attention layer in a loop of PyTorch"""
    net = Net(attention)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(cut).split(32):
            loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        logits = net(images[cut:])
    right = (logits.argmax(dim=1) == labels[cut:]).double().mean()
    return {"accuracy": right, "loss": nn.functional.cross_entropy(logits, labels[cut:])}


with tempfile.TemporaryDirectory() as out:
    print(suffice.compare(train, ["standard", "efficient"], seeds=3, margin=0.03, out=out))
