"""Numbers as people read them, with their units."""

from __future__ import annotations

from suffice.measure.statistics import Summary

STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(value: float | None) -> str:
    """Write a fraction as a percentage without its sign.

    Example:
        >>> percent(0.97421), percent(None)
        ('97.42', '-')
    """
    return "-" if value is None else f"{100 * value:.2f}"


def loss(value: float) -> str:
    """Write a loss to three digits behind the point, two from 1 on.

    Example:
        >>> loss(0.06249), loss(2.9)
        ('0.062', '2.90')
    """
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def count(value: float) -> str:
    """Write a count in full with thousands apart.

    Example:
        >>> count(66048)
        '66,048'
    """
    return f"{value:,.0f}"


def scaled(value: float) -> str:
    """Write a large number with three digits and a power of a thousand.

    Example:
        >>> scaled(16_777_216), scaled(999_999), scaled(64)
        ('16.8M', '1.00M', '64')
    """
    for step, letter in STEPS:
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)}{letter}"
    return f"{value:.0f}"


def seconds(value: float) -> str:
    """Write a time in the unit that suits it.

    Example:
        >>> seconds(0.0031), seconds(0.000002), seconds(8.31)
        ('3.10 ms', '2.00 us', '8.31 s')
    """
    for step, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)} {unit}"
    return f"{_three_digits(value / 1e-6)} us"


def size(value: float) -> str:
    """Write bytes in binary units.

    Example:
        >>> size(2 * 1024 * 1024), size(512)
        ('2.00 MiB', '512 B')
    """
    for step, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)} {unit}"
    return f"{value:.0f} B"


def spread(summary: Summary) -> str:
    """Write a mean accuracy and its sd in percent.

    Example:
        >>> spread(Summary(n=5, mean=0.974, sd=0.0031, low=0.97, high=0.978))
        '97.40 ± 0.31'
        >>> spread(Summary(n=1, mean=0.974, sd=None, low=None, high=None))
        '97.40'
    """
    return percent(summary.mean) + ("" if summary.sd is None else f" ± {percent(summary.sd)}")


def bounds(summary: Summary) -> str:
    """Write the interval of a mean accuracy in percent.

    Example:
        >>> bounds(Summary(n=5, mean=0.974, sd=0.0031, low=0.97, high=0.978))
        '97.00–97.80'
        >>> bounds(Summary(n=1, mean=0.974, sd=None, low=None, high=None))
        '-'
    """
    return "-" if summary.sd is None else f"{percent(summary.low)}–{percent(summary.high)}"


def _three_digits(value: float) -> str:
    """Write a number with three digits at least, and no more decimals than that."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
