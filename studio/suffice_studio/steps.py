"""One attention layer read step by step: the numbers of every intermediate, for a few tokens.

Letters: H heads, G key/value heads, T queries, S keys, D key width, E value width, M model width.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError, DataError, unknown
from suffice.layers import Attention
from suffice.layers.inputs import KVView, SharedKV
from suffice.layers.recurrence import RecurrentState
from suffice.ops import recurrence, reference
from suffice.presets import PRESETS, TITLES
from suffice.spec import AttentionSpec
from suffice.utils.records import check_keys
from suffice.view import brief, instead
from suffice.view.catalogue import axes, drawn_spec, state

TEXT = "the cat sat on the mat and purred"
MIN_TOKENS, MAX_TOKENS, MAX_LETTERS = 4, 16, 16
D_MODEL, HEADS = 16, 4
SMALL = {"window": 3, "stride": 3, "block": 1, "random_blocks": 1, "global_blocks": 1}
SMALL |= {"global_tokens": 1, "features": 4, "convolution": 2, "width": 2, "rank": 4}
"""Sizes of mechanisms that leave something out of 4 to 16 tokens."""
DECIMALS = 6
SEED = 1 << 31  # below it, seeds made of words


def answer(request: Any) -> dict[str, Any]:
    """Return every number of one layer of a mechanism, for a request of the page.

    Args:
        request: {"mechanism": name of a preset, "causal": bool, "text": 4 to 16 words}.

    Raises:
        DataError: for a text of fewer or more words.
        ConfigError: for fields that are not legal, or a mechanism without such a form.
    """
    if not isinstance(request, dict):
        raise ConfigError("a request for steps is an object with a mechanism and a text.")
    fields = ("mechanism", "causal", "text")
    check_keys(request, fields, fields, where="the request for steps", error=ConfigError)
    name, text = request["mechanism"], request["text"]
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("mechanism", name, PRESETS)
    tokens = text.split() if isinstance(text, str) else []
    if not MIN_TOKENS <= len(tokens) <= MAX_TOKENS:
        raise DataError(f"{len(tokens):,} words; give {MIN_TOKENS} to {MAX_TOKENS}.")
    if (longest := max(map(len, tokens))) > MAX_LETTERS:
        raise DataError(f"a word has {longest:,} letters; give at most {MAX_LETTERS}.")
    spec = small_spec(name, len(tokens), causal=request["causal"])
    return {
        "title": TITLES[name],
        "axes": axes(spec),
        "pattern": brief(spec.pattern),
        "state": state(spec.cost(len(tokens)), " numbers a token", " numbers at any length"),
        "notes": instead(spec, len(tokens)),
        "tokens": tokens,
        "lane": spec.lane,
        "combine": spec.combine.steps(),
        "numbers": {name: _listed(number) for name, number in record(spec, embed(tokens)).items()},
    }


def prepared() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield a request and its answer for each mechanism, in its causal form if it has one."""
    for name in PRESETS:
        request = {"mechanism": name, "causal": True, "text": TEXT}
        try:
            yield request, answer(request)
        except ConfigError:  # it is never causal
            request = request | {"causal": False}
            yield request, answer(request)


def small_spec(name: str, length: int, *, causal: bool) -> AttentionSpec:
    """Return the spec of a mechanism in sizes that show something on a few tokens."""
    legal = inspect.signature(PRESETS[name]).parameters
    options: dict[str, Any] = {key: size for key, size in SMALL.items() if key in legal}
    return drawn_spec(name, D_MODEL, HEADS, length=length, causal=causal, **options)


def embed(tokens: list[str]) -> Tensor:
    """Return an embedding [1, T, M] drawn for each word: equal words have equal ones."""
    return torch.stack([_normal(word, D_MODEL) for word in tokens])[None]


def _normal(name: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) % SEED)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def build(spec: AttentionSpec) -> Recorder:
    """Return a layer in float64 whose maps are drawn by name.

    So layers share the maps that have the same name and shape, and fewer key heads are the first
    ones of those of multi-head attention.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = Recorder(spec, impl="reference", dtype=torch.float64)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if name.endswith("_proj.weight"):
                weight.copy_(_normal(name, *weight.shape) / weight.shape[1] ** 0.5)
    return layer.eval()


class Recorder(Attention):
    """An attention layer that keeps the numbers of its latest call in `numbers`, by name."""

    numbers: dict[str, Tensor]

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output, and keep it with what the output map reads."""
        self.numbers = {}
        keep = self.o_proj.register_forward_pre_hook(self._keep_merged)
        try:
            self.numbers["output"] = super().forward(x, *args, **kwargs)
        finally:
            keep.remove()
        return self.numbers["output"]

    def _keep_merged(self, _: Any, inputs: tuple[Tensor, ...]) -> None:
        self.numbers["merged"] = inputs[0]

    def attend(self, q: Tensor, view: KVView) -> Tensor:
        """Return the heads [B, H, T, E], and keep what they are made of."""
        heads = super().attend(q, view)
        q, k, v = self.spec.encoder.products(self, q, view.cached)
        call, parts = self.call(q, k, v, view), self.parts()
        allowed = view.masks.allowed(call.pattern, call.queries, call.keys, q.device)
        weights = reference.weights_of_rows(q, k, view.masks, call, parts)
        if parts.features is None:
            shared_keys, bias = reference.per_head(k, call), view.masks.bias(call, q.device)
            scores = call.kernel.biased_scores(
                q, shared_keys, scale=call.scale, bias=bias, learned=parts.learned
            )
        else:
            scores = reference.feature_products(q, k, allowed, call, parts.features)
            q, k = parts.features.queries(q), parts.features.keys(k)[0]
        self.numbers |= {"query": q, "key": k, "value": v, "scores": scores}
        self.numbers |= {"allowed": allowed.long(), "weights": weights, "heads": heads}
        return heads

    def recur(
        self, q: Tensor, cached: tuple[Tensor, ...], x: Tensor, *args: Any
    ) -> tuple[Tensor, RecurrentState]:
        """Return the heads [B, H, T, E] and the last state, and keep every state [B, H, T, D, E].

        "kept" is a state after its decay, "state" the one after a token was added to it, and
        "recalled" what the former holds for the key, which a delta rule replaces.
        """
        heads, last = super().recur(q, cached, x, *args)
        k, v = self.spec.encoder.expand(self, cached)
        sums: Any = self.recurrence
        data = sums.sequence(q, k, v, x, *args)
        state = torch.zeros_like(data.k[:, :, 0, :, None] * data.v[:, :, 0, None])
        states: dict[str, list[Tensor]] = {"kept": [], "recalled": [], "state": []}
        for t in range(x.shape[1]):
            parts = (y if y is None else y[:, :, t : t + 1] for y in data)
            token = recurrence.Sequence(*parts)  # type: ignore[arg-type]
            unread = token._replace(q=token.k, k=torch.zeros_like(token.k))
            recalled, kept = recurrence.stepwise(unread, state)
            _, state = recurrence.stepwise(token, state)
            for name, number in zip(states, (kept, recalled[:, :, 0], state), strict=True):
                states[name].append(number)
        self.numbers |= {name: torch.stack(numbers, dim=2) for name, numbers in states.items()}
        self.numbers |= {"query": data.q, "key": data.k, "value": data.v, "heads": heads}
        if data.log_decay is not None:
            self.numbers["decay"] = data.log_decay.exp()
        if data.beta is not None:
            self.numbers["beta"] = data.beta
        self.numbers["weights"] = sums.weights(q, k, v, x, *args)
        return heads, last


def record(spec: AttentionSpec, x: Tensor) -> dict[str, Tensor]:
    """Return every number of one call of a layer on x [1, T, M], by name.

    Heads come first, then queries: "scores" is [H, T, S] and "query" [H, T, D]. "merged" [T, H E]
    is what the output map reads, "output" [T, M] what the layer returns.
    """
    layer, shared = build(spec), None
    with torch.no_grad():
        if spec.shares is not None:
            shared = SharedKV()
            build(replace(spec, shares=None))(x, shared=shared)
        layer(x, shared=shared)
    return {name: number[0] for name, number in layer.numbers.items()}


def _listed(number: Tensor) -> Any:
    return (number.double().round(decimals=DECIMALS) + 0.0).tolist()  # + 0: no -0
