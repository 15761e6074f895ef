"""How the numbers of a matrix are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.errors import ConfigError
from suffice.fields import check_fields
from suffice.native.matrix import COLUMNS, check_group

DEFAULT = {8: 128, 4: 32}  # inputs with one scale, at most


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the numbers of a matrix are stored.

    Args:
        bits: of a number: 16 (half precision), 8 or 4.
        group: inputs with one scale, a half-precision number more for each; None for 16 bits.

    Raises:
        ConfigError: for other bits, a group with 16 bits, or none with fewer.
    """

    bits: int
    group: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.bits not in (16, *COLUMNS):
            raise ConfigError(f"bits={self.bits}: give 16, 8 or 4.")
        if (self.group is None) != (self.bits == 16):  # noqa: PLR2004
            raise ConfigError(
                f"bits={self.bits} with group={self.group}: 8 and 4 bits have groups of inputs "
                "with one scale, 16 bits have none."
            )

    @classmethod
    def of(cls, inputs: int, bits: int, group: int | None = None) -> Scheme:
        """Return the scheme for a matrix of so many inputs.

        Args:
            inputs: of the matrix.
            bits: 16, 8 or 4.
            group: inputs with one scale; None = the most that fit, up to 128 in 8 bits and 32 in
                4 bits.

        Raises:
            ConfigError: if no group fits.

        Example:
            >>> Scheme.of(288, 8), Scheme.of(288, 4)
            (Scheme(bits=8, group=96), Scheme(bits=4, group=32))
        """
        if bits in COLUMNS and group is None:
            wide = COLUMNS[bits]
            if inputs % wide:
                raise ConfigError(f"{inputs} inputs are no multiple of {wide}, as {bits} bits need")
            group = max(g for g in range(wide, DEFAULT[bits] + 1, wide) if inputs % g == 0)
        scheme = cls(bits=bits, group=group)
        scheme.check(inputs)
        return scheme

    def check(self, inputs: int) -> None:
        """Refuse a matrix of so many inputs if the groups do not fit it.

        Raises:
            ConfigError: saying which would.
        """
        if self.group is not None:
            check_group(self.bits, inputs, self.group)

    def to_json(self) -> dict[str, Any]:
        """Return the scheme as plain data."""
        return {"bits": self.bits} | ({} if self.group is None else {"group": self.group})

    @classmethod
    def from_json(cls, data: Any) -> Scheme:
        """Rebuild a scheme from `to_json`'s data.

        Raises:
            ConfigError: for anything else.
        """
        if not isinstance(data, dict) or not {"bits"} <= data.keys() <= {"bits", "group"}:
            raise ConfigError(f'{data!r:.80} is no scheme; write it as {{"bits": 8, "group": 32}}.')
        return cls(**data)

    def __str__(self) -> str:
        """Return it in a word, such as "int8/128": codes of 8 bits in groups of 128."""
        return "float16" if self.group is None else f"int{self.bits}/{self.group}"
