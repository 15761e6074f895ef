"""Conversions that compute other weights than the softmax of a layer: linear, gated and latent.

Their maps are fitted by gradient, layer by layer, to the outputs of the layer before on the
calibration text ("attention transfer"), and the output map by least squares afterwards.

Letters: H query heads, D head width, M d_model, R rank, P rotary width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import (
    Moments,
    attention_layers,
    observing,
    read_batch,
    relative_error,
)
from suffice.convert.closed_form import joint_basis, rotary_pairs, shared_pair
from suffice.convert.maps import Maps, Weights
from suffice.layers import Attention
from suffice.spec import AttentionSpec

PASSES, RATE = 8, 2e-3  # over the calibration, and Adam's rate at the beginning
REACH = 256  # positions over which the phase of features that no longer rotate is averaged


def transfer(
    model: nn.Module,
    students: Mapping[str, Sequence[Attention]],
    batches: Iterable[Tensor],
    step: Callable[[int], None] = lambda _done: None,
) -> None:
    """Train layers to give the outputs of the model's layer of their name, each by itself.

    Source: Zhang et al. 2024, arXiv:2410.10254, section 3.1, with the features of Kasai et al.
    2021, arXiv:2103.13076. Differs: outputs alone are compared.
    """
    layers, batches = attention_layers(model), list(batches)
    optimiser = torch.optim.Adam(
        [p for named in students.values() for layer in named for p in layer.parameters()], lr=RATE
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, PASSES * len(batches))

    def learn(name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        with torch.enable_grad():
            for layer in students[name]:
                relative_error(layer(x, **call), y, call.get("valid")).backward()

    for passed in range(PASSES):
        for done, batch in enumerate(batches, start=1):
            with observing({name: layers[name] for name in students}, learn):
                read_batch(model, batch)
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            step((passed * len(batches) + done) // PASSES)


def latent_keys(maps: Maps, spec: AttentionSpec, after: AttentionSpec, moments: Moments) -> Weights:
    """Return a layer of one latent and one rotary key that all heads share (MLA).

    Each rotary pair of the shared key is the best one in the heads' place (`shared_pair`); what it
    leaves of their keys no longer rotates: it is turned by the mean phase of the distances 0 to
    255, of which near ones count more, and made from the latent, as values are. The norm of the
    latent is left as it is: its numbers have variance 1 on the calibration.

    Source: Ji et al. 2025, arXiv:2502.14837 (partial RoPE, joint SVD of keys and values), and Meng
    et al. 2025, arXiv:2502.07864 (rotary pairs of all heads in one). Differs: the least squares are
    on data, and each pair keeps its frequency.
    """
    rope = spec.lower().rotary
    pairs, _ = rotary_pairs(rope, maps.k.shape[-1])
    keys, second = maps.per_query(maps.k), moments.second(centred=False)
    width = 2 * len(pairs)
    k_rotary, q_rotary = maps.k.new_zeros(len(second), width), maps.q[:, :, :width].clone()
    distances = torch.arange(REACH, dtype=torch.float64)
    near = 1.0 / (1.0 + distances)
    angles = rope.angles(distances, width)
    phases = (torch.polar(near[:, None].expand_as(angles), angles) / near.sum()).sum(dim=0)
    content = keys.clone()
    for (a, b), phase in zip(pairs, phases, strict=True):
        pair, q_rotary[:, :, [a, b]] = shared_pair(
            maps.q[:, :, [a, b]], keys[:, :, [a, b]], moments, bias=False
        )
        k_rotary[:, [a, b]] = pair[:-1]
        key = torch.view_as_complex(pair[:-1].contiguous())
        own = torch.view_as_complex(keys[:, :-1, [a, b]].contiguous())
        like = second.to(key.dtype) @ key.conj()
        left = own - (own @ like / (key @ like))[:, None] * key
        content[:, :-1, [a, b]] = torch.view_as_real(left * phase.conj() * rope.amplitude**2)
    values = maps.per_query(maps.v)
    basis, up = joint_basis(maps.q, content, values[:, :-1] @ maps.o, moments, after.encoder.rank)
    both = torch.cat([up @ content[:, :-1], up @ values[:, :-1]], dim=-1)  # [H, R, 2 D]
    layer = Attention(after, dtype=torch.float64)
    state = dict(layer.state_dict())
    queries = torch.cat([maps.q, q_rotary], dim=-1)
    state["q_proj.weight"] = queries[:, :-1].transpose(1, 2).flatten(0, 1)
    state["kv_a_proj.weight"] = torch.cat([basis, k_rotary], dim=1).T
    state["kv_b_proj.weight"] = both.transpose(1, 2).flatten(0, 1)
    return Weights(state=state, o=maps.o, offset=maps.offset)
