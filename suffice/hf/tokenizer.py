"""This library's tokenizers as transformers' own."""

from __future__ import annotations

import tempfile

from transformers import PreTrainedTokenizerFast

from suffice.text import Tokenizer


def hf_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers that gives the same ids.

    It pads on the left, as generating wants, with the token that ends a document; without one it
    cannot pad until `pad_token` is set.

    Args:
        tokenizer: of `suffice.text`.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        found = PreTrainedTokenizerFast.from_pretrained(
            folder, padding_side="left", model_input_names=["input_ids", "attention_mask"]
        )
    if found.pad_token is None and found.eos_token is not None:
        found.pad_token = found.eos_token
    return found
