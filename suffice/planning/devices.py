"""GPUs by name: what their makers publish."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU. Rates are the highest that are published, of dense matrices.

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
