"""Training steps of language models against a plain GPT with torch's AdamW, nanoGPT's sizes.

Run: python -m benchmarks.language [--rounds 15] [--case small|large]

Both sides make whole steps: forward, loss, backward, clipping, AdamW. The peer is what a reader of
nanoGPT would write: fused query-key-value map, torch's SDPA, torch.optim.AdamW as on a CPU.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.report import Row, gate, print_machine, print_rows
from suffice.models import LM, configuration
from suffice.train import optimiser
from suffice.train.language import Batch, LMTraining, summed_loss
from suffice.utils.timing import Clock, interleave

VOCABULARY = 65
CASES = {  # configuration, length, rows, reach of each mechanism
    "small": ("nanogpt_char_cpu", 64, 12, {"standard": 1.4, "efficient": 1.4}),
    "large": ("nanogpt_char", 256, 12, {"standard": 1.0, "efficient": 1.12}),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Peer(nn.Module):
    """A plain GPT."""

    def __init__(self, lm: LM) -> None:
        super().__init__()
        config, heads = lm.config, lm.specs[0].num_heads
        self.tokens = nn.Embedding(config.vocabulary_size, config.d_model)
        self.positions = nn.Embedding(config.length, config.d_model)
        self.blocks = nn.ModuleList(Block(config.d_model, heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.d_model, bias=False)

    @torch.no_grad()
    def copied(self, lm: LM) -> Peer:
        """Take the weights of our Standard model, so that both compute the same."""
        self.tokens.weight.copy_(lm.embedding.tokens.weight)
        self.positions.weight.copy_(lm.embedding.positions.weight)
        self.norm.weight.copy_(lm.norm.weight)
        for own, block in zip(self.blocks, lm.blocks, strict=True):
            attention = block.attention
            maps = (attention.q_proj, attention.k_proj, attention.v_proj)
            own.attention.qkv.weight.copy_(torch.cat([one.weight for one in maps]))
            own.attention.out.weight.copy_(attention.o_proj.weight)
            own.up.weight.copy_(block.mlp.up.weight)
            own.down.weight.copy_(block.mlp.down.weight)
            own.first.weight.copy_(block.attention_norm.weight)
            own.second.weight.copy_(block.mlp_norm.weight)
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def ours(lm: LM, batch: Batch, training: LMTraining):
    adamw, learned = optimiser.build(lm, training), list(lm.parameters())

    def step() -> None:
        adamw.zero_grad(set_to_none=True)
        (summed_loss(lm, batch, dtype="float32") / batch.targets.numel()).backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        adamw.step()

    return step


def theirs(peer: Peer, batch: Batch, training: LMTraining):
    matrices = [p for p in peer.parameters() if p.dim() >= 2]
    vectors = [p for p in peer.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=training.learning_rate, betas=training.betas)

    def step() -> None:
        logits = peer(batch.tokens)
        F.cross_entropy(logits.view(-1, VOCABULARY), batch.targets.view(-1)).backward()
        nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def case(name: str, rounds: int, clock: Clock | None = None) -> list[Row]:
    """Return a row for each mechanism of a case; the clock is that of `interleave`."""
    configured, length, rows, reach = CASES[name]
    torch.manual_seed(0)
    drawn = torch.randint(VOCABULARY, (rows, length + 1))
    batch = Batch(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())
    training = LMTraining(
        steps=1, batch_size=rows, length=length, learning_rate=1e-3, weight_decay=0.1
    )
    calls = {}
    for mechanism in reach:
        config, specs = configuration(configured, mechanism, length=length, dropout=0.0)
        lm = config.build(specs)
        if mechanism == "standard":
            peer = Peer(lm).copied(lm)
            gate(name, lm(batch.tokens), peer(batch.tokens))
            calls["peer"] = theirs(peer, batch, training)
        calls[mechanism] = ours(lm, batch, training)
    times = interleave(calls, rounds=rounds, warmup=2, min_seconds_per_sample=0.2, clock=clock)
    return [
        Row(
            case=f"{mechanism}, {configured}, B={rows}, T={length}",
            peer="plain GPT, torch AdamW",
            ours=times[mechanism],
            theirs=times["peer"],
            reach=1 / least,
        )
        for mechanism, least in reach.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", choices=CASES, action="append")
    given = parser.parse_args()
    print_machine()
    for name in given.case or CASES:
        print_rows(f"a training step, {name}", case(name, given.rounds))


if __name__ == "__main__":
    main()
