"""Models for Hugging Face Transformers; importing this registers them with its Auto classes."""

from suffice.hf.needed import check_installed

check_installed("transformers")

from suffice.hf.attention import check_servable  # noqa: E402 - refused above where absent
from suffice.hf.auto import register, write_auto_map  # noqa: E402
from suffice.hf.cache import SufficeCache  # noqa: E402
from suffice.hf.causal_lm import SufficeForCausalLM  # noqa: E402
from suffice.hf.config import SufficeConfig  # noqa: E402
from suffice.hf.convert import convert  # noqa: E402
from suffice.hf.image_classification import SufficeForImageClassification  # noqa: E402
from suffice.hf.model import SufficeModel  # noqa: E402
from suffice.hf.pattern import register_pattern  # noqa: E402
from suffice.hf.sequence_classification import SufficeForSequenceClassification  # noqa: E402
from suffice.hf.tokenizer import hf_tokenizer  # noqa: E402
from suffice.hf.vit_config import SufficeViTConfig  # noqa: E402
from suffice.layers.lora import lora_targets  # noqa: E402

register()

__all__ = [
    "SufficeCache",
    "SufficeConfig",
    "SufficeForCausalLM",
    "SufficeForImageClassification",
    "SufficeForSequenceClassification",
    "SufficeModel",
    "SufficeViTConfig",
    "check_servable",
    "convert",
    "hf_tokenizer",
    "lora_targets",
    "register",
    "register_pattern",
    "write_auto_map",
]
