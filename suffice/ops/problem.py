"""What an op is asked to compute, without the tensors: everything its choice may depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suffice.kernels import Kernel, Softmax
from suffice.patterns import Causal, Full, Pattern
from suffice.positions import NoPosition, Position
from suffice.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention call.

    Args:
        queries: T, positions.
        keys: S, positions.
        num_heads: query heads, H.
        num_kv_heads: key/value heads, G; divides H.
        head_dim: width of queries and keys, D.
        value_dim: width of values, E.
        scale: factor of the query-key products.
        pattern: which keys a query may see.
        kernel: how products become weights.
        position: what is added to the products, if it biases.
        plain: True if no valid, segments, mask or positions restrict the pattern further.
        pairwise: True if data name the allowed pairs one by one (a mask, two sequences' segments).
        dropping: True if weights are dropped (training with dropout).
        device: device type, "cpu" or "cuda".
        dtype: of queries, keys and values.
    """

    queries: int
    keys: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    pattern: Pattern = Full()
    kernel: Kernel = Softmax()
    position: Position = NoPosition()
    plain: bool = True
    pairwise: bool = False
    dropping: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(
        cls,
        spec: AttentionSpec,
        queries: int,
        keys: int,
        *,
        plain: bool = True,
        pairwise: bool = False,
        dropping: bool = False,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Problem:
        """Return the problem a layer of this spec poses at these lengths."""
        return cls(
            queries=queries,
            keys=keys,
            num_heads=spec.num_heads,
            num_kv_heads=spec.kv_heads,
            head_dim=spec.head_width,
            value_dim=spec.head_width,
            scale=spec.score_scale,
            pattern=spec.pattern,
            kernel=spec.kernel,
            position=spec.position,
            plain=plain,
            pairwise=pairwise,
            dropping=dropping,
            device=device,
            dtype=dtype,
        )

    def grown(self, keys: int) -> Problem:
        """Return the same with another number of keys: what each token of a text asks for."""
        grown = object.__new__(type(self))
        grown.__dict__.update(self.__dict__, keys=keys)
        return grown

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def unrestricted(self) -> bool:
        """True if every query sees every key."""
        last_only = self.queries == 1 and isinstance(self.pattern, Causal)
        return self.plain and (isinstance(self.pattern, Full) or last_only)

    @property
    def triangular(self) -> bool:
        """True if the pattern is the plain lower triangle and nothing is added to the products."""
        square = self.queries == self.keys and not self.position.biases
        return self.plain and isinstance(self.pattern, Causal) and square
