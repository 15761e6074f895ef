"""What transformers' mixins are told about this library's classes; runs inside its test tree."""

from __future__ import annotations

import unittest

import torch

import suffice.hf as hf
from suffice import preset
from tests import test_modeling_common as common
from tests.generation.test_utils import GenerationTesterMixin

common.MODEL_MAPPING_NAMES["suffice"] = "SufficeModel"
common.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["suffice"] = "SufficeForCausalLM"
common.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["suffice"] = (
    "SufficeForSequenceClassification"
)

DRAFTS = {
    "test_assisted_decoding_matches_greedy_search_0_random",
    "test_assisted_decoding_matches_greedy_search_1_same",
    "test_assisted_decoding_sample",
    "test_prompt_lookup_decoding_matches_greedy_search",
}
"""Take tokens back."""
WITH_CACHE = DRAFTS | {
    "test_greedy_generate_dict_outputs_use_cache",
    "test_beam_search_generate_dict_outputs_use_cache",
}
"""Ask for weights beside a cache, which is refused; they run without asking for weights."""
CONTINUED = {
    "test_generate_continue_from_past_key_values",
    "test_generate_continue_from_inputs_embeds",
}
"""Look for a cache where gradients are recorded, which has none; they run without gradients."""
PADDED = {"test_eager_padding_matches_padding_free_with_position_ids"}
"""Ask for padding in the rows, which no other test needs."""


class Sizes:
    """The small models that the mixins ask for."""

    is_training = True
    batch_size, seq_length, num_hidden_layers, hidden_size, num_attention_heads = 3, 7, 2, 32, 4
    vocab_size, num_labels = 99, 3

    def __init__(self, parent, attention, padded):
        self.parent, self.attention, self.padded = parent, attention, padded

    def get_config(self):
        return hf.SufficeConfig(
            **self.attention,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=48,
            max_position_embeddings=64,
            num_labels=self.num_labels,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )

    def prepare_config_and_inputs_for_common(self):
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        mask = torch.ones_like(ids)
        if self.padded:
            mask[1, :3] = mask[2, :1] = 0
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


class Suite(common.ModelTesterMixin, GenerationTesterMixin):
    all_model_classes = (
        hf.SufficeModel,
        hf.SufficeForCausalLM,
        hf.SufficeForSequenceClassification,
    )
    pipeline_model_mapping = {}
    attention = {"mechanism": "standard"}
    sums = False

    @unittest.skip("weights are computed beside the output, so the loss has no gradient for them")
    def test_retain_grad_hidden_states_attentions(self):
        """Nothing to run."""

    def setUp(self):
        name = self._testMethodName
        if self.sums and name in DRAFTS:
            self.skipTest("it keeps sums, which no token can be taken out of; drafts are refused")
        self.model_tester = Sizes(self, self.attention, name in PADDED)
        self.has_attentions = name not in WITH_CACHE
        self.addCleanup(torch.set_grad_enabled, torch.is_grad_enabled())
        torch.set_grad_enabled(name not in CONTINUED)

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        super()._check_past_key_values_for_generate(batch_size, past_key_values, seq_length, config)
        assert past_key_values.batch_size == batch_size
        assert past_key_values.get_seq_length() == seq_length

    def _check_caches_are_equal(self, cache1, cache2):
        for one, other in zip(cache1.state.layers, cache2.state.layers, strict=True):
            assert one.length == other.length
            torch.testing.assert_close(_kept(one), _kept(other))


def _kept(layer):
    """Return the tensors that a layer keeps of the past."""
    stores = [store for store in (layer.store, layer.raw) if store is not None]
    parts = [part for store in stores for part in store.latest(store.length)]
    parts += [x for row in layer.recalled.rows for x in (row.sums, *(row.open or ()))]
    parts += [] if layer.sums is None else [layer.sums.sums]
    return [part for part in parts if part is not None]


class StandardTest(Suite, unittest.TestCase):
    attention = {"mechanism": "standard"}


class EfficientTest(Suite, unittest.TestCase):
    attention = {"mechanism": "efficient"}


class SuperTest(Suite, unittest.TestCase):
    attention = {"mechanism": "super_attention"}


class LinearTest(Suite, unittest.TestCase):
    attention = {"mechanism": "linear"}
    sums = True


class PerformerTest(Suite, unittest.TestCase):
    attention = {"mechanism": "performer"}
    sums = True


class InfiniTest(Suite, unittest.TestCase):
    attention = {"specs": [preset("infini", 32, 4, segment=4).to_json()]}
    sums = True

    @unittest.skip("its memory is one for a row, so documents in a row cannot be kept apart")
    def test_eager_padding_matches_padding_free_with_position_ids(self):
        """Nothing to run."""
