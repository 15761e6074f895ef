"""Which inputs a layer of a spec can take: what it cannot honour is refused, never ignored."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ConfigError, ShapeError
from suffice.memory import Dynamic, Memory
from suffice.spec import AttentionSpec
from suffice.torch_compat import check, check_mask


def check_inputs(spec: AttentionSpec, x: Tensor, memory: Tensor | None) -> None:
    """Refuse tensors of other shapes, and a memory where the spec has no use for one.

    Args:
        spec: of the layer.
        x: [B, T, d_model].
        memory: [B, S, d_source] or None.

    Raises:
        ShapeError: if shapes do not fit.
        ConfigError: if pattern or position relate positions of one sequence, and memory is given.
    """
    check("x", x, (None, None, spec.d_model), hint="Give [B, T, d_model], batch first.")
    if memory is None:
        if spec.widths.d_source != spec.d_model:
            raise ShapeError(
                f"this layer reads a memory {spec.widths.d_source} wide; call layer(x, memory)."
            )
        return
    check("memory", memory, (x.shape[0], None, spec.widths.d_source))
    if not spec.pattern.crosses:
        raise ConfigError(
            f"pattern={spec.pattern!r} relates queries and keys of one sequence; "
            "cross-attention has two: use Full()."
        )
    if spec.position.absolute:
        raise ConfigError(
            f"position={spec.position!r} counts positions of one sequence; cross-attention "
            "has two: use NoPosition()."
        )


def check_restrictions(
    spec: AttentionSpec,
    memory: Tensor | None,
    segments: Tensor | None,
    source_segments: Tensor | None,
    mask: Tensor | None,
) -> None:
    """Refuse what restricts pairs in a way the spec cannot keep.

    Raises:
        ConfigError: naming the argument and what takes its place.
    """
    if (source_segments is None) != (segments is None or memory is None):
        raise ConfigError(
            "segments and source_segments go together with memory: give both, one for the "
            "queries and one for the memory; without memory give segments alone."
        )
    if mask is not None and spec.mixing.mixes:
        raise ConfigError(
            f"{type(spec.mixing).__name__} mixes values before any mask applies, so a mask "
            "would not keep what it hides; use a pattern, valid= or segments=."
        )
    if mask is not None and not spec.kernel.weighs_pairs:
        raise ConfigError(
            f"{type(spec.kernel).__name__} sums over keys without looking at pairs, so a mask "
            "of pairs cannot apply; use a causal pattern, valid= or segments=, or Softmax."
        )
    if spec.past.reads and (segments is not None or mask is not None):
        raise ConfigError(
            f"{type(spec.past).__name__} sums keys of earlier segments, so neither documents nor a "
            "mask could be kept apart in its sums; give one document per row, and valid=."
        )
    if segments is not None and not spec.mixing.keeps_keys:
        raise ConfigError(
            f"{type(spec.mixing).__name__} sums the keys of a whole row, so documents would "
            "meet in its keys; give one document per row."
        )


def check_stream(
    spec: AttentionSpec,
    of_state: AttentionSpec,
    x: Tensor,
    memory: Tensor | None,
    valid: Tensor | None,
    segments: Tensor | None,
    mask: Tensor | None,
) -> None:
    """Refuse what a call that goes on from a state cannot keep.

    Raises:
        ShapeError: if x or valid has another shape.
        MaskError: if valid is not boolean.
        ConfigError: for a state of another layer, a memory, segments or a mask.
    """
    check("x", x, (None, None, spec.d_model), hint="Give [B, T, d_model], batch first.")
    if valid is not None:
        check_mask("valid", valid)
        check("valid", valid, tuple(x.shape[:2]), hint="One entry for each new token.")
    if of_state is not spec and of_state != spec:
        raise ConfigError("the state was made by a layer of another spec; use layer.state().")
    if memory is None and segments is None and mask is None:
        return
    names = {"memory": memory, "segments": segments, "mask": mask}
    given = [name for name, value in names.items() if value is not None]
    raise ConfigError(
        f"{' and '.join(given)} beside state: a state goes on with one document a row; leave "
        "out what is given, and give each document a state of its own."
    )


def check_memory(spec: AttentionSpec, memory: Memory) -> None:
    """Refuse layers that cannot stream, and memories that would forget what a layer reads.

    Raises:
        ConfigError: saying why.
    """
    if not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is no memory; give an instance such as Dynamic() or Rolling(256)."
        )
    if not spec.pattern.causal:
        raise ConfigError(
            f"pattern={spec.pattern!r} looks ahead, so no token is final before the last one is "
            "read; stream with a causal pattern, such as Causal()."
        )
    if not spec.kernel.weighs_pairs and memory != Dynamic():
        raise ConfigError(
            f"{type(spec.kernel).__name__} keeps sums of one size, so memory={memory!r} has "
            "nothing to keep; leave it out."
        )
    if memory.window is not None and spec.mixing.mixes and spec.mixing.history is None:
        raise ConfigError(
            f"{type(spec.mixing).__name__} reads every earlier value at every position, so "
            f"{memory!r} would forget what it needs; use Dynamic(), or a banded, toeplitz or block "
            "alignment."
        )


def check_spec(spec: object) -> AttentionSpec:
    """Return what a layer is made of.

    Raises:
        ConfigError: if it is no spec.
    """
    if not isinstance(spec, AttentionSpec):
        raise ConfigError(
            f"spec={spec!r:.60} is a {type(spec).__name__}; give an AttentionSpec, such as "
            'preset("standard", d_model=64, num_heads=4) returns.'
        )
    return spec


def device_type(device: str | torch.device) -> str:
    """Return the type of a device, "cuda" for "cuda:1".

    Raises:
        ConfigError: if torch knows no such device.
    """
    try:
        return torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is no device; give 'cpu' or 'cuda'.") from error
