"""The language model with a classifier on its last token."""

from __future__ import annotations

from transformers.modeling_layers import GenericForSequenceClassification

from suffice.hf.model import SufficePreTrainedModel


class SufficeForSequenceClassification(GenericForSequenceClassification, SufficePreTrainedModel):
    """Logits of `config.num_labels` classes, read at the last token that is no padding."""
