"""BigBird's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.errors import ConfigError
from suffice.patterns import Block, Causal, Global, Random, Window
from suffice.presets.sizes import checked
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec

LARGEST = 64  # positions of a block, the paper's


def bigbird(
    d_model: int,
    num_heads: int,
    *,
    length: int | None = None,
    block: int | None = None,
    window_blocks: int = 3,
    random_blocks: int = 3,
    global_blocks: int = 2,
    seed: int = 0,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """BigBird's attention: blocks that see neighbouring, random and the first blocks.

    Choose it for long input whose parts must meet within few layers: the random blocks are short
    cuts that a window lacks. Everything happens in whole blocks, which is what makes it fast. Not
    for input of some hundred tokens, where nearly every block is seen.

    Args:
        d_model: features.
        num_heads: query heads.
        length: the longest input, tokens; longer input is refused unless causal, which alone may
            leave it out.
        block: positions of a block. None = a sixteenth of length, 1 to 64; without a length 64.
        window_blocks: the own block and as many on each side: odd. Causal keeps the own and those
            before it.
        random_blocks: blocks drawn for each block, of all or, if causal, of those so far.
        global_blocks: how many first blocks see all and are seen by all.
        seed: of the draws; a model that is built again is the same.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Raises:
        ConfigError: without a length unless causal; for an even number of window blocks, or none.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T b (w + r + 2 g) d FLOPs of visible pairs for
        blocks of b, w window, r random and g global blocks; state 2 d numbers per token.
    Source: Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D (block 64, w = 3, r = 3,
        g = 2; BigBird-ITC). Ours draws a random block from each third of the blocks, the same for
        all heads, and it may be one that is seen anyway; global are the first blocks, where the
        published code takes the first and the last.
    """
    if length is None and not causal:
        raise ConfigError(
            "bigbird draws random blocks of the whole input; give length=, in tokens, or "
            "causal=True to draw from the past of inputs of any length."
        )
    if checked("window_blocks", window_blocks) % 2 == 0:
        raise ConfigError(
            f"window_blocks={window_blocks}: the window is a block and as many on each side; give "
            "an odd number."
        )
    if length is None:
        block = LARGEST if block is None else block
    elif block is None:
        block = min(LARGEST, max(1, checked("length", length) // 16))
    blocks = None if causal else -(-checked("length", length) // checked("block", block))
    over = Window(window_blocks // 2 + 1) | Random(random_blocks, length=blocks, seed=seed)
    pattern = Block(block, over | Global(global_blocks))
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(base, pattern=pattern & Causal() if causal else pattern)
