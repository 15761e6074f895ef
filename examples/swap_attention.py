"""Replace an nn.MultiheadAttention: first with its own weights, then by a cheaper layer."""

import torch
from torch import nn

import suffice
from suffice.convert import convert

torch.manual_seed(0)
mha = nn.MultiheadAttention(64, 4, batch_first=True).eval()
x = torch.randn(8, 30, 64)  # [B, T, d_model]

layer = suffice.from_torch(mha)
with torch.no_grad():
    difference = (layer(x) - mha(x, x, x, need_weights=False)[0]).abs().max()
print(f"with its own weights: largest difference {difference:.1e}")

# Fewer keys and values, fitted to what the layer reads: no training.
calibration = [torch.randn(8, 30, 64) for _ in range(4)]
cheaper = convert(layer, "gqa:2", calibration=calibration)
report = cheaper.certificate.layers[0]
print(f"gqa:2: {report.parameters_before:,} -> {report.parameters_after:,} parameters,")
print(f"       {report.state_before} -> {report.state_after} numbers kept for each past token,")
print(f"       {report.predicted:.1%} of the output changed on the calibration")
