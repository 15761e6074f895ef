"""The base of all model configs: checked sizes, JSON, and one attention spec per block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from suffice.errors import ConfigError, check_known
from suffice.spec import AttentionSpec, check_shares
from suffice.utils.records import check_fields, decode, encode, type_hints

POSITIONS = ("learned", "sinusoidal", "none")
"""Position embeddings that a model can add to its tokens."""
SIZES = (int, tuple[int, ...])  # types of fields

C = TypeVar("C", bound="ModelConfig")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of the sizes of a model.

    Integers, and tuples of them, are sizes of at least 1; `eps` and `start` are above 0; `dropout`
    and `head_dropout` are in [0, 1); fields named in `choices` hold one of those words.
    """

    choices: ClassVar[dict[str, Collection[str]]] = {}

    def __post_init__(self) -> None:
        check_fields(self)
        sizes = [name for name, hint in type_hints(type(self)).items() if hint in SIZES]
        self._check(sizes, _is_size, "give whole numbers of at least 1")
        self._check(("eps",), lambda x: x > 0.0, "give a number above 0, such as 1e-5")
        self._check(("start",), lambda x: x > 0.0, "give a number above 0, such as 0.02")
        dropouts = ("dropout", "head_dropout")
        self._check(dropouts, lambda x: 0.0 <= x < 1.0, "give at least 0 and below 1")
        for name, legal in self.choices.items():
            check_known(name, getattr(self, name), legal)

    def _check(self, names: Iterable[str], legal: Callable[[Any], bool], advice: str) -> None:
        values = {name: getattr(self, name) for name in names if hasattr(self, name)}
        wrong = [f"{name}={value!r}" for name, value in values.items() if not legal(value)]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: {advice}.")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return encode(dataclasses.asdict(self))

    @classmethod
    def from_json(cls: type[C], data: Any) -> C:
        """Rebuild a config from `to_json`'s data."""
        return decode(cls, data, where=cls.__name__, error=ConfigError)


def _is_size(value: int | tuple[int, ...]) -> bool:
    return all(size >= 1 for size in (value if isinstance(value, tuple) else (value,)))


def specs_of_blocks(
    spec: AttentionSpec | Sequence[AttentionSpec], *, depth: int, d_model: int, length: int
) -> list[AttentionSpec]:
    """Return one spec for each block: a single spec repeated, or a checked sequence."""
    specs = [spec] * depth if isinstance(spec, AttentionSpec) else spec
    if not isinstance(specs, Sequence) or not all(isinstance(s, AttentionSpec) for s in specs):
        raise ConfigError(
            f"spec={spec!r:.60} is neither an AttentionSpec nor a list of them; give, for example, "
            f'preset("standard", d_model={d_model}, num_heads=4, causal=True).'
        )
    if len(specs) != depth:
        raise ConfigError(f"{len(specs)} specs for {depth} blocks; give one, or one for each.")
    for number, block in enumerate(specs):
        if block.d_model != d_model:
            raise ConfigError(
                f"block {number} has a spec of d_model={block.d_model} in a model of "
                f"d_model={d_model}; they must be equal."
            )
        if block.widths.d_source != d_model:
            raise ConfigError(
                f"block {number} has a spec that reads a source {block.widths.d_source} wide in a "
                f"model of d_model={d_model}; leave d_source out."
            )
        if block.max_length is not None and block.max_length < length:
            raise ConfigError(
                f"block {number} has a spec for at most {block.max_length} tokens in a model of "
                f"{length}; build it with length={length}."
            )
    check_shares(specs)
    return list(specs)


def check_unshared(specs: Sequence[AttentionSpec], where: str) -> None:
    """Raise if a layer shares keys and values in a model whose layers all make their own."""
    for number, spec in enumerate(specs):
        if spec.shares is not None:
            raise ConfigError(
                f"block {number} has shares={spec.shares}, and every layer of {where} makes its "
                "own keys and values; give specs without shares."
            )


def check_causal(specs: Sequence[AttentionSpec]) -> None:
    """Raise if a block that predicts the next token can see later ones."""
    for number, spec in enumerate(specs):
        if not spec.mixing.keeps_keys:
            raise ConfigError(
                f"block {number} has mixing={spec.mixing!r}, which sums the keys of a whole text, "
                "later ones too, and cannot predict the next token; choose another mechanism."
            )
        if not spec.pattern.causal:
            raise ConfigError(
                f"block {number} has pattern={spec.pattern!r}, which sees later tokens, in a model "
                "that predicts them; give causal specs, as preset(..., causal=True) returns."
            )


def check_crosses(specs: Sequence[AttentionSpec]) -> None:
    """Raise if the cross-attention of a block relates positions of a single text."""
    for number, spec in enumerate(specs):
        if reasons := spec.refuses_source():
            raise ConfigError(f"block {number} has cross-attention, but {' '.join(reasons)}")
