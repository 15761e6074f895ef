"""Checks for third parties: one comparison, seeded inputs, and the conformance of a spec.

Not loaded by `import suffice`.
"""

from suffice.testing.closeness import assert_close
from suffice.testing.conformance import CHECKS, ConformanceError, conform
from suffice.testing.inputs import Case, bits, documents, drawn, normal, padded, spec_around

__all__ = [
    "CHECKS",
    "Case",
    "ConformanceError",
    "assert_close",
    "bits",
    "conform",
    "documents",
    "drawn",
    "normal",
    "padded",
    "spec_around",
]
