"""Each mechanism either streams from its graph as it does in the model, or is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from suffice import runtime
from suffice.combine import Differential, Exclusive, Gated
from suffice.encoders import MLA, Forgetting, QKVNorm
from suffice.errors import CheckpointError, ConfigError
from suffice.export import export, graph
from suffice.export.graph import DecoderGraph
from suffice.patterns import Causal
from suffice.positions import AxialRope
from suffice.spec import AXES
from suffice.testing import spec_around
from tests.acceptance.mechanisms import PRESET_KINDS, spec_of

from .models import language, saved
from .test_graph import called

LENGTH = 24
REFUSED = {  # presets, and the axis value that the refusal names
    "xsa": "Exclusive",
    "forgetting": "Forgetting",
    "mla": "MLA",
    "differential": "Differential",
    "infini": "Infini",
}
PRESETS = {
    name: spec_of(name, causal=True, d_model=32, num_heads=4, length=LENGTH)
    for name, causal in PRESET_KINDS.values()
    if causal
}
EXPORTED = {name: spec for name, spec in PRESETS.items() if name not in REFUSED}


def streamed(call, decoder, tokens, valid, sizes):
    """Return the logits of tokens read in pieces of these sizes, with the state between them."""
    state = [port for port in decoder.inputs() if port.becomes]
    free = {"batch": len(tokens), "past": 0}
    feeds = {
        port.name: np.zeros([free.get(size, size) for size in port.shape], port.dtype)
        for port in state
    }
    names, logits = [port.name for port in decoder.outputs()], []
    for piece, real in zip(tokens.split(sizes, dim=1), valid.split(sizes, dim=1), strict=True):
        feeds |= {"tokens": piece.numpy(), "valid": real.numpy()}
        outputs = dict(zip(names, call(feeds), strict=True))
        feeds |= {port.name: outputs[port.becomes] for port in state}
        logits.append(torch.from_numpy(np.array(outputs["logits"])))
    return torch.cat(logits, dim=1)


def difference(call, decoder, lm):
    """Return the largest difference of a logit, token by token and in chunks, with padding."""
    tokens = torch.randint(19, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[0, :3] = valid[1, 5:9] = valid[2, [1, 20]] = valid[2, 11:] = False
    want = lm(tokens, valid=valid)[valid]
    found = (
        streamed(call, decoder, tokens, valid, sizes)[valid]
        for sizes in ([1] * LENGTH, [7, 1, 10, 6])
    )
    return max(float((logits - want).abs().max()) for logits in found)


@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_presets_stream_as_in_the_model(name):
    lm = language(EXPORTED[name], length=LENGTH)
    decoder = DecoderGraph(lm)
    assert difference(called(decoder), decoder, lm) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_other_presets_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=REFUSED[name]):
        DecoderGraph(language(PRESETS[name], length=LENGTH))


UNKNOWN = (MLA, Forgetting, QKVNorm, Differential, Exclusive, AxialRope)
SAMPLES = [
    value
    for axis in ("kernel", "combine", "encoder", "norm", "position")
    for kind in AXES[axis].table.values()
    if kind.__module__.startswith("suffice.")
    for value in kind.samples()
]


@pytest.mark.parametrize("value", SAMPLES, ids=repr)
@torch.no_grad()
def test_axis_values_stream_or_are_refused_by_name(value):
    lm = language(spec_around(value, Causal(), d_model=32), length=LENGTH, depth=1)
    refused = any(isinstance(value, kind) for kind in UNKNOWN) or (
        isinstance(value, Gated) and lm.specs[0].lane == "pairs"
    )
    if refused:
        with pytest.raises(ConfigError, match=type(value).__name__):
            DecoderGraph(lm)
        return
    decoder = DecoderGraph(lm)
    assert difference(called(decoder), decoder, lm) < 1e-5


SUMS = [
    pytest.param(name, marks=() if name == "gated_deltanet" else pytest.mark.slow)
    for name, spec in EXPORTED.items()
    if spec.lane != "pairs"
]


@pytest.mark.parametrize("name", SUMS)
@torch.no_grad()
def test_states_of_one_size_stream_in_onnx_runtime(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    lm = saved(tmp_path / "run", language(EXPORTED[name], length=LENGTH, vocabulary_size=20))
    manifest = export(tmp_path / "run", "onnx", tmp_path / "out")
    opened = runtime.Session(tmp_path / "out", manifest)
    assert difference(opened.call, DecoderGraph(lm), lm) < 1e-5
    ids = [1, 2, 3]
    written = runtime.generate(opened, manifest, ids, tokens=8)
    for _ in written:
        ids.append(int(lm(torch.tensor([ids]))[0, -1].argmax()))
    assert ids[3:] == written
    assert manifest["reach"] == 1
    assert [port["shape"] for port in opened.state if "past" in port["shape"]] == [
        ["batch", "past"]
    ]
    model = onnx.load(tmp_path / "out" / "model.onnx")
    nodes = [node for node in model.graph.node if node.op_type == "LinearAttention"]
    assert len(nodes) == 2
    for node in nodes:
        node.op_type = "LinearAttentionOfLater"
    onnx.save(model, tmp_path / "later")
    with pytest.raises(CheckpointError, match="com.microsoft:LinearAttentionOfLater"):
        runtime.open_graph(tmp_path / "later")


def test_a_torch_without_operators_of_other_domains_is_named(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.onnx, "ops")
    with pytest.raises(ConfigError, match="LinearAttention"):
        graph.write_onnx(DecoderGraph(language(EXPORTED["retnet"], depth=1)), tmp_path / "x")
