"""A folder that the library trained becomes one that transformers reads."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from suffice.errors import ConfigError
from suffice.hf import convert
from suffice.models.folder import save
from suffice.quantise import quantise, unpack
from suffice.text import BPE
from tests.hf.small import model


def test_a_trained_folder(tmp_path):
    tokenizer = BPE.train(["the cat sat on the mat and the dog sat on the log " * 3], 266)
    lm = model("super_attention", vocab_size=tokenizer.vocabulary_size).to_suffice()
    save(tmp_path / "run", lm, tokenizer, recipe="test")
    made = convert(tmp_path / "run", tmp_path / "out")
    assert not made.training
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = theirs("the cat", return_tensors="pt")
    assert ids["input_ids"][0].tolist() == tokenizer.encode("the cat")
    assert torch.equal(read(**ids).logits, lm.eval()(ids["input_ids"]))
    assert theirs.padding_side == "left"
    assert read.config.eos_token_id == theirs.eos_token_id == tokenizer.end


@pytest.mark.parametrize("bits", [16, 4])
def test_packed_maps_are_refused_before_anything_is_written(tmp_path, bits):
    tokenizer = BPE.train(["the cat sat on the mat and the dog sat on the log " * 3], 266)
    lm = model("gqa", vocab_size=tokenizer.vocabulary_size).to_suffice()
    quantise(lm, bits)
    save(tmp_path / "run", lm, tokenizer)
    with pytest.raises(ConfigError, match="maps are packed, such as embedding.tokens, and transf"):
        convert(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    unpack(lm)
    save(tmp_path / "run", lm, tokenizer)
    convert(tmp_path / "run", tmp_path / "out")
