"""Models of published shapes with random weights, and the bytes that writing a token reads."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ConfigError, check_known
from suffice.memory import Memory
from suffice.models import LM, configuration

SHAPES = {"15m": "llama_15m", "110m": "llama_110m"}
BITS = (32, 16, 8, 4)


def shaped(shape: str, mechanism: str = "standard") -> LM:
    """Return a model with random weights of 32 bits.

    Weights have the standard deviation inputs^-1/2, so that every part changes the logits.

    """
    check_known("shape", shape, SHAPES)
    config, specs = configuration(SHAPES[shape], mechanism)
    return randomise(config.build(specs))


def randomise(lm: LM) -> LM:
    """Draw all matrices of a model, in place."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in lm.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
    return lm.eval()


def in_bits(lm: LM, bits: int) -> LM:
    """Return the model with its weights packed in place into `bits` bits; 32: not packed."""
    if bits not in BITS:
        raise ConfigError(f"bits={bits}: give {', '.join(map(str, BITS))}.")
    from suffice.quantise import quantise, unpack

    if bits == BITS[0]:
        unpack(lm)
    else:
        quantise(lm, bits=bits)
    return lm


def prompt_of(lm: LM, length: int) -> Tensor:
    """Return random ids [T]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(lm.config.vocabulary_size, (length,), generator=generator)


def weight_bytes(lm: LM) -> int:
    """Return the bytes of all stored tensors, shared ones counted once."""
    by_address = {t.data_ptr(): t.nbytes for t in lm.state_dict().values() if isinstance(t, Tensor)}
    return sum(by_address.values())


def read_bytes(lm: LM, memory: Memory, positions: int) -> tuple[int, int]:
    """Return the bytes of weights and of state that one token after `positions` others reads.

    An embedding that is not the head's is read by one row, which is not counted.
    """
    weights = weight_bytes(lm)
    if lm.head is not None:
        weights -= sum(t.nbytes for t in lm.embedding.tokens.state_dict().values())
    makers = (spec if spec.shares is None else lm.specs[spec.shares] for spec in lm.specs)
    return weights, sum(
        maker.state_bytes(spec.attended_positions(positions, memory), memory)
        for maker, spec in zip(makers, lm.specs, strict=True)
    )
