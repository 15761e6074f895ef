"""Recurrences against transformers' forms in PyTorch and ONNX Runtime's LinearAttention.

Run: python -m benchmarks.recurrence [--threads 2] [--length 2048]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from benchmarks.peers.linear_attention import linear_attention
from benchmarks.report import Row, gate, print_machine, print_rows
from suffice.kernels.recurrent import EPS
from suffice.ops.native import recurrence as native
from suffice.ops.native.library import DECAYS
from suffice.ops.recurrence import Sequence, chunked
from suffice.utils.timing import interleave

HEADS, WIDTH = 8, 64
OPERATOR = "ONNX Runtime, LinearAttention"
ROWS = 1, 16  # of a step
REACH_FORWARD, REACH_TRAINING = 1 / 5, 1 / 3  # of the peer's time


def inputs(length: int) -> tuple[torch.Tensor, ...]:
    """Return q, k, v [1, H, T, D], log decays and betas [1, H, T, 1]."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, WIDTH)
    decay = -0.1 * torch.rand(1, HEADS, length, 1)
    beta = torch.rand(1, HEADS, length, 1)
    return F.normalize(q, dim=-1) * WIDTH**-0.5, F.normalize(k, dim=-1), v, decay, beta


def ours(q, k, v, decay, beta):  # noqa: ANN001, ANN201
    """The kernels of the library."""
    start = q.new_zeros(1, HEADS, WIDTH, WIDTH)
    return native.scan(Sequence(q, k, v, decay, beta, None), start)[0]


def theirs(q, k, v, decay, beta):  # noqa: ANN001, ANN201
    """transformers' chunked form, which scales queries itself and has heads third."""
    q, k, v = (x.transpose(1, 2) for x in (q * WIDTH**0.5, k, v))
    decay, beta = (x[..., 0].transpose(1, 2) for x in (decay, beta))
    return torch_chunk_gated_delta_rule(q, k, v, decay, beta)[0].transpose(1, 2)


def sums(q, k, v, decay, _):  # noqa: ANN001, ANN201
    """The library's sums that decay, without the delta rule."""
    start = q.new_zeros(1, HEADS, WIDTH, WIDTH)
    return native.scan(Sequence(q, k, v, decay, None, None), start)[0]


def features(q, k, v, decay, _):  # noqa: ANN001, ANN201
    """The library's sums where every feature decays by itself."""
    start = q.new_zeros(1, HEADS, WIDTH, WIDTH)
    logs = decay.expand(-1, -1, -1, WIDTH).contiguous()
    return native.scan(Sequence(q, k, v, logs, None, None), start)[0]


def products(q, k, v, decay, _):  # noqa: ANN001, ANN201
    """The same by products of torch, which the library chooses elsewhere."""
    start = q.new_zeros(1, HEADS, WIDTH, WIDTH)
    logs = decay.expand(-1, -1, -1, WIDTH).contiguous()
    return chunked(Sequence(q, k, v, logs, None, None), start)[0]


def operators_of(data):  # noqa: ANN001, ANN201
    """ONNX Runtime's operator on the same inputs, by the name of our function."""
    q, k, v, decay, beta = data
    start, logs = q.new_zeros(len(q), HEADS, WIDTH, WIDTH), decay.expand(-1, -1, -1, WIDTH)
    return {
        "ours": linear_attention(q, k, v, decay, beta, start),
        "sums": linear_attention(q, k, v, decay, None, start),
        "features": linear_attention(q, k, v, logs, None, start),
    }


def trained(run, data):  # noqa: ANN001, ANN201
    """Forward and backward."""
    leaves = [x.clone().requires_grad_() for x in data]
    out = run(*leaves)
    return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print_machine()
    data = inputs(given.length)
    gate("chunked delta rule", ours(*data), theirs(*data), 1e-3)
    gate("decays of features", features(*data), products(*data), 1e-3)
    operators = operators_of(data)
    for name, run in {"ours": ours, "sums": sums, "features": features}.items():
        gate(f"LinearAttention for {name}", run(*data), operators[name]()[0], 1e-3)
    settings = {"rounds": 9, "warmup": 2, "min_seconds_per_sample": 0.05}
    rows = []
    label = f"T={given.length}, {HEADS} heads of {WIDTH}"
    with torch.inference_mode():
        runs = {
            "ours": lambda: ours(*data),
            "sums": lambda: sums(*data),
            "features": lambda: features(*data),
            "theirs": lambda: theirs(*data),
            **{f"operator, {name}": run for name, run in operators.items()},
        }
        times = interleave(runs, **settings)
    peer = "transformers, chunked"
    titles = {"ours": "gated delta rule", "sums": "decayed sums", "features": "decays of features"}
    for of, name in titles.items():
        case, own = f"{name}, {label}, forward", times[of]
        if of != "features":
            rows.append(
                Row(case=case, peer=peer, ours=own, theirs=times["theirs"], reach=REACH_FORWARD)
            )
        rows.append(Row(case=case, peer=OPERATOR, ours=own, theirs=times[f"operator, {of}"]))
    runs = {
        "ours": lambda: trained(ours, data),
        "sums": lambda: trained(sums, data),
        "theirs": lambda: trained(theirs, data),
    }
    times = interleave(runs, **settings)
    for name, of in (("gated delta rule", "ours"), ("decayed sums", "sums")):
        case = f"{name}, {label}, training"
        rows.append(
            Row(case=case, peer=peer, ours=times[of], theirs=times["theirs"], reach=REACH_TRAINING)
        )
    with torch.inference_mode():
        times = interleave(
            {"ours": lambda: features(*data), "torch": lambda: products(*data)}, **settings
        )
    of_training = interleave(
        {
            "ours": lambda: trained(features, data),
            "torch": lambda: trained(products, data),
        },
        **settings,
    )
    for of, found in (("forward", times), ("training", of_training)):
        case = f"decays of features, {label}, {of}"
        rows.append(
            Row(case=case, peer="products of torch", ours=found["ours"], theirs=found["torch"])
        )
    print_rows("whole sequences", rows)
    print_rows("one token", [row for rows in ROWS for row in of_a_step(rows, settings)])


def token_of(q, k, v, decay, beta, state):  # noqa: ANN001, ANN201
    """Return a call of the kernel of single tokens, and its outputs; it changes the state in place.

    The kernel makes its gates of logits, and scales queries and keys itself.
    """
    rows = len(q)
    structure = native.token_structure(
        *(HEADS, HEADS, WIDTH, WIDTH, 0), DECAYS.index("token"), True, WIDTH**-0.5, EPS
    )
    logits = [(-decay).expm1().log().flatten(1), beta.logit().flatten(1)]
    gates = [x.contiguous() for x in logits]
    rates, biases = torch.zeros(2, HEADS).unbind()
    out = torch.empty_like(v)
    tensors = q, k, v, *gates, None, rates, biases, None, None, state, out
    return lambda: native.token(structure, rows, *tensors), out


def of_a_step(rows: int, settings: dict[str, float]) -> list[Row]:
    """Return the times of one token of each of `rows` rows."""
    one = tuple(x[:, :, :1].repeat(rows, 1, 1, 1) for x in inputs(1))
    state = torch.randn(rows, HEADS, WIDTH, WIDTH)
    heads_third = [x.transpose(1, 2) for x in one[:3]] + [
        x[..., 0].transpose(1, 2) for x in one[3:]
    ]
    operator = linear_attention(*one, state)
    with torch.inference_mode():
        got, after = operator()
        want = native.scan(Sequence(*one, None), state)
        gate("LinearAttention, a step", got, want[0], 1e-3)
        gate("LinearAttention, the state after a step", after, want[1], 1e-3)
        own = state.clone()
        token, out = token_of(*one, own)
        token()
        gate("a step", out, want[0], 1e-3)
        gate("the state after a step", own, want[1], 1e-3)
        times = interleave(
            {
                "ours": token,
                "operator": operator,
                "theirs": lambda: torch_recurrent_gated_delta_rule(
                    *heads_third, initial_state=state, output_final_state=True
                ),
                "reading": lambda: state.sum(),
                "copying": lambda: state.clone(),
            },
            **settings,
        )
    case = f"gated delta rule, a step of {rows} rows of {HEADS} heads of {WIDTH}"
    peers = {
        "theirs": "transformers, recurrent",
        "operator": OPERATOR,
        "reading": "reading the state",
        "copying": "reading and writing it",
    }
    return [
        Row(case=case, peer=peer, ours=times["ours"], theirs=times[name])
        for name, peer in peers.items()
    ]


if __name__ == "__main__":
    main()
