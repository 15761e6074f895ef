"""GPUs by name: what their makers publish."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from suffice.errors import ConfigError, unknown


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU. AdamWSettings are the highest that are published, of dense matrices.

    Where the maker prints a rate of sparse matrices alone, it is half of that: 1,979 TFLOP/s of
    an H100 and 242 of an L4.

    Args:
        name: here.
        title: the maker's name.
        memory: bytes.
        bandwidth: of the memory, bytes a second.
        flops: FLOP/s of products by dtype; float32 is without TF32, as torch multiplies by default.
        link: bytes a second to the other GPUs of a node, one way.
        network: bytes a second to other nodes, for each GPU, in the maker's own servers; None =
            the maker names none.
        node: GPUs of such a server.
        source: of the numbers.
    """

    name: str
    title: str
    memory: int
    bandwidth: float
    flops: tuple[tuple[str, float], ...]
    link: float
    network: float | None
    node: int
    source: str

    def rate(self, dtype: str) -> float:
        """Return FLOP/s of products in a dtype; one without a rate of its own has float32's."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["float32"])


H100 = Device(
    name="h100",
    title="NVIDIA H100 SXM 80 GB",
    memory=80 * 10**9,
    bandwidth=3.35e12,
    flops=(("bfloat16", 989.4e12), ("float16", 989.4e12), ("float32", 66.9e12)),
    link=450e9,
    network=50e9,
    node=8,
    source="NVIDIA H100 Tensor Core GPU data sheet and architecture paper; DGX H100 data sheet",
)

DEVICES = {
    one.name: one
    for one in (
        H100,
        Device(
            name="h200",
            title="NVIDIA H200 SXM 141 GB",
            memory=141 * 10**9,
            bandwidth=4.8e12,
            flops=H100.flops,
            link=450e9,
            network=50e9,
            node=8,
            source="NVIDIA H200 Tensor Core GPU data sheet; DGX H200 data sheet",
        ),
        Device(
            name="a100",
            title="NVIDIA A100 SXM 80 GB",
            memory=80 * 10**9,
            bandwidth=2.039e12,
            flops=(("bfloat16", 312e12), ("float16", 312e12), ("float32", 19.5e12)),
            link=300e9,
            network=25e9,
            node=8,
            source="NVIDIA A100 Tensor Core GPU data sheet; DGX A100 data sheet",
        ),
        Device(
            name="a100_40gb",
            title="NVIDIA A100 SXM 40 GB",
            memory=40 * 10**9,
            bandwidth=1.555e12,
            flops=(("bfloat16", 312e12), ("float16", 312e12), ("float32", 19.5e12)),
            link=300e9,
            network=25e9,
            node=8,
            source="NVIDIA A100 Tensor Core GPU architecture paper; DGX A100 data sheet",
        ),
        Device(
            name="l40s",
            title="NVIDIA L40S 48 GB",
            memory=48 * 10**9,
            bandwidth=864e9,
            flops=(("bfloat16", 362.05e12), ("float16", 362.05e12), ("float32", 91.6e12)),
            link=32e9,
            network=None,
            node=8,
            source="NVIDIA L40S data sheet; PCIe 4.0 x16",
        ),
        Device(
            name="l4",
            title="NVIDIA L4 24 GB",
            memory=24 * 10**9,
            bandwidth=300e9,
            flops=(("bfloat16", 121e12), ("float16", 121e12), ("float32", 30.3e12)),
            link=32e9,
            network=None,
            node=8,
            source="NVIDIA L4 data sheet; PCIe 4.0 x16",
        ),
        Device(
            name="rtx4090",
            title="NVIDIA GeForce RTX 4090 24 GB",
            memory=24 * 10**9,
            bandwidth=1.008e12,
            flops=(("bfloat16", 165.2e12), ("float16", 165.2e12), ("float32", 82.6e12)),
            link=32e9,
            network=None,
            node=8,
            source="NVIDIA Ada GPU architecture paper, appendix A; PCIe 4.0 x16",
        ),
    )
}


def device(name: str) -> Device:
    """Return a GPU by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in DEVICES:
        raise unknown("gpu", name, DEVICES)
    return DEVICES[name]


def with_figures(
    one: Device, *, flops: float | None = None, bandwidth: float | None = None
) -> Device:
    """Return a GPU with figures of the user's own instead of the maker's.

    Args:
        one: what the other figures are of.
        flops: FLOP/s of products, in every dtype; None = the maker's.
        bandwidth: of the memory, bytes a second; None = the maker's.

    Raises:
        ConfigError: if one is not above 0.

    Example:
        >>> with_figures(device("l4"), flops=90e12).rate("bfloat16")
        90000000000000.0
    """
    given = {"flops": flops, "bandwidth": bandwidth}
    own = {name: value for name, value in given.items() if value is not None}
    for name, value in own.items():
        if not 0.0 < value < math.inf:
            raise ConfigError(f"{name}={value:g}; give a number above 0.")
    if not own:
        return one
    fields: dict[str, Any] = dict(own)
    if flops is not None:
        fields["flops"] = tuple((dtype, flops) for dtype, _ in one.flops)
    return replace(one, **fields, source=f"{' and '.join(own)} of your own; else {one.source}")
