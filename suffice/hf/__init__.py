"""Models for Hugging Face Transformers; importing this registers them with its Auto classes."""

from suffice.errors import installed_for

with installed_for("suffice.hf", "hf"):
    import transformers  # noqa: F401

from suffice.hf.acceleration import Acceleration, accelerate
from suffice.hf.attention import check_servable, register_pattern
from suffice.hf.auto import convert, hf_tokenizer, register, write_auto_map
from suffice.hf.cache import SufficeCache
from suffice.hf.classifiers import (
    SufficeClassifierConfig,
    SufficeForImageClassification,
    SufficeImageClassifier,
    SufficeTextClassifier,
)
from suffice.hf.config import SufficeConfig, SufficeViTConfig
from suffice.hf.heads import SufficeForCausalLM, SufficeForSequenceClassification
from suffice.hf.model import SufficeModel
from suffice.layers.attention import lora_targets

register()

__all__ = [
    "Acceleration",
    "SufficeCache",
    "SufficeClassifierConfig",
    "SufficeConfig",
    "SufficeForCausalLM",
    "SufficeForImageClassification",
    "SufficeForSequenceClassification",
    "SufficeImageClassifier",
    "SufficeModel",
    "SufficeTextClassifier",
    "SufficeViTConfig",
    "accelerate",
    "check_servable",
    "convert",
    "hf_tokenizer",
    "lora_targets",
    "register",
    "register_pattern",
    "write_auto_map",
]
