"""Generate text token by token, with a language model or a translator."""

from suffice.generate.generate import Generated, Rates, Stopwatch, generate, slide
from suffice.generate.sampling import Greedy, Sample, Sampling
from suffice.generate.translate import translate

__all__ = [
    "Generated",
    "Greedy",
    "Rates",
    "Sample",
    "Sampling",
    "Stopwatch",
    "generate",
    "slide",
    "translate",
]
