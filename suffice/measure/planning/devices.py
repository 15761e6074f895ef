"""GPU data sheets by name: memory, bandwidth, FLOP/s and interconnect."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from suffice.errors import ConfigError, check_known


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU; rates are the highest that the maker publishes for dense matrices.

    Where the maker prints a rate for sparse matrices only, it is half of that: 1,979 TFLOP/s of
    an H100 and 242 of an L4.
    """

    name: str  # name on the command line
    title: str  # name that the maker gives it
    memory: int  # bytes of memory
    bandwidth: float  # memory bandwidth, bytes per second
    # FLOP/s of products by dtype; float32 is without TF32, as torch multiplies by default
    flops: tuple[tuple[str, float], ...]
    link: float  # bytes per second to the other GPUs of a node, in one direction
    # bytes per second to other nodes, per GPU, in the maker's servers; None if the maker names none
    network: float | None
    node: int  # GPUs per server
    source: str  # source of the figures

    def rate(self, dtype: str) -> float:
        """Return FLOP/s of products in a dtype; a dtype without a rate has float32's."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["float32"])


TERA, GIGA = 10**12, 10**9


def _gpu(
    name: str,
    title: str,
    *,
    memory: int,
    bandwidth: float,
    half: float,
    single: float,
    link: int,
    network: int | None,
    source: str,
) -> Device:
    rates = {"bfloat16": half, "float16": half, "float32": single}
    return Device(
        name=name,
        title=f"NVIDIA {title} {memory} GB",
        memory=memory * GIGA,
        bandwidth=bandwidth * GIGA,
        flops=tuple((dtype, float(round(rate * TERA))) for dtype, rate in rates.items()),
        link=float(link * GIGA),
        network=None if network is None else float(network * GIGA),
        node=8,
        source=source,
    )


_HOPPER = {"half": 989.4, "single": 66.9, "link": 450, "network": 50}
_A100 = {"half": 312, "single": 19.5, "link": 300, "network": 25}
_PCIE = {"link": 32, "network": None}
_GPUS = (
    _gpu(
        "h100", "H100 SXM", memory=80, bandwidth=3350, **_HOPPER,
        source="NVIDIA H100 Tensor Core GPU data sheet and architecture paper; DGX H100 data sheet",
    ),
    _gpu(
        "h200", "H200 SXM", memory=141, bandwidth=4800, **_HOPPER,
        source="NVIDIA H200 Tensor Core GPU data sheet; DGX H200 data sheet",
    ),
    _gpu(
        "a100", "A100 SXM", memory=80, bandwidth=2039, **_A100,
        source="NVIDIA A100 Tensor Core GPU data sheet; DGX A100 data sheet",
    ),
    _gpu(
        "a100_40gb", "A100 SXM", memory=40, bandwidth=1555, **_A100,
        source="NVIDIA A100 Tensor Core GPU architecture paper; DGX A100 data sheet",
    ),
    _gpu(
        "l40s", "L40S", memory=48, bandwidth=864, half=362.05, single=91.6, **_PCIE,
        source="NVIDIA L40S data sheet; PCIe 4.0 x16",
    ),
    _gpu(
        "l4", "L4", memory=24, bandwidth=300, half=121, single=30.3, **_PCIE,
        source="NVIDIA L4 data sheet; PCIe 4.0 x16",
    ),
    _gpu(
        "rtx4090", "GeForce RTX 4090", memory=24, bandwidth=1008, half=165.2, single=82.6, **_PCIE,
        source="NVIDIA Ada GPU architecture paper, appendix A; PCIe 4.0 x16",
    ),
)  # fmt: skip
DEVICES = {gpu.name: gpu for gpu in _GPUS}


def device(name: str) -> Device:
    """Return a GPU by name.

    Raises:
        ConfigError: for an unknown name.
    """
    check_known("gpu", name, DEVICES)
    return DEVICES[name]


def with_figures(
    gpu: Device, *, flops: float | None = None, bandwidth: float | None = None
) -> Device:
    """Return a GPU with figures of the user instead of the maker's.

    Example:
        >>> with_figures(device("l4"), flops=90e12).rate("bfloat16")
        90000000000000.0
    """
    figures: dict[str, Any] = {"flops": flops, "bandwidth": bandwidth}
    figures = {name: value for name, value in figures.items() if value is not None}
    for name, value in figures.items():
        if not 0.0 < value < math.inf:
            raise ConfigError(f"{name}={value:g}; give a number above 0.")
    if not figures:
        return gpu
    source = f"{' and '.join(figures)} of your own; else {gpu.source}"
    if flops is not None:
        figures["flops"] = tuple((dtype, flops) for dtype, _ in gpu.flops)
    return replace(gpu, **figures, source=source)
