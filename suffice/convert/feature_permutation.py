"""Features of a language model in the order that suits column slices, which changes nothing else.

What a head takes as columns are the features that stand at its slice. All layers read one residual
stream, so one order serves all of them: the heads of the layers that will take slices choose
features in turns, each the one that tells most of what the head's values, and keys, still lack.

Letters: M d_model, D head width, G key/value heads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suffice.convert.calibration import Moments, attentions, ridged
from suffice.convert.closed_form import energy, turning
from suffice.convert.exact import Change
from suffice.convert.maps import Maps, read
from suffice.encoders import Columns
from suffice.layers import Attention
from suffice.models import LM

SLICED = {"optimised": False, "efficient": True, "super": True}
"""Changes that take columns, and whether keys are columns, too."""
READS = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.up", "mlp.gate")
WRITES = ("attention.o_proj", "mlp.down")


def arranged(
    model: nn.Module, asked: Mapping[str, Change], moments: Mapping[str, Moments]
) -> tuple[nn.Module, Mapping[str, Moments]]:
    """Return a model that computes the same with its features in another order.

    Args:
        model: as it is.
        asked: what is asked of the layers that will be fitted, by name.
        moments: of their inputs.

    Returns:
        The model, and the moments in that order; both as they were where no layer takes columns,
        or the model is none whose features can be moved.
    """
    sliced = {name: one for name, one in asked.items() if _keys_too(one) is not None}
    if not sliced or not can_permute(model):
        return model, moments
    own = attentions(model)
    heads = max(one.spec.kv_heads for one in sliced.values())
    width = next(iter(sliced.values())).spec.head_width
    wants = [
        _Wants(own[name], moments[name], heads, keys=bool(_keys_too(one)))
        for name, one in sliced.items()
        if one.spec.kv_heads == heads
    ]
    order = _order(wants, heads, width, model.config.d_model)
    moved = {name: one.permuted(order) for name, one in moments.items()}
    return permuted(model, order), moved


def permuted(lm: LM, order: Tensor) -> LM:
    """Return a language model whose feature i is what feature order[i] was; its logits are equal.

    Args:
        lm: with learned positions or none, and learned keys and values.
        order: a permutation of its features, [M].
    """
    other = copy.deepcopy(lm)
    tables = [other.embedding.tokens, other.embedding.positions, other.head]
    norms = [other.norm]
    for block in other.blocks:
        norms += [block.attention_norm, block.mlp_norm]
        maps = dict(block.named_modules())
        tables += [maps.get(name) for name in READS]
        for name in WRITES:
            _move(maps[name].weight, order, 0)
            _move(maps[name].bias, order, 0)
    for table in tables:
        _move(getattr(table, "weight", None), order, 1)
    for norm in norms:
        _move(norm.weight, order, 0)
        _move(getattr(norm, "bias", None), order, 0)
    return other


def _keys_too(change: Change) -> bool | None:
    """Return whether keys become columns; None where values do not either."""
    found = [SLICED[step.name] for step in change.steps if step.name in SLICED]
    return any(found) if found else None


def can_permute(model: nn.Module) -> bool:
    """Return whether the features of a model can change their order."""
    if type(model) is not LM or model.config.positions == "sinusoidal":
        return False
    return not any(isinstance(one, Columns) for one in model.modules())


@torch.no_grad()
def _move(tensor: Tensor | None, order: Tensor, dim: int) -> None:
    if tensor is not None:
        tensor.copy_(tensor.index_select(dim, order.to(tensor.device)))


class _Wants:
    """What the heads of one layer still lack.

    Args:
        layer: as it is.
        moments: of its inputs.
        heads: that take slices, G.
        keys: whether keys are columns, too.
    """

    def __init__(self, layer: Attention, moments: Moments, heads: int, *, keys: bool) -> None:
        spec, maps = layer.spec, read(layer)
        self.spread = ridged(moments.spread(centred=spec.bias))
        self.second = ridged(moments.augmented[:-1, :-1])
        self.values = [_Lack(self.spread, part) for part in _of_values(maps, heads)]
        pairs, still = turning(spec.position, spec.head_width)
        of_keys = _of_keys(maps, heads, moments) if keys else []
        self.keys = [_Lack(self.spread, part[:, still]) for part in of_keys if still]
        self.pairs = [
            {at: (pair, part) for pair in pairs for at in pair} for part in of_keys if pairs
        ]
        self.totals = [
            sum(float(((self.second @ part[:, list(p)]) * part[:, list(p)]).sum()) for p in pairs)
            for part in of_keys
        ]

    def gains(self, head: int, at: int, placed: dict[int, int]) -> Tensor:
        """Return what each feature would tell at a place of a head's slice, [M].

        Args:
            head: of the slices.
            at: the place in its slice.
            placed: the features that stand at places of it already.
        """
        found = self.values[head].gains()
        if self.pairs and at in self.pairs[head]:
            found = found + self._of_pair(head, at, placed)
        elif self.keys:
            found = found + self.keys[head].gains()
        return found

    def _of_pair(self, head: int, at: int, placed: dict[int, int]) -> Tensor:
        """Return what a feature tells of keys that turn, with its partner where there is one."""
        (a, b), part = self.pairs[head][at]
        read = torch.complex(*(self.second @ part[:, [a, b]]).T.contiguous())
        power, sign = self.second.diagonal(), 1 if at == b else -1
        partner = placed.get(a if at == b else b)
        if partner is None:
            gain = read.abs().square() / power
        else:
            both = read[partner] + sign * -1j * read
            gain = both.abs().square() / (power + power[partner])
            gain = gain - read[partner].abs().square() / power[partner]
        return gain / max(self.totals[head], 1e-300)

    def take(self, head: int, feature: int) -> None:
        """Count a feature as told to a head."""
        self.values[head].take(feature)
        if self.keys:
            self.keys[head].take(feature)


class _Lack:
    """What some features have not told yet of a map of the input.

    Args:
        spread: second moments of the input, [M, M].
        part: the map, [M, D].
    """

    def __init__(self, spread: Tensor, part: Tensor) -> None:
        self.spread = spread
        self.told: list[Tensor] = []
        self.power = spread.diagonal().clone()
        self.floor = self.power * 1e-9
        self.left = spread @ part
        self.part = part
        self.total = float((self.left * part).sum())

    def gains(self) -> Tensor:
        """Return the share that each feature would tell, [M]."""
        left = self.left.square().sum(dim=1)
        return left / torch.maximum(self.power, self.floor) / max(self.total, 1e-300)

    def take(self, feature: int) -> None:
        """Leave out what a feature tells."""
        column = self.spread[:, feature].clone()
        for one in self.told:
            column -= one * one[feature]
        column /= torch.maximum(self.power, self.floor)[feature].sqrt()
        self.told.append(column)
        self.power = (self.power - column.square()).clamp(min=0.0)
        self.left = self.left - column[:, None] * (column @ self.part)


def _of_values(maps: Maps, heads: int) -> list[Tensor]:
    """Return what a slice has to tell of values, [M, D] for each head."""
    values = maps.of_query(maps.v)[:, :-1]
    return [
        torch.cat([v @ _root(o @ o.T) for v, o in zip(vs, os, strict=True)], dim=1)
        for vs, os in zip(values.chunk(heads), maps.o.chunk(heads), strict=True)
    ]


def _of_keys(maps: Maps, heads: int, moments: Moments) -> list[Tensor]:
    """Return what a slice has to tell of keys, weighed by the queries' energy, [M, D] each."""
    keys, energies = maps.of_query(maps.k)[:, :-1], energy(maps.q, moments)
    weighed = keys * energies.diagonal(dim1=1, dim2=2).sqrt()[:, None]
    return [part.sum(dim=0) / len(part) ** 0.5 for part in weighed.chunk(heads)]


def _root(matrix: Tensor) -> Tensor:
    return torch.linalg.cholesky(ridged(matrix, 1e-9))


def _order(wants: list[_Wants], heads: int, width: int, features: int) -> Tensor:
    """Return the feature for each place: the slices first, then those that no head took."""
    free = torch.ones(features, dtype=torch.bool)
    placed: list[dict[int, int]] = [{} for _ in range(heads)]
    for at in range(width):
        for head in range(heads):
            gains = sum(one.gains(head, at, placed[head]) for one in wants)
            feature = int(torch.where(free, gains, -1.0).argmax())
            free[feature] = False
            placed[head][at] = feature
            for one in wants:
                one.take(head, feature)
    taken = [placed[head][at] for head in range(heads) for at in range(width)]
    return torch.tensor(taken + free.nonzero()[:, 0].tolist())
