"""Text from a language model or a translator, token by token: what is drawn, and when it ends."""

from suffice.generate.generate import Generated, generate
from suffice.generate.sampling import Greedy, Sample, Sampling
from suffice.generate.translate import translate

__all__ = ["Generated", "Greedy", "Sample", "Sampling", "generate", "translate"]
