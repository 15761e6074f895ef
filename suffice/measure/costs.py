"""What a mechanism costs, and which of two is cheaper."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import ConfigError
from suffice.measure.results import Results
from suffice.measure.timing import summarise_times

COSTS = ("flops", "latency", "parameters")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one (mechanism, heads).

    Args:
        by: "flops" (attention layers, one sample), "latency" (median seconds of one batch) or
            "parameters" (whole model).
        value: the price in that unit.
        order: sort key: the value, then parameters, then name, then heads.
    """

    by: str
    value: float
    order: tuple[float, int, str, int]


def cost_of(results: Results, mechanism: str, num_heads: int, by: str) -> Cost:
    """Return what one trained (mechanism, heads) costs.

    Args:
        results: the comparison.
        mechanism: name of the mechanism.
        num_heads: its heads.
        by: one of COSTS.

    Raises:
        ConfigError: if by is "latency" and this one was not timed.
    """
    cell = results.select(mechanism, num_heads)[0]
    if by == "latency":
        speed = results.speed(mechanism, num_heads)
        if speed is None:
            raise ConfigError(
                f"the latency of {mechanism} with num_heads={num_heads} was not measured; "
                "order by flops or parameters instead."
            )
        value = summarise_times(speed.latency).median
    else:
        value = float(cell.flops if by == "flops" else cell.parameters_model)
    return Cost(by=by, value=value, order=(value, cell.parameters_model, mechanism, num_heads))
