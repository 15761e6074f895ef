"""Whether a spec keeps every promise of the library."""

from __future__ import annotations

from collections.abc import Iterable

from suffice.errors import ConfigError, SufficeError, unknown
from suffice.spec import AttentionSpec
from suffice.testing.case import Case
from suffice.testing.checks import CHECKS


class ConformanceError(SufficeError, AssertionError):
    """A spec breaks a promise that every attention layer here keeps."""


def conform(spec: AttentionSpec, *, length: int = 5, checks: Iterable[str] = CHECKS) -> None:
    """Raise unless layers of this spec keep every promise of `CHECKS`.

    For whoever writes an axis value of their own: put it in a small spec (`spec_around`) and
    call this from a test.

    Args:
        spec: the layer, for self-attention; the smaller the faster.
        length: positions of the input, >= 2; cut to what the spec's mixing allows.
        checks: names of checks to run; all by default.

    Raises:
        ConformanceError: naming the check that failed, its promise and what came out.
        ConfigError: for no spec, an unknown check, a length below 2, or a spec that only reads a
            memory.

    Example:
        >>> from suffice import AttentionSpec
        >>> conform(AttentionSpec(d_model=4, num_heads=2), checks=["parameters_as_counted"])
    """
    if not isinstance(spec, AttentionSpec):
        raise ConfigError(f"spec={spec!r:.60} is a {type(spec).__name__}; give an AttentionSpec.")
    if isinstance(checks, str):
        raise ConfigError(f"checks={checks!r}: give a list of names, such as [{checks!r}].")
    if length < 2:  # noqa: PLR2004
        raise ConfigError(f"length={length}: one position attends to itself alone; give 2 or more.")
    if spec.widths.d_memory != spec.d_model:
        raise ConfigError(
            f"d_memory={spec.d_memory} beside d_model={spec.d_model}: conform tries "
            "self-attention; give a spec without d_memory."
        )
    case = Case(spec=spec, length=min(length, spec.max_length or length))
    for name in checks:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
        try:
            CHECKS[name](case)
        except (AssertionError, SufficeError, RuntimeError) as error:
            raise ConformanceError(
                f"{name} failed for {spec} at length {case.length}: "
                f"{(CHECKS[name].__doc__ or '').strip()} Found: {error}"
            ) from error
