"""The body of the language model: tokens to features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from suffice.errors import ConfigError
from suffice.hf.attention import OWN, SufficeAttention, check_servable
from suffice.hf.block import SufficeBlock
from suffice.hf.cache import SufficeCache
from suffice.hf.config import SufficeConfig
from suffice.hf.given import check_cache, check_nothing_else, documents_of, one_of, real_tokens
from suffice.hf.weights import Weights
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState


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
        places = None if state is None else state.places(given, valid)
        if places is not None and past:
            documents_of(position_ids, given, valid, places)
        x = self._placed(input_ids, inputs_embeds, places=places, **where)
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
        return self.dropout(self.embedding.placed(embeds, **where))

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
        x = self._placed(input_ids, inputs_embeds, places=places)
        for block in self.blocks:
            engine = {"attention_mask": None, "position_ids": places, **others}
            x = block(x, engine=engine)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))
