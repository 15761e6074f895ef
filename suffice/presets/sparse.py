"""Mechanisms whose pattern leaves pairs out, sized by the length of the input where it is given."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, isqrt

from suffice.errors import ConfigError
from suffice.patterns import Block, Causal, Fixed, Global, Pattern, PerHead, Random, Strided, Window
from suffice.positions import Rope
from suffice.presets.paper import standard
from suffice.spec import AttentionSpec
from suffice.utils.records import is_whole


def checked(name: str, size: int) -> int:
    """Return a size; raise ConfigError if it is not a whole number of at least 1."""
    if not is_whole(size, least=1):
        raise ConfigError(f"{name}={size!r}: give a whole number of at least 1.")
    return size


def _window(window: int | None, length: int | None, published: int) -> Window:
    if window is None:
        window = published if length is None else max(2, checked("length", length) // 8)
    return Window(window)


def _stride(stride: int | None, length: int | None) -> int:
    if stride is not None:
        return checked("stride", stride)
    return 128 if length is None else max(2, isqrt(checked("length", length)))


def _sparse(
    d_model: int, num_heads: int, pattern: Pattern, *, causal: bool, bias: bool, dropout: float
) -> AttentionSpec:
    return AttentionSpec(
        d_model=d_model,
        num_heads=num_heads,
        pattern=pattern & Causal() if causal else pattern,
        bias=bias,
        dropout=dropout,
    )


def sliding_window(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Sliding-window attention: each position sees its neighbours only.

    Choose it for long input whose meaning is local: text, audio, time series. Time and memory grow
    with the length, not with its square, and n layers reach n (window - 1) positions. Not where one
    layer must relate what is far apart, and not for input about as short as the window, which full
    attention serves as fast.

    Args:
        window: size w: each position attends to positions less than w away, itself included;
            causal, exactly this many. None: an eighth of length, at least 2; without a length 256.
        length: the input that sizes not given are made for, tokens; longer input is served too.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + 4 T (2 w - 1) d FLOPs of visible pairs, causal
        8 T d^2 + 4 T w d; KV cache 2 d numbers per token, of which the last w are read.
    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "sliding window". The paper counts
        both sides: its w is our 2 window - 2, and its w = 512 our 257.
    """
    near = _window(window, length, 256)
    return _sparse(d_model, num_heads, near, causal=causal, bias=bias, dropout=dropout)


def mistral(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    full_every: int | None = None,
    num_kv_heads: int | None = None,
    layer: int = 0,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Mistral's attention: a window, shared key/value heads and rotary positions, layer by layer.

    Choose it for language models of long texts: a KV cache that stops growing at the window
    and is smaller by the heads that share it. Where something far back must be found exactly, give
    full_every=n: every n-th layer then sees everything, as in later hybrid models.
    Not for short input, which a window does not make cheaper.

    Args:
        window: size w: each position attends to positions less than w away, itself included;
            causal, exactly this many. None: an eighth of length, at least 2; without a length
            4096.
        full_every: number n: layers n - 1, 2 n - 1, ... see every key: 2 alternates, 6 is five
            windows to one full layer. None: every layer has the window, as in Mistral 7B.
        num_kv_heads: key/value heads; None: a quarter of the heads if 4 divides them, else a half,
            else all.
        layer: number of the layer in its model, from 0; `schedule` numbers the blocks.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        bias: bias terms in the projections; the paper's model has none.

    Raises:
        ConfigError: for a negative layer, or full_every below 1.

    Cost: 2 (1 + g) (d^2 + d) parameters for g = num_kv_heads / num_heads (biases of K and V shrink
        too); 4 T w d FLOPs of visible pairs in a causal layer with a window; KV cache 2 g d numbers
        per token, of which the last w are read.
    Source: Jiang et al. 2023, arXiv:2310.06825, section 2 (window 4096 in all layers, 32 heads on
        8 key/value heads). `full_every` is not the paper's: Gemma Team 2024, arXiv:2408.00118,
        section 2 (every second layer), and Gemma Team 2025, arXiv:2503.19786, section 2 (every
        sixth).
    """
    if not is_whole(layer, least=0):
        raise ConfigError(f"layer={layer!r}: layers have whole numbers from 0.")
    near = _window(window, length, 4096)
    if num_kv_heads is None:
        num_kv_heads = num_heads // gcd(num_heads, 4)  # Mistral 7B shares each among 4 query heads
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    base = replace(base, num_kv_heads=num_kv_heads, position=Rope())
    if full_every is not None and (layer + 1) % checked("full_every", full_every) == 0:
        return base
    return replace(base, pattern=near & Causal() if causal else near)


def longformer(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    global_tokens: int = 1,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Longformer's attention: a window, and a few first tokens that see and are seen by all.

    Choose it for long documents that are classified or asked about: the class token or the
    question stands first and reads everything, the rest reads its surroundings, at a cost that
    grows with the length. Not causal without need: the first tokens then read nothing of what
    follows them.

    Args:
        window: size w: each position attends to positions less than w away, itself included.
            None = an eighth of length, at least 2; without a length 257, the paper's 256 on each
            side.
        global_tokens: number of first positions that are global; 1 as for the paper's class token.
        length: the input that sizes not given are made for, tokens; longer input is served too.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T (2 w - 1 + 2 g) d FLOPs of visible pairs;
        KV cache 2 d numbers per token.
    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1. Ours has the same linear maps for
        global pairs, where the paper learns a second set; global positions are the first ones,
        where the paper lets a task choose; no dilation, which the paper uses in some heads of its
        character models only.
    """
    near = _window(window, length, 257)
    pattern = near | Global(global_tokens)
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)


def etc(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    global_tokens: int | None = None,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """ETC's global-local attention: many global tokens first, then a long input with a window.

    Choose it for structured input that brings its own summary tokens: one for each sentence or
    paragraph, put in front of the text. Longformer with a fraction of the sequence global instead
    of a token or two; without such tokens take longformer.

    Our reading: the global input is the first `global_tokens` positions of one sequence, the long
    input is the rest. Global to global, global to long and long to global see every pair, long to
    long sees the window.

    Args:
        window: size w: each long position attends to long positions less than w away, itself
            included. None: an eighth of length, at least 2; without a length 85, the paper's
            radius of 84.
        global_tokens: number of first positions that are global. None: a sixteenth of length, at
            least 1; without a length 230, the paper's for 4096 long positions.
        length: the input that sizes not given are made for, tokens; longer input is served too.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T (2 w - 1 + 2 g) d FLOPs of visible pairs;
        KV cache 2 d numbers per token.
    Source: Ainslie et al. 2020, arXiv:2004.08483, section 3.2. Left out are the typed relations
        (learned labels of pairs, section 3.1), the masks that tie a global token to its own part of
        the long input, and separate linear maps for the four kinds of pairs, an option there; the
        window crosses the border between global and long input, where everything is seen anyway.
    """
    if global_tokens is None:
        global_tokens = 230 if length is None else max(1, checked("length", length) // 16)
    near = _window(window, length, 85)
    pattern = near | Global(global_tokens)
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)


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
        length: the longest input, tokens; longer input is refused unless causal, which alone may
            leave it out.
        block: positions of a block. None: a sixteenth of length, 1 to 64; without a length 64.
        window_blocks: its own block plus the same number on each side: odd. Causal keeps its own
            block and those before it.
        random_blocks: blocks drawn for each block, of all or, if causal, of those so far.
        global_blocks: number of first blocks that see all and are seen by all.
        seed: seed of the draws; a model that is built again is the same.

    Raises:
        ConfigError: without a length unless causal; for an even number of window blocks, or none.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T b (w + r + 2 g) d FLOPs of visible pairs for
        blocks of b, w window, r random and g global blocks; KV cache 2 d numbers per token.
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
            f"window_blocks={window_blocks}: the window has its own block in the middle; give an "
            "odd number."
        )
    if block is None:
        block = 64 if length is None else min(64, max(1, checked("length", length) // 16))
    blocks = None if causal else -(-checked("length", length) // checked("block", block))
    over = Window(window_blocks // 2 + 1) | Random(random_blocks, length=blocks, seed=seed)
    pattern = Block(block, over | Global(global_blocks))
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)


def star_transformer(
    d_model: int,
    num_heads: int,
    *,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Star-Transformer's attention: every token sees its two neighbours and one relay for all.

    Choose it for short, modest data sets and the smallest number of pairs: any two tokens meet
    through the relay in two layers. Not for language models: causal, the relay reads nothing.

    Our reading: the relay is the first token of the sequence, so a class token there does both;
    the ring is `Window(2)`, the star `Global(1)`.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 20 T d FLOPs of visible pairs; KV cache 2 d
        numbers per token.
    Source: Guo et al. 2019, arXiv:1902.09113, section 3. Ours updates relay and tokens at once,
        where the paper takes turns and starts the relay as a mean; the ends of the ring do not
        meet; a token does not read its own embedding again in every layer; every layer has maps of
        its own.
    """
    pattern = Window(2) | Global(1)
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)


def _factorised(near: Pattern, far: Pattern, num_heads: int, *, per_head: bool) -> Pattern:
    """Return the union of two patterns, or the first for the first half of the heads."""
    if not per_head:
        return near | far
    if num_heads < 2:  # noqa: PLR2004
        raise ConfigError(
            f"per_head gives the two patterns to different heads; num_heads={num_heads} is too "
            "few. Give two heads or more, or per_head=False."
        )
    half = num_heads // 2
    return PerHead((near,) * (num_heads - half) + (far,) * half)


def sparse_strided(
    d_model: int,
    num_heads: int,
    *,
    stride: int | None = None,
    per_head: bool = False,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Strided sparse attention: the nearest keys, and every stride-th key of the whole input.

    Choose it for long input with a period, such as the rows of an image or bars of music, with the
    period as stride: any two positions meet in two layers at a cost of T sqrt(T). For text take
    sparse_fixed.

    Args:
        stride: positions, of the window too. None: the square root of length, at least 2; without
            a length 128.
        per_head: False = every head sees the union; True = the first half of the heads has the
            window, the others the stride.
        length: the input that sizes not given are made for, tokens; longer input is served too.

    Raises:
        ConfigError: for per_head with a single head.

    Cost: 4 (d^2 + d) parameters; causal, about 8 T d^2 + 4 T (l + T / 2 l) d FLOPs of visible
        pairs for stride l, without per_head; KV cache 2 d numbers per token.
    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, strided attention. The paper's window
        also holds the key at distance l, which here the stride brings; it is causal, ours only
        with causal=True.
    """
    stride = _stride(stride, length)
    pattern = _factorised(Window(stride), Strided(stride), num_heads, per_head=per_head)
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)


def sparse_fixed(
    d_model: int,
    num_heads: int,
    *,
    stride: int | None = None,
    tail: int | None = None,
    per_head: bool = False,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Fixed sparse attention: the own stretch, and the last keys of every stretch.

    Choose it for long text: the ends of the stretches gather what their stretch says and hand it
    on, whatever the distance, with T sqrt(T) visible pairs. The ops here compute whole blocks of
    64 x 64 pairs: nothing is saved up to 4,096 tokens, half at 16,384.
    For input with a period take sparse_strided.

    Args:
        stride: length of a stretch, positions. None: the square root of length, at least 2;
            without a length 128.
        tail: number of last keys of each stretch that all see. None: a quarter of the stride,
            at least 1: 32 for the paper's 128.
        per_head: False = every head sees the union; True = the first half of the heads has the
            own stretch, the others the tails. Causal, these see nothing before the first tail.
        length: the input that sizes not given are made for, tokens; longer input is served too.

    Raises:
        ConfigError: for per_head with a single head.

    Cost: 4 (d^2 + d) parameters; causal, about 8 T d^2 + 4 T (l + c T / l) d / 2 FLOPs of visible
        pairs for stride l and tail c, without per_head; KV cache 2 d numbers per token.
    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, fixed attention. It is causal, ours
        only with causal=True; all heads have one tail, where the paper's may take different parts
        of the stretch.
    """
    stride = _stride(stride, length)
    tail = max(1, stride // 4) if tail is None else tail
    pattern = _factorised(Block(stride), Fixed(stride, tail), num_heads, per_head=per_head)
    return _sparse(d_model, num_heads, pattern, causal=causal, bias=bias, dropout=dropout)
