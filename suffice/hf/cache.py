"""A model's state as a `Cache` of transformers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from suffice.errors import ConfigError, StateError
from suffice.models.state import ModelState

CACHE_NAMES = ("cache", "past_key_values")  # since transformers 5.24, and before
CACHE_NAME = fields(BaseModelOutputWithPast)[1].name
"""The name that the installed transformers gives a cache, in arguments and in results."""


def pop_cache(arguments: dict[str, Any]) -> Any:
    """Remove the cache from arguments, under either name, and return it; None if there is none."""
    caches = [arguments.pop(name, None) for name in CACHE_NAMES]
    if None not in caches:
        raise ConfigError(f"{' and '.join(CACHE_NAMES)} are two names of one argument; set one.")
    return next((cache for cache in caches if cache is not None), None)


class SufficeCache(Cache):
    """A model's state, to give as `cache`, which transformers before 5.24 calls `past_key_values`.

    Args:
        state: state of the model that will fill it, such as `model.state(Rolling(256))`.
    """

    def __init__(self, state: ModelState) -> None:
        super().__init__(layers=[])
        self.state = state

    def __len__(self) -> int:
        return len(self.state.layers)

    def __repr__(self) -> str:
        first = self.state.layers[0]
        return f"SufficeCache({first.memory!r}, length={self.state.length})"

    @property
    def nbytes(self) -> int:
        """Bytes of everything the cache holds, spare capacity included."""
        return self.state.nbytes

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Raise StateError: layers do not always cache keys and values."""
        raise StateError(
            "a SufficeCache is filled by its own model; for a stock model use transformers' caches."
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - all are alike
        """Return the tokens read so far, padding included."""
        return self.state.length

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        """Return the tokens that fit; -1 = any number."""
        capacity = self.state.layers[0].memory.capacity
        return -1 if capacity is None else capacity

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Return how many positions a mask covers and the first of them: all, from 0."""
        return self.state.length + query_length, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace every row by another one, as a beam search does."""
        if self.state.length:
            self.state.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row; copies follow their row."""
        if self.state.length:
            self.state.repeat(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, by number or as a mask."""
        if indices.dtype is torch.bool:
            indices = indices.nonzero()[:, 0]
        if self.state.length:
            self.state.select(indices)

    def activate_past_recording(self) -> None:
        """Prepare for dropping drafts; ConfigError if a layer keeps sums of tokens."""
        for spec in (layer.spec for layer in self.state.layers):
            if sums := spec.beyond_pairs.get("past") or spec.beyond_pairs.get("kernel"):
                raise ConfigError(
                    f"{type(sums).__name__} keeps sums, which no token can be taken out of, so "
                    "drafts cannot be rejected; leave out assistant_model and "
                    "prompt_lookup_num_tokens."
                )

    def crop(self, tokens: int) -> None:
        """Drop the last n tokens for -n, or keep the first n for n; ConfigError if it cannot."""
        dropped = -tokens if tokens <= 0 else max(self.state.length - tokens, 0)
        if dropped:
            self.state.drop_last(dropped)

    def reset(self) -> None:
        """Forget everything."""
        self.state.reset()

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first call."""
        batch = self.state.layers[0].batch
        return -1 if batch is None else batch

    @property
    def is_initialized(self) -> bool:
        """Whether anything has been read."""
        return self.state.length > 0

    @property
    def is_compileable(self) -> bool:
        """False: generating is not compiled."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can drop a token, as drafts need."""
        return self.state.can_drop(min(1, self.state.length))

    @property
    def is_sliding(self) -> list[bool]:
        """False for every layer: positions count from the first token."""
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        """False for every layer: `generate` passes only the tokens that the cache has not read."""
        return [False] * len(self)
