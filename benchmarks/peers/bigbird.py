"""Hugging Face's BigBirdBlockSparseAttention, and a layer of the same three maps made of ours.

Both sides compute queries, keys and values and no output map. They are not the same function: the
port's global blocks are the first and the last, its random blocks are drawn with numpy, per head,
within the first 1024 positions at T = 1024, 3072 and 4096, and count twice where they repeat a
block; ours are the first two, and hashed from a seed, shared by the heads. Both have 3 window, 3
random and 2 global blocks. The port also fills a dense [B, H, T, T] tensor of weights, which it
returns; that is part of its time. x is [B, T, d_model].
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.contest import Side, timed
from benchmarks.exact import Heads, check, rows_of
from benchmarks.peers.installed import package
from suffice.ops import AttentionCall
from suffice.patterns import Block, Global, Pattern, Random, Window

MAPS = ("query", "key", "value")
BLOCK, RANDOM, SEED = 64, 3, 0


def pattern(length: int) -> Pattern:
    """Return 3 window, 3 random and 2 global blocks."""
    return Block(BLOCK, Window(2) | Random(RANDOM, length=-(-length // BLOCK)) | Global(2))


class Port:
    """The port with random weights and one draw of random blocks.

    Raises:
        Absent: if transformers is not installed.
    """

    def __init__(self, length: int, heads: int, width: int) -> None:
        port = package("transformers", "transformers.models.big_bird.modeling_big_bird")
        config = port.BigBirdConfig(
            hidden_size=heads * width,
            num_attention_heads=heads,
            block_size=BLOCK,
            num_random_blocks=RANDOM,
            max_position_embeddings=4096,
        )
        torch.manual_seed(0)
        module = port.BigBirdBlockSparseAttention(config, seed=SEED)
        self.module: nn.Module = module.train()  # it draws no block in eval; it has no dropout
        self.length, self.heads = length, heads
        blocked, band, rows, columns = port.BigBirdModel.create_masks_for_block_sparse_attn(
            torch.ones(1, length), BLOCK
        )
        self.masks = (band, rows, columns, blocked, blocked)
        self.counts = self._counts()

    def theirs(self, x: Tensor) -> Tensor:
        """Return the port's output."""
        return self.module(x, *self.masks)[0]

    def ours(self, x: Tensor, *, attention: Heads) -> Tensor:
        """Return the layer with our attention between the port's maps."""
        return attention(*self._maps(x)).transpose(1, 2).flatten(2)

    def exact_theirs(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return rows of what the port computes: a softmax that counts some keys twice."""
        q, k, v = self._maps(x)
        often = self.counts[:, rows // BLOCK].repeat_interleave(BLOCK, dim=2)
        scores = q[:, :, rows] @ k.transpose(-1, -2) * k.shape[-1] ** -0.5
        return ((scores + often.log()).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def exact_ours(self, x: Tensor, rows: Tensor, *, problem: AttentionCall) -> Tensor:
        """Return rows of ours."""
        return rows_of(*self._maps(x), rows, problem).transpose(1, 2).flatten(2)

    def _counts(self) -> Tensor:
        """Return how often each query block reads each key block: [H, blocks, blocks], float64."""
        blocks = self.length // BLOCK
        counts = torch.zeros(self.heads, blocks, blocks, dtype=torch.float64)
        for block in range(1, blocks - 1):
            counts[:, block, [0, block - 1, block, block + 1, blocks - 1]] = 1
        counts[:, [0, -1]] = 1
        drawn = torch.as_tensor(self._draw())  # [H, blocks - 2, RANDOM]
        ones = torch.ones(drawn.shape, dtype=torch.float64)
        counts[:, 1:-1].scatter_add_(2, drawn.long(), ones)
        return counts

    def _draw(self):
        """Return the random blocks that each of the port's calls draws anew from its seed."""
        import numpy

        numpy.random.seed(SEED)
        port, length = self.module, self.length
        if length in (1024, 3072, 4096):
            sizes = (port.max_seqlen, port.max_seqlen, BLOCK, BLOCK, RANDOM)
            mask = port._bigbird_block_rand_mask
            drawn = [mask(*sizes, last_idx=1024) for _ in range(self.heads)]
            return numpy.stack(drawn)[:, : length // BLOCK - 2]
        plan = port._get_rand_attn_plan(length, BLOCK, RANDOM)
        sizes = (length, length, BLOCK, BLOCK, self.heads)
        return numpy.stack(port._bigbird_block_rand_mask_with_head(*sizes, *plan))

    def _maps(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values [B, H, T, D] of x through the port's maps."""
        layers = [self.module.get_submodule(name) for name in MAPS]
        made = [nn.functional.linear(x, m.weight.to(x.dtype), m.bias.to(x.dtype)) for m in layers]
        return [y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in made]

    def side(self, x: Tensor, *, backward: bool) -> Side:
        """Return the port as a side."""
        return self._side("transformers BigBird", self.theirs, self.exact_theirs, x, backward)

    def our_side(
        self, name: str, attention: Heads, x: Tensor, problem: AttentionCall, *, backward: bool
    ) -> Side:
        """Return ours as a side."""
        compute = partial(self.ours, attention=attention)
        return self._side(name, compute, partial(self.exact_ours, problem=problem), x, backward)

    def _side(self, name, compute, exact, x: Tensor, backward: bool) -> Side:
        return Side(
            name=name,
            call=timed(compute, [x], backward=backward, module=self.module),
            check=partial(check, compute, exact, [x], backward=backward, n=x.shape[1]),
        )
