"""Softmax: w_ts = exp(s_ts) / sum over allowed s' of exp(s_ts'), s_ts = scale q_t . k_s."""

from __future__ import annotations

import pytest

from suffice import attend, weights
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, normal

from .loops import everything, head, score_rows, tensor


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_weights(length):
    q, k = normal(2, 3, length, 4, seed=1), normal(2, 3, 7, 4, seed=2)
    want = [
        [score_rows(q[b, h].tolist(), k[b, h].tolist(), everything, 4**-0.5) for h in range(3)]
        for b in range(2)
    ]
    assert_close(weights(q, k), tensor(want))


@pytest.mark.parametrize("scale", [None, 1.0, 0.3, -1.5])
def test_output_is_weights_times_values(scale):
    q, k, v = normal(1, 1, 5, 4, seed=1), normal(1, 1, 7, 4, seed=2), normal(1, 1, 7, 3, seed=3)
    factor = 0.5 if scale is None else scale
    want = head(q[0, 0].tolist(), k[0, 0].tolist(), v[0, 0].tolist(), everything, factor)
    assert_close(attend(q, k, v, scale=scale), tensor([[want]]))
    assert_close(weights(q, k, scale=scale) @ v, tensor([[want]]))


def test_everything_that_restricts_ands():
    q, k, v = normal(2, 2, 5, 4, seed=1), normal(2, 2, 7, 4, seed=2), normal(2, 2, 7, 4, seed=3)
    valid, mask = bits(2, 7, seed=1, share=0.8), bits(2, 2, 5, 7, seed=2)
    q_documents, k_documents = bits(2, 5, seed=3).long(), bits(2, 7, seed=4).long()
    want = []
    for b in range(2):
        heads = []
        for h in range(2):

            def see(t, s, b=b, h=h):
                document = q_documents[b, t] == k_documents[b, s]
                return bool(valid[b, s] and mask[b, h, t, s] and document and s <= t + 2)

            rows = (x[b, h].tolist() for x in (q, k, v))
            heads.append(head(*rows, see, 0.5))
        want.append(heads)
    got = attend(
        q, k, v, pattern=Causal(), valid=valid, mask=mask, segments=(q_documents, k_documents)
    )
    assert_close(got, tensor(want))
