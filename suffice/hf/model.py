"""The body of the language model: tokens to features."""

from __future__ import annotations

import json
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file
from transformers.utils.generic import can_return_tuple

from suffice.errors import CheckpointError, ConfigError, MaskError, ShapeError
from suffice.hf.attention import OWN, SufficeAttention, SufficeBlock, check_servable
from suffice.hf.cache import SufficeCache
from suffice.hf.config import SufficeConfig
from suffice.layers.place import positions
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState
from suffice.ops.op import is_transformed


def check_nothing_else(others: dict[str, Any]) -> None:
    """Refuse arguments that nothing here reads.

    Raises:
        ConfigError: naming them.
    """
    unread = [name for name, value in others.items() if value is not None]
    if unread:
        raise ConfigError(
            f"a suffice model does not know {', '.join(unread)}; leave out what is given."
        )


def check_cache(cache: Any) -> None:
    """Refuse a cache that is not of this library.

    Raises:
        ConfigError: naming its class.
    """
    if cache is not None and not isinstance(cache, SufficeCache):
        raise ConfigError(
            f"past_key_values is a {type(cache).__name__}; give a SufficeCache(model), which holds "
            "what each mechanism keeps, or leave it out."
        )


def one_of(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Return what was given of the two.

    Raises:
        ConfigError: if both or neither was.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ConfigError("give exactly one of input_ids and inputs_embeds.")
    return inputs_embeds if input_ids is None else input_ids


def real_tokens(mask: Tensor | None, given: Tensor, past: int) -> Tensor | None:
    """Return which of the new tokens are real, bool [B, T]; None = all, where that may be asked.

    Args:
        mask: [B, P + T], 1 or True = a real token.
        given: [B, T, ...].
        past: P.

    Raises:
        MaskError: if the mask is no tensor of 0 and 1.
        ShapeError: if it has another shape.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise MaskError(
            f"attention_mask is {shape}; give [batch, tokens so far], 1 = a real token. What a "
            "query may see is the mechanism's."
        )
    batch, new = given.shape[:2]
    if tuple(mask.shape) != (batch, past + new):
        raise ShapeError(
            f"attention_mask has shape {tuple(mask.shape)} for {batch} rows of {past} tokens read "
            f"before and {new} new ones; give one entry for each, [{batch}, {past + new}]."
        )
    real = mask[:, past:] != 0
    return None if not is_transformed() and bool(real.all()) else real


def documents_of(
    position_ids: Tensor | None,
    given: Tensor,
    valid: Tensor | None,
    places: Tensor | None = None,
) -> Tensor | None:
    """Return the documents that positions tell of, int [B, T]; None if each row is one.

    Args:
        position_ids: [B or 1, T], or None.
        given: [B, T, ...].
        valid: bool [B, T], True = a real token; None = all are.
        places: where the tokens stand, as the model counts; None = from 0.

    Raises:
        ConfigError: for positions that are not counted from the start of a row or a document.
    """
    if position_ids is None:
        return None
    real = valid
    if real is None:
        real = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
    told = position_ids.expand(real.shape)
    counted = positions(real, None) if places is None else places.expand(real.shape)
    if torch.equal(told[real], counted[real]):
        return None
    segments = (told == 0).long().cumsum(dim=1)
    if places is None and valid is None and torch.equal(told, positions(None, segments)):
        return segments
    raise ConfigError(
        "position_ids do not count the real tokens of each row from 0, which is how the model "
        "places them; leave them out, or let each packed document start at 0 without a mask."
    )


READ = "_is_hf_initialized"  # transformers' mark on tensors that came from a file
HUB = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision")


class Weights:
    """Beside PreTrainedModel: weights start as this library's do, and come from safetensors."""

    def started(self) -> nn.Module | None:
        """Return a model as it is before training, for the tensors of the same names here."""
        return None

    def initialize_weights(self) -> None:
        """Start every tensor that did not come from a file, buffers too."""
        marked: list[Tensor] = []
        for module in self.modules():  # type: ignore[attr-defined]
            if isinstance(module, Weights):
                marked += _start(module)
        super().initialize_weights()  # type: ignore[misc]
        for tensor in marked:
            delattr(tensor, READ)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a model with the weights of a folder or of the hub, read as safetensors alone.

        Arguments are those of `PreTrainedModel.from_pretrained`.

        Raises:
            ConfigError: if asked to unpickle, or to execute what lies beside the weights.
            CheckpointError: if the index names a file outside the folder.
        """
        if kwargs.get("use_safetensors") is False:
            raise ConfigError(
                "use_safetensors=False would unpickle a file, which can execute anything; save "
                "the weights as safetensors."
            )
        kwargs.pop("trust_remote_code", None)  # nothing here executes any
        kwargs["use_safetensors"] = True
        _check_index(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Write config.json and model.safetensors; arguments as `PreTrainedModel`'s.

        Raises:
            ConfigError: if asked to pickle.
        """
        if kwargs.get("safe_serialization") is False:
            raise ConfigError(
                "safe_serialization=False would pickle the weights; leave it out to write "
                "safetensors."
            )
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@torch.no_grad()
def _start(model: Any) -> list[Tensor]:
    """Copy starting values into tensors that came from no file; return these, marked as done."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    missing = {n: t for n, t in own.items() if not getattr(t, READ, False) and not t.is_meta}
    started = model.started() if missing else None
    if started is None:
        return []
    source = {**dict(started.named_parameters()), **dict(started.named_buffers())}
    for name, tensor in missing.items():
        initialization.copy_(tensor, source[name].to(tensor.device, tensor.dtype))
        setattr(tensor, READ, True)
    return list(missing.values())


def _check_index(place: Any, kwargs: dict[str, Any]) -> None:
    """Refuse an index of shards that lie elsewhere or are not safetensors."""
    if place is None:
        return
    asked = {name: kwargs[name] for name in HUB if name in kwargs}
    variant = kwargs.get("variant")
    name = SAFE_WEIGHTS_INDEX_NAME
    if variant is not None:
        name = name.replace(".index.json", f".index.{variant}.json")
    path = cached_file(
        str(place),
        name,
        subfolder=kwargs.get("subfolder", ""),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **asked,
    )
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no index of weights ({error}); save the model again."
        ) from error
    for name in sorted(map(str, names)):
        plain = PurePosixPath(name).name == PureWindowsPath(name).name == name
        if not plain or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} names the shard {name!r}; a shard is a .safetensors file in the same "
                "folder. Do not use this folder."
            )


class SufficePreTrainedModel(Weights, PreTrainedModel):
    """What the language models share: how they are configured, started, loaded and saved."""

    config: SufficeConfig
    config_class = SufficeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SufficeBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_attention_backend = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the rows of the tokens."""
        return self.base_model.embedding.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put other rows in their place."""
        self.base_model.embedding.tokens = value


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

    def started(self) -> nn.Module:
        """Return a model as it is before training, whose weights have the names of these."""
        return self.config.lm_config().build(self.config.attention_specs())

    def state(self, memory: Memory | None = None) -> ModelState:
        """Return an empty state to stream with, as `LM.state`.

        Args:
            memory: what is kept; None = what the configuration says, else everything.
        """
        memory = memory or self.config.memory_value() or Dynamic()
        keeps = [memory if one.kernel.weighs_pairs else Dynamic() for one in self.specs]
        pairs = zip(self.blocks, keeps, strict=True)
        return ModelState([block.attention.state(kept) for block, kept in pairs])

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: SufficeCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Return features of tokens.

        Args:
            input_ids: [B, T].
            attention_mask: [B, all tokens so far], 1 = a real token; padding may be anywhere.
            position_ids: [B, T]; counted from the mask where left out. Without a mask and a cache,
                numbers that start again at 0 begin another document.
            past_key_values: what an earlier call returned; the tokens go on where it ended.
            inputs_embeds: [B, T, hidden_size] instead of input_ids.
            use_cache: whether to return a cache; None = as configured, and not where
                gradients are recorded.
            output_hidden_states: whether to return the features after every block.
            output_attentions: whether to return the weights, which costs a second computation.
            **others: for an engine that computes the attention (`attn_implementation`).

        Raises:
            ConfigError: for what the model cannot honour.
            ShapeError, MaskError: if the mask does not fit the tokens.
        """
        if self.config._attn_implementation != OWN:
            return self._engine(input_ids, inputs_embeds, position_ids, use_cache, others)
        check_nothing_else(others)
        check_cache(past_key_values)
        given = one_of(input_ids, inputs_embeds)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        valid = real_tokens(attention_mask, given, past)
        segments = None
        if past_key_values is None:
            segments = documents_of(position_ids, given, valid)
        output_attentions = self._asked("output_attentions", output_attentions)
        if use_cache is None:
            use_cache = self._caches() and segments is None and not output_attentions
        if use_cache and past_key_values is None:
            past_key_values = SufficeCache(self)
        state = None if past_key_values is None else past_key_values.state
        where = {"valid": valid, "segments": segments}
        places = None if state is None else state.positions(given, valid)
        if places is not None and past:
            documents_of(position_ids, given, valid, places)
        x = self._placed(input_ids, inputs_embeds, positions=places, **where)
        self._check_streams(state, output_attentions)
        hidden = self._asked("output_hidden_states", output_hidden_states)
        kept = {"hidden_states": [] if hidden else None}
        kept["attentions"] = [] if output_attentions else None
        x = self._blocks(x, state, where, kept)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=kept["hidden_states"] and (*kept["hidden_states"], x),
            attentions=kept["attentions"] and tuple(kept["attentions"]),
        )

    def _asked(self, name: str, given: bool | None) -> bool:
        return getattr(self.config, name) if given is None else given

    def _caches(self) -> bool:
        return self.config.use_cache and not (self.training or torch.is_grad_enabled())

    def _check_streams(self, state: ModelState | None, attentions: bool) -> None:
        """Refuse what a call with a cache cannot do."""
        if state is not None and attentions:
            raise ConfigError(
                "output_attentions with a cache: a memory does not keep what the weights speak "
                "of; give use_cache=False and the whole text."
            )
        again = self.training and any(block.gradient_checkpointing for block in self.blocks)
        if state is not None and again:
            raise ConfigError(
                "use_cache with gradient checkpointing: tokens computed again would be remembered "
                "twice; give use_cache=False."
            )

    def _placed(self, ids: Tensor | None, embeds: Tensor | None, **where: Any) -> Tensor:
        """Return the features that the first block reads."""
        if embeds is None:
            return self.dropout(self.embedding(ids, **where))
        return self.dropout(self.embedding.add_positions(embeds, **where))

    def _blocks(
        self,
        x: Tensor,
        state: ModelState | None,
        where: dict[str, Tensor | None],
        kept: dict[str, list[Tensor] | None],
    ) -> Tensor:
        """Return the features after all blocks and the last norm."""
        states = [None] * len(self.blocks) if state is None else state.layers
        for block, of_block in zip(self.blocks, states, strict=True):
            if kept["hidden_states"] is not None:
                kept["hidden_states"].append(x)
            if kept["attentions"] is not None:
                kept["attentions"].append(block.attention.weights(block.attention_norm(x), **where))
            x = block(x, state=of_block, **where)
        return self.norm(x)

    def _engine(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        position_ids: Tensor | None,
        use_cache: bool | None,
        others: dict[str, Any],
    ) -> BaseModelOutputWithPast:
        """Return features, the attention computed by what `attn_implementation` names."""
        name = self.config._attn_implementation
        if name in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys() or use_cache or position_ids is None:
            raise ConfigError(
                f"attn_implementation={name!r} with use_cache={use_cache}: the model's own "
                "attention is the default; another one must be an engine that keeps the past and "
                "masks itself, and be given position_ids. Leave attn_implementation out."
            )
        for spec in self.specs:
            check_servable(spec)
        places = position_ids
        x = self._placed(input_ids, inputs_embeds, positions=places)
        for block in self.blocks:
            engine = {"attention_mask": None, "position_ids": places, **others}
            x = block(x, engine=engine)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))
