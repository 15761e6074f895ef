"""What transformers' mixins are told about this library's classes; runs inside its test tree."""

from __future__ import annotations

import unittest

import torch

import suffice.hf as hf
from tests import test_modeling_common as common
from tests.generation.test_utils import GenerationTesterMixin

common.MODEL_MAPPING_NAMES["suffice"] = "SufficeModel"
common.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["suffice"] = "SufficeForCausalLM"
common.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["suffice"] = (
    "SufficeForSequenceClassification"
)


class Sizes:
    """The small models that the mixins ask for."""

    is_training = True
    batch_size, seq_length, num_hidden_layers, hidden_size, num_attention_heads = 3, 7, 2, 32, 4
    vocab_size, num_labels = 99, 3

    def __init__(self, parent, mechanism):
        self.parent, self.mechanism = parent, mechanism

    def get_config(self):
        return hf.SufficeConfig(
            mechanism=self.mechanism,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=48,
            max_position_embeddings=64,
            num_labels=self.num_labels,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )

    def prepare_config_and_inputs_for_common(self):
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Suite(common.ModelTesterMixin, GenerationTesterMixin):
    all_model_classes = (
        hf.SufficeModel,
        hf.SufficeForCausalLM,
        hf.SufficeForSequenceClassification,
    )
    pipeline_model_mapping = {}
    mechanism = "standard"

    @unittest.skip("weights are computed beside the output, so the loss has no gradient for them")
    def test_retain_grad_hidden_states_attentions(self):
        """Nothing to run."""

    def setUp(self):
        self.model_tester = Sizes(self, self.mechanism)


class StandardTest(Suite, unittest.TestCase):
    mechanism = "standard"


class EfficientTest(Suite, unittest.TestCase):
    mechanism = "efficient"


class SuperTest(Suite, unittest.TestCase):
    mechanism = "super_attention"


class PerformerTest(Suite, unittest.TestCase):
    mechanism = "performer"
