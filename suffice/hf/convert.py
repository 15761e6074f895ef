"""From a folder that this library trained to one that transformers reads."""

from __future__ import annotations

from pathlib import Path

from suffice.hf.auto import write_auto_map
from suffice.hf.causal_lm import SufficeForCausalLM
from suffice.hf.tokenizer import hf_tokenizer


def convert(folder: Path | str, out: Path | str) -> SufficeForCausalLM:
    """Write a trained model and its tokenizer for `AutoModelForCausalLM` and `AutoTokenizer`.

    Args:
        folder: what `suffice train --out` left.
        out: where to write; holds everything `transformers` needs, see `write_auto_map`.

    Returns:
        The model that was written.
    """
    from suffice.models.folder import load

    lm, tokenizer, _ = load(folder)
    model = SufficeForCausalLM.from_suffice(lm, tokenizer).eval()
    model.save_pretrained(out)
    hf_tokenizer(tokenizer).save_pretrained(out)
    write_auto_map(out)
    return model
