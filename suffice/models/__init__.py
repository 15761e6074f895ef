"""Models that take any attention spec in any block."""

from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.models.configurations import CONFIGURATIONS, configuration
from suffice.models.lm import LM, LMConfig
from suffice.models.translator import Translator, TranslatorConfig
from suffice.models.vit import ViT, ViTConfig

__all__ = [
    "CONFIGURATIONS",
    "LM",
    "Classifier",
    "ClassifierConfig",
    "LMConfig",
    "Translator",
    "TranslatorConfig",
    "ViT",
    "ViTConfig",
    "configuration",
]
