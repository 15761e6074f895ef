"""Generate text token by token, with a language model or a translator."""

from suffice.generate.generate import Generated, generate
from suffice.generate.rates import Rates, Stopwatch
from suffice.generate.sampling import Greedy, Sample, Sampling
from suffice.generate.sliding import slide
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
