"""Text from a language model, token by token: what is drawn, from whom, and when it ends."""

from suffice.generate.generate import generate
from suffice.generate.generated import Generated
from suffice.generate.sampling import Greedy, Sample, Sampling

__all__ = ["Generated", "Greedy", "Sample", "Sampling", "generate"]
