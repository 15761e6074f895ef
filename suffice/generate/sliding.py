"""Generation beyond a model's maximum length, by a sliding context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from suffice.errors import ConfigError
from suffice.generate.decoding import CausalModel
from suffice.generate.generate import generate, max_length
from suffice.generate.sampling import Greedy, Sample, Sampling

GREEDY = Greedy()


def slide(
    lm: CausalModel,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[int] = (),
    **options: Any,
) -> list[int]:
    """Return the tokens that follow a prompt, however long the text becomes.

    A model with learned positions, or with an alignment over positions, has a maximum length.
    Beyond it, the latest half is reread from position 0 and the text goes on from there: about two
    tokens are computed for each one written. nanoGPT rereads the whole window for each token. A
    text that fits is what `generate` gives.

    Args:
        lm: the model.
        prompt: ids; only the latest that the model can read enter.
        max_new_tokens: maximum of new tokens, >= 0.
        sampling: rule that chooses a token; each piece of a sampled text gets another seed.
        stop: ids that end the text.
        **options: options of `generate`, for each piece.

    Raises:
        ConfigError: as `generate`, and for an empty prompt.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=8, d_model=8, depth=1, mlp_width=8)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 8, 2, causal=True))
        >>> len(slide(lm, [3, 1], max_new_tokens=20))
        20
    """
    text, room = list(prompt), max_length(lm)
    if not text:
        raise ConfigError("the prompt has no token; give at least one to continue.")
    written: list[int] = []
    context = text if room is None else text[-room:]
    while len(written) < max_new_tokens:
        new = max_new_tokens - len(written)
        if room is not None:
            new = min(new, room + 1 - len(context))  # the last token is not read again
        choose = sampling
        if isinstance(sampling, Sample):
            choose = replace(sampling, seed=sampling.seed + len(written))
        result = generate(lm, [context], max_new_tokens=new, sampling=choose, stop=stop, **options)
        piece = result.row(0)[len(context) :]
        written += piece
        text += piece
        if piece[-1] in stop:
            break
        if room is not None:
            context = text[-max(room // 2, 1) :]
    return written
