"""transformers' Llama with the weights of one of our models."""

from __future__ import annotations

from torch import nn

from benchmarks.contest import Absent
from suffice.errors import ConfigError
from suffice.measure.edge.peers import hugging_face
from suffice.measure.edge.peers.hugging_face import written
from suffice.models import LM

__all__ = ["llama", "written"]


def llama(lm: LM) -> nn.Module:
    """Return a LlamaForCausalLM of the shape and the weights of a Llama-like model.

    Raises:
        Absent: if transformers is not installed.
    """
    try:
        return hugging_face.llama(lm)
    except ConfigError as error:
        raise Absent(str(error)) from error
