"""What a composition needs, in closed form: bytes, and work for each token or input.

Letters: T tokens of an input, d d_model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from suffice.advise.base import Base
from suffice.advise.candidates import Candidate
from suffice.advise.composition import Composition, writing
from suffice.cost import Cost
from suffice.layers.scheme import DEFAULT
from suffice.measure.edge.shapes import seen
from suffice.memory import Memory, Quantised
from suffice.memory.rolling import SLACK
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.undrawn import Undrawn
from suffice.recipes.attention import Sizes, built
from suffice.spec import AttentionSpec

NUMBER = 4  # bytes of a number in float32
SCALE = 2  # bytes of the scale of a group of packed weights
RANGE = 8  # bytes of the least number and the step of a group of packed keys or values


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of one input of the length asked for, and work.

    Args:
        weights: of the whole model.
        state: that is kept of the input while writing.
        activations: of the widest layer while the input is read at once, no kernel storing pairs.
        work: bytes read for each token where tokens are written, else FLOPs of an input.
    """

    weights: int
    state: int
    activations: int
    work: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.state + self.activations


def needs(one: Candidate, base: Base) -> Needs:
    """Return what a candidate needs.

    Example:
        >>> from suffice.advise.base import base_of
        >>> from suffice.advise.candidates import candidate
        >>> from suffice.advise.request import Request
        >>> base = base_of(Request(task="lm", model="15m", length=1024))
        >>> plain, efficient = (
        ...     needs(candidate(Composition.parse(name), base), base)
        ...     for name in ("standard", "efficient")
        ... )
        >>> efficient.state / plain.state
        1.0
    """
    costs = [_cost(spec, base) for spec in one.specs]
    numbers = _others(base) + sum(cost.parameters for cost in costs)
    weights = _packed(numbers, one.composition.weights)
    state, read = _state(one, base)
    if base.writes:
        rows = base.config.vocabulary_size if _looks_up(base.config) else 0
        unread = _packed(rows * base.config.d_model, one.composition.weights)
        work = weights - unread + read
    else:
        work = sum(cost.visible_flops for cost in costs) + 2 * base.length * _in_blocks(base)
    return Needs(weights=weights, state=state, activations=_activations(one, base), work=work)


def _looks_up(config: Sizes) -> bool:
    """Return whether tokens' rows are looked up only, and not read whole by the head."""
    return isinstance(config, LMConfig) and not config.tied


@cache
def _cost(spec: AttentionSpec, base: Base) -> Cost:
    # pairs are counted for FLOPs alone, slowly for long inputs; where one writes nobody asks
    return spec.cost(1 if base.writes else base.length)


@cache
def _plain(base: Base) -> nn.Module:
    """Return the model with standard attention, without content."""
    with torch.device("meta"), Undrawn():
        return built(base.config, Composition(mechanism="standard").specs(base))


@cache
def _others(base: Base) -> int:
    """Return the parameters of everything but the attention."""
    specs = Composition(mechanism="standard").specs(base)
    attention = sum(_cost(spec, base).parameters for spec in specs)
    return sum(p.numel() for p in _plain(base).parameters()) - attention


@cache
def _in_blocks(base: Base) -> int:
    """Return the parameters of the blocks' MLPs: each is multiplied once for each token."""
    return sum(p.numel() for block in _plain(base).blocks for p in block.mlp.parameters())


def _packed(numbers: int, bits: int | None) -> int:
    """Return the bytes of weights in so many bits, scales included."""
    if bits is None:
        return numbers * NUMBER
    scales = SCALE * numbers // DEFAULT[bits] if bits in DEFAULT else 0
    return numbers * bits // 8 + scales


def _state(one: Candidate, base: Base) -> tuple[int, int]:
    """Return the bytes that are kept of an input, and those that a token reads of them."""
    if not base.writes:
        return 0, 0
    kept = read = 0
    for spec in writing(list(one.specs), base):
        cost = _cost(spec, base)
        fixed = NUMBER * cost.state_fixed
        held = _held(one.memory, base.length)
        kept += _bytes(spec, cost.state_numbers, one.memory, held) + fixed
        near = seen(spec, one.memory, base.length)
        read += _bytes(spec, cost.state_numbers, one.memory, near) + fixed
    between = _between(one, base)
    return kept + between, read + between


def _bytes(spec: AttentionSpec, numbers: int, memory: Memory, positions: int) -> int:
    """Return the bytes that a layer keeps of so many positions."""
    if not isinstance(memory, Quantised):
        return NUMBER * numbers * positions
    near = min(positions, memory.recent + memory.block)  # are not coded yet
    # half of the numbers are keys with a range for a block, half values with one for a group
    ranges = RANGE * (1 / memory.block + 1 / min(memory.group, spec.head_width)) / 2
    coded = (memory.bits / 8 + ranges) * (positions - near)
    return round(numbers * (NUMBER * near + coded))


def _held(memory: Memory, length: int) -> int:
    """Return how many positions there is room for behind an input."""
    if memory.window is None:
        return length
    room = memory.window + max(memory.window, SLACK)
    return min(length, room) + memory.sinks


def _between(one: Candidate, base: Base) -> int:
    """Return the bytes of what a translator keeps of the source."""
    if not isinstance(base.config, TranslatorConfig):
        return 0
    first = base.config.encoder_depth + base.config.decoder_depth
    costs = [(spec, _cost(spec, base)) for spec in one.specs[first:]]
    own = sum(c.state_numbers for s, c in costs if s.projections.learns_keys)
    shared = any(not s.projections.learns_keys for s, _ in costs) * base.config.d_model
    return NUMBER * base.length * (own + shared)


def _activations(one: Candidate, base: Base) -> int:
    """Return the bytes of the widest layer: its residual stream, and what its maps give."""
    maps = 3 if getattr(base.config, "activation", "") == "swiglu" else 2
    of_mlp = maps * base.config.mlp_width
    of_attention = max(2 * spec.widths.q + 2 * spec.widths.kv for spec in one.specs)
    return NUMBER * base.length * (2 * base.config.d_model + max(of_mlp, of_attention))
