"""The body of the language model: tokens to features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file
from transformers.utils.generic import can_return_tuple

from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.hf.attention import OWN, SufficeAttention, SufficeBlock, check_servable
from suffice.hf.cache import CACHE_NAME, CACHE_NAMES, SufficeCache, pop_cache
from suffice.hf.config import SufficeConfig
from suffice.layers.block import shared_kv
from suffice.layers.inputs import SharedKV
from suffice.layers.positions import positions as count_real
from suffice.memory import Dynamic, Memory
from suffice.models.architectures.weights import read_index
from suffice.models.state import ModelState, layer_states
from suffice.ops.op import is_transformed

PACKED = "position_ids say where a packed document begins"
REDUNDANT = {
    "cache_position": "tokens continue where the cache ends",
    "token_type_ids": "tokens have one type",
    "tokenizer": "generate() has made its stop strings of it",
    "assistant_tokenizer": "generate() translates the drafts itself",
    "cu_seq_lens_q": PACKED,
    "cu_seq_lens_k": PACKED,
    "max_length_q": PACKED,
    "max_length_k": PACKED,
    "seq_idx": PACKED,
}
"""Arguments that programs of transformers pass and that change nothing here, and why."""


def _check_arguments(
    cache: Any, position_ids: Tensor | None, is_causal: bool | None, others: dict[str, Any]
) -> None:
    given = [name for name, value in others.items() if value is not None]
    if is_causal is False:
        given.append("is_causal=False")
    for name in given:
        if name not in REDUNDANT:
            raise ConfigError(f"a suffice model does not accept {name}; leave that out.")
        if REDUNDANT[name] is PACKED and position_ids is None:
            raise ConfigError(
                f"{name} without position_ids: {PACKED}; give them, each document from 0."
            )
    if cache is not None and not isinstance(cache, SufficeCache):
        raise ConfigError(
            f"cache is a {type(cache).__name__}; use a SufficeCache(model.state()), or none."
        )


def _only_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    if (input_ids is None) == (inputs_embeds is None):
        raise ConfigError("give exactly one of input_ids and inputs_embeds.")
    return inputs_embeds if input_ids is None else input_ids


def _valid_tokens(mask: Tensor | None, inputs: Tensor, past: int) -> Tensor | None:
    """Return which of the new tokens are real, bool [B, T]; None: all."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise MaskError(
            f"attention_mask is {shape}; give [batch, tokens so far], 1 = a real token. Which keys "
            "a query may see is decided by the mechanism."
        )
    batch, new = inputs.shape[:2]
    if tuple(mask.shape) != (batch, past + new):
        raise ShapeError(
            f"attention_mask has shape {tuple(mask.shape)} for {batch} rows of {past} tokens read "
            f"before and {new} new ones; give one entry for each, [{batch}, {past + new}]."
        )
    real = mask[:, past:] != 0
    return None if not is_transformed() and bool(real.all()) else real


def _segments_of(
    position_ids: Tensor | None,
    inputs: Tensor,
    valid: Tensor | None,
    positions: Tensor | None = None,
) -> Tensor | None:
    """Return the documents that position_ids imply, int [B, T]; None if each row is one."""
    if position_ids is None:
        return None
    real = valid
    if real is None:
        real = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
    ids = position_ids.expand(real.shape)
    counted = count_real(real, None) if positions is None else positions.expand(real.shape)
    if torch.equal(ids[real], counted[real]):
        return None
    segments = (ids == 0).long().cumsum(dim=1)
    if positions is None and valid is None and torch.equal(ids, count_real(None, segments)):
        return segments
    raise ConfigError(
        "position_ids do not count the real tokens of each row from 0, which is how the model "
        "places them; leave them out, or let each packed document start at 0 without a mask."
    )


LOADED = "_is_hf_initialized"  # transformers' mark on tensors that came from a file
HUB = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision")


class Weights:
    """A mixin for PreTrainedModel: this library's initialisation, and safetensors alone."""

    def fresh_model(self) -> nn.Module | None:
        """Return an untrained model, from which tensors of the same names are initialised."""
        return None

    def initialize_weights(self) -> None:
        """Initialise every tensor that did not come from a file, buffers too."""
        marked: list[Tensor] = []
        for module in self.modules():  # type: ignore[attr-defined]
            if isinstance(module, Weights):
                marked += _initialise(module)
        super().initialize_weights()  # type: ignore[misc]
        for tensor in marked:
            delattr(tensor, LOADED)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a model with the weights of a folder or of the hub, from safetensors alone."""
        if kwargs.get("use_safetensors") is False:
            raise ConfigError(
                "use_safetensors=False would unpickle a file, which can execute anything; save "
                "the weights as safetensors."
            )
        kwargs.pop("trust_remote_code", None)  # there is none to execute
        kwargs["use_safetensors"] = True
        _check_index(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Write config.json and model.safetensors; arguments as `PreTrainedModel`'s."""
        if kwargs.get("safe_serialization") is False:
            raise ConfigError(
                "safe_serialization=False would pickle the weights; leave it out to write "
                "safetensors."
            )
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@torch.no_grad()
def _initialise(model: Any) -> list[Tensor]:
    """Initialise tensors that came from no file; return them, marked as loaded."""
    tensors = _tensors(model)
    missing = {n: t for n, t in tensors.items() if not getattr(t, LOADED, False) and not t.is_meta}
    fresh = model.fresh_model() if missing else None
    if fresh is None:
        return []
    values = _tensors(fresh)
    for name, tensor in missing.items():
        initialization.copy_(tensor, values[name].to(tensor.device, tensor.dtype))
        setattr(tensor, LOADED, True)
    return list(missing.values())


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check_index(name_or_path: Any, kwargs: dict[str, Any]) -> None:
    if name_or_path is None:
        return
    hub_options = {name: kwargs[name] for name in HUB if name in kwargs}
    variant = kwargs.get("variant")
    name = SAFE_WEIGHTS_INDEX_NAME
    if variant is not None:
        name = name.replace(".index.json", f".index.{variant}.json")
    path = cached_file(
        str(name_or_path),
        name,
        subfolder=kwargs.get("subfolder", ""),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **hub_options,
    )
    if path is not None:
        read_index(Path(path))


class SufficePreTrainedModel(Weights, PreTrainedModel):
    """Base of the language models: configuration, initialisation, loading and saving."""

    config: SufficeConfig
    config_class = SufficeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SufficeBlock"]
    _skip_keys_device_placement = [*CACHE_NAMES]
    _supports_attention_backend = True

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *args: Any, **kwargs: Any
    ) -> str:
        """Take "sdpa", which recipes ask for, as another name of the model's own attention."""
        name = OWN if attn_implementation == "sdpa" else attn_implementation
        return super()._check_and_adjust_attn_implementation(name, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embedding.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.embedding.tokens = value

    def state(self, memory: Memory | None = None) -> ModelState:
        """Return an empty state to stream with, of the configured memory by default."""
        memory = memory or self.config.memory_value() or Dynamic()
        return ModelState(layer_states([b.attention for b in self.base_model.blocks], memory))


def check_shared_checkpointing(block: nn.Module) -> None:
    """Raise if a block is recomputed so that gradients do not reach keys that layers share."""
    options = getattr(block._gradient_checkpointing_func, "keywords", {})
    if options.get("use_reentrant", False):
        raise ConfigError(
            "use_reentrant=True: gradients would not reach the keys and values that layers share; "
            'give gradient_checkpointing_kwargs={"use_reentrant": False}.'
        )


class SufficeModel(SufficePreTrainedModel):
    """`suffice.models.LM` without its head.

    Args:
        config: the sizes and the attention.
    """

    def __init__(self, config: SufficeConfig) -> None:
        super().__init__(config)
        device = torch.get_default_device()
        with torch.device("cpu"):  # random features are drawn there
            lm = config.lm_config().build(config.attention_specs(), device="meta")
            attentions = [
                SufficeAttention(config, spec, number, device="meta")
                for number, spec in enumerate(lm.specs)
            ]
        self.embedding, self.dropout, self.norm = lm.embedding, lm.dropout, lm.norm
        self.blocks = nn.ModuleList(map(SufficeBlock, lm.blocks, attentions))
        self.specs = lm.specs
        if device.type != "meta":
            self.to_empty(device=device)
        self.post_init()

    def fresh_model(self) -> nn.Module:
        """Return an untrained model with the same names of weights."""
        return self.config.lm_config().build(self.config.attention_specs())

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: SufficeCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Return features of tokens.

        Args:
            input_ids: [B, T].
            attention_mask: [B, all tokens so far], 1 = a real token; padding may be anywhere.
            position_ids: [B, T]; None counts from the mask. Without a mask and a cache, each 0
                begins another document.
            cache: cache that an earlier call returned; the tokens continue it. `past_key_values`,
                its name before transformers 5.24, does the same.
            inputs_embeds: [B, T, hidden_size] instead of input_ids.
            use_cache: whether to return a cache; None: as configured, and not if gradients are
                recorded.
            output_hidden_states: whether to return the features after every block.
            output_attentions: whether to return the weights, which are computed separately.
            is_causal: None or True, as the attention is.
            **others: arguments of an engine that computes the attention (`attn_implementation`);
                without one, those of `REDUNDANT`, which are ignored.

        Raises:
            ConfigError: for arguments that the model cannot honour.
            ShapeError, MaskError: if the mask does not fit the tokens.
        """
        others["cache"] = cache
        cache = pop_cache(others)
        if self.config._attn_implementation != OWN:
            return self._engine(input_ids, inputs_embeds, position_ids, use_cache, others)
        _check_arguments(cache, position_ids, is_causal, others)
        inputs = _only_input(input_ids, inputs_embeds)
        past = 0 if cache is None else cache.get_seq_length()
        valid = _valid_tokens(attention_mask, inputs, past)
        segments = _segments_of(position_ids, inputs, valid) if cache is None else None
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if use_cache is None:
            recording = self.training or torch.is_grad_enabled()
            use_cache = self.config.use_cache and not recording
            use_cache = use_cache and segments is None and not output_attentions
        if use_cache and cache is None:
            cache = SufficeCache(self.state())
        state = None if cache is None else cache.state
        restrictions = {"valid": valid, "segments": segments}
        positions = None if state is None else state.positions(inputs, valid)
        if positions is not None and past:
            _segments_of(position_ids, inputs, valid, positions)
        x = self._embed(input_ids, inputs_embeds, positions=positions, **restrictions)
        self._check_cache_options(state, output_attentions)
        hidden_states, attentions = [], []
        states = [None] * len(self.blocks) if state is None else state.layers
        shared = self._shared_kv()
        for block, layer_state, kv in zip(self.blocks, states, shared, strict=True):
            if output_hidden_states:
                hidden_states.append(x)
            if output_attentions:
                normed = block.attention_norm(x)
                attentions.append(block.attention.weights(normed, shared=kv, **restrictions))
            x = block(x, state=layer_state, shared=kv, **restrictions)
        x = self.norm(x)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            **{CACHE_NAME: cache},
            hidden_states=(*hidden_states, x) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _check_cache_options(self, state: ModelState | None, attentions: bool) -> None:
        if state is None:
            return
        if attentions:
            raise ConfigError(
                "output_attentions with a cache: weights over past keys are not available; give "
                "use_cache=False and the whole text."
            )
        if self.training and any(block.gradient_checkpointing for block in self.blocks):
            raise ConfigError(
                "use_cache with gradient checkpointing: recomputed tokens would be cached twice; "
                "give use_cache=False."
            )

    def _shared_kv(self) -> list[SharedKV | None]:
        shared = shared_kv(self.specs)
        if self.training and any(kv is not None for kv in shared):
            for block in filter(lambda block: block.gradient_checkpointing, self.blocks):
                check_shared_checkpointing(block)
        return shared

    def _embed(self, ids: Tensor | None, embeds: Tensor | None, **where: Any) -> Tensor:
        if embeds is None:
            return self.dropout(self.embedding(ids, **where))
        return self.dropout(self.embedding.add_positions(embeds, **where))

    def _engine(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        position_ids: Tensor | None,
        use_cache: bool | None,
        others: dict[str, Any],
    ) -> BaseModelOutputWithPast:
        name = self.config._attn_implementation
        if name in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys() or use_cache or position_ids is None:
            raise ConfigError(
                f"attn_implementation={name!r} with use_cache={use_cache}: the model's own "
                "attention is the default; another one must be an engine that keeps the past and "
                "masks itself, and be given position_ids. Leave attn_implementation out."
            )
        for spec in self.specs:
            check_servable(spec)
        x = self._embed(input_ids, inputs_embeds, positions=position_ids)
        for block in self.blocks:
            x = block(x, engine={"attention_mask": None, "position_ids": position_ids, **others})
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))
