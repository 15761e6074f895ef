"""`translate`: writes translations of source texts.

Letters: B rows, S tokens of the longest source, T tokens, M d_model, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.decoding import OnToken, batch_prompts
from suffice.generate.generate import EVERYTHING, GREEDY, Generated, eval_mode, generate
from suffice.generate.sampling import Sampling
from suffice.memory import Memory
from suffice.models.lm import LMConfig
from suffice.models.state import ModelState
from suffice.models.translator import Translator


def translate(
    model: Translator,
    source: Tensor | Sequence[Sequence[int]],
    *,
    start: int,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    beams: int = 1,
    length_penalty: float = 1.0,
    stop: Sequence[int] = (),
    pad: int = 0,
    memory: Memory = EVERYTHING,
    source_valid: Tensor | None = None,
    on_token: OnToken | None = None,
) -> Generated:
    """Return translations of texts, each after the id that starts it, with dropout off.

    A source is read once, then `generate` runs the decoder, with the same guarantees.

    Args:
        model: the translator.
        source: int [B, S], or the ids of each text, of any lengths.
        start: id of the target before every translation.
        max_new_tokens: maximum of new tokens in each translation, >= 0.
        sampling: rule that chooses a token, see `generate`, also for the next five.
        beams: beam width of a search for the most probable translation; 1 disables it.
        length_penalty: power of the length that divides a beam's score.
        stop: ids that end a translation.
        pad: id of the target after its end.
        memory: the KV cache of each self-attention of the decoder.
        source_valid: bool [B, S] for a tensor, True = a real token; padding may stand anywhere.
        on_token: function that is called as by `generate`.

    Returns:
        `tokens` [B, 1 + N]; `new` leaves the start out.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import TranslatorConfig
        >>> sizes = dict(source_vocabulary_size=9, target_vocabulary_size=8, mlp_width=8)
        >>> both, causal = (preset("efficient", 8, 2, causal=after) for after in (False, True))
        >>> model = TranslatorConfig(length=6, d_model=8, **sizes).build(both, causal, both)
        >>> translate(model, [[3], [1, 2]], start=1, max_new_tokens=4).new.shape
        torch.Size([2, 4])
    """
    sizes = model.config
    if not 0 <= start < sizes.target_vocabulary_size:
        raise ConfigError(
            f"start={start} is not a target id; give 0 to {sizes.target_vocabulary_size - 1}."
        )
    texts = batch_prompts(
        source,
        source_valid,
        vocabulary_size=sizes.source_vocabulary_size,
        pad=0,
        device=model.source.tokens.weight.device,
    )
    with torch.inference_mode(), eval_mode(model):
        encoded = model.encode(texts.tokens, texts.valid)
        return generate(
            _Decoder(model, encoded, texts.valid),
            [[start]] * len(texts.lengths),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            beams=beams,
            length_penalty=length_penalty,
            stop=stop,
            pad=pad,
            memory=memory,
            on_token=on_token,
        )


class _Decoder:
    """The decoder with its encoded source [B, S, M], as a `CausalModel`."""

    def __init__(self, model: Translator, source: Tensor, source_valid: Tensor | None) -> None:
        self.model, self.source, self.source_valid = model, source, source_valid
        sizes = model.config
        self.config = LMConfig(
            vocabulary_size=sizes.target_vocabulary_size,
            length=sizes.length,
            d_model=sizes.d_model,
            depth=sizes.decoder_depth,
            mlp_width=sizes.mlp_width,
            positions=sizes.positions,
        )
        self.specs, self.device = model.decoder_specs, source.device
        self.training = False  # translate() has turned dropout off
        self.features, self.logits, self.train = model.features, model.logits, model.train

    def state(self, memory: Memory) -> ModelState:
        return self.model.state(self.source, self.source_valid, memory=memory)

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        return self.logits(self.features(tokens[:, None], state=state)[:, -1])
