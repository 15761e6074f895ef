"""The language model with its head: text generation, training, evaluation."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from suffice.errors import ConfigError, check_known
from suffice.hf.cache import CACHE_NAME, SufficeCache, pop_cache
from suffice.hf.config import SufficeConfig
from suffice.hf.model import SufficeModel, SufficePreTrainedModel
from suffice.memory import Dynamic, Memory, Quantised, Static
from suffice.models import LM
from suffice.models.lm import capped
from suffice.models.packed import schemes_of
from suffice.ops.linear import Linear
from suffice.text import Tokenizer

MEMORIES = ("dynamic", "static", "quantized")
QUANTISED = {"nbits": "bits", "q_group_size": "group", "residual_length": "recent"}
"""Options of transformers' quantised caches by the fields of `Quantised`."""
LIBRARIES = ("backend", "axis_key", "axis_value", "device", "compute_dtype")
"""Options that choose and adjust another library's rounding, which is not used here."""


class SufficeForCausalLM(SufficePreTrainedModel, GenerationMixin):
    """`suffice.models.LM` for transformers.

    Args:
        config: the sizes and the attention.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.tokens.weight"}

    def __init__(self, config: SufficeConfig) -> None:
        super().__init__(config)
        self.model = SufficeModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: SufficeCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and a loss if labels are given; other arguments as `SufficeModel.forward`.

        labels are [B, T], the input_ids themselves with -100 where nothing is predicted;
        shift_labels hold the next token at each token instead; they are among the others because
        Trainer waits for every label in the signature. The loss is divided by
        num_items_in_batch, else by the tokens counted. logits_to_keep is the number of last tokens
        or the indices of tokens to return logits of; 0 = all.
        """
        shift_labels = others.pop("shift_labels", None)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **(others | {"return_dict": True}),
        )
        features = out.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            features = features[:, logits_to_keep]
        elif logits_to_keep:
            features = features[:, -logits_to_keep:]
        logits, loss = capped(self.lm_head(features), self.config.logit_cap), None
        if labels is not None or shift_labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
                shift_labels=shift_labels,
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE_NAME: out.get(CACHE_NAME)},
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return a continuation, as `GenerationMixin.generate`, with either name of a cache."""
        cache = pop_cache(kwargs)
        return super().generate(*args, **kwargs, **({} if cache is None else {CACHE_NAME: cache}))

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if model_kwargs.get(CACHE_NAME) is None and generation_config.use_cache:
            memory = _memory(generation_config, max_cache_length)
            model_kwargs[CACHE_NAME] = cache = SufficeCache(self.state(memory))
            if generation_config.is_assistant:
                cache.activate_past_recording()
            return
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    @classmethod
    def from_suffice(cls, lm: LM, tokenizer: Tokenizer | None = None) -> SufficeForCausalLM:
        """Return the same model for transformers; the two share their weights.

        Args:
            lm: the model.
            tokenizer: tokenizer whose token that ends a document also serves as padding.

        Raises:
            ConfigError: if some of its maps are packed.
        """
        if packed := schemes_of(lm):
            raise ConfigError(
                f"{len(packed)} maps are packed, such as {next(iter(packed))}, and transformers "
                "reads plain ones; give the model it was packed from, or unpack it "
                "(`suffice.quantise.unpack`)."
            )
        ids: dict[str, Any] = {}
        if tokenizer is not None:
            begin, end = tokenizer.begin, tokenizer.end
            ids = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end}
        with torch.device("meta"):
            model = cls(SufficeConfig.of(lm.config, lm.specs, **ids))
        state = {f"model.{name}": tensor for name, tensor in lm.state_dict().items()}
        head = state.pop("model.head.weight", state["model.embedding.tokens.weight"])
        model.load_state_dict({**state, "lm_head.weight": head}, assign=True)
        model.tie_weights()
        return model.train(lm.training)

    def to_suffice(self) -> LM:
        """Return the same model of `suffice.models`; the two share their weights."""
        lm = self.config.lm_config().build(self.config.attention_specs(), device="meta")
        state = self.model.state_dict()
        if not self.config.tie_word_embeddings:
            state["head.weight"] = self.lm_head.weight
        lm.load_state_dict(state, assign=True)
        return lm.train(self.training)


def _memory(generation_config: Any, length: int) -> Memory | None:
    """Return the memory for transformers' name of a cache; None: the model's own."""
    name = generation_config.cache_implementation
    options = dict(generation_config.cache_config or {})
    if name is None:
        return None
    check_known("cache_implementation", name, MEMORIES)
    if name == "quantized":
        for option in options:
            check_known("option of cache_config", option, (*QUANTISED, *LIBRARIES))
        if unused := [option for option in LIBRARIES if option in options]:
            warnings.warn(
                f"cache_config's {', '.join(unused)} is not used: a suffice model quantises its "
                "cache itself, keys by channel and values by token.",
                stacklevel=2,
            )
        return Quantised(**{QUANTISED[n]: v for n, v in options.items() if n in QUANTISED})
    return Static(length) if name == "static" else Dynamic()


class SufficeForSequenceClassification(GenericForSequenceClassification, SufficePreTrainedModel):
    """Logits of `config.num_labels` classes, read at the last token before the padding."""

    accepts_loss_kwargs = False  # the loss is a mean, so Trainer divides by accumulated batches
