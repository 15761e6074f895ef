"""Others who run the same models: imported when they are asked for, refused when absent."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from pathlib import Path
from types import ModuleType

import torch

from suffice.errors import ConfigError, UnsupportedError, unknown
from suffice.measure.edge.run import Side
from suffice.models import LM
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec import AttentionSpec

MODULES = {
    "llama.cpp": "llama_cpp",
    "transformers": "hugging_face",
    "onnxruntime": "onnx_runtime",
}
PACKAGES = {  # by the name pip knows, what is imported
    "llama.cpp": {"llama-cpp-python": "llama_cpp", "gguf": "gguf"},
    "transformers": {"transformers": "transformers"},
    "onnxruntime": {"onnxruntime": "onnxruntime", "onnx": "onnx", "onnx_ir": "onnx_ir"},
}


def named(names: str) -> list[str]:
    """Return the peers of words with commas between, all of them installed.

    Raises:
        ConfigError: for an unknown peer, or one that is not installed; says how to install it.
    """
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in found:
        if name not in MODULES:
            raise unknown("peer", name, MODULES)
        for known, module in PACKAGES[name].items():
            package(known, module)
    return found


def peer(name: str, lm: LM, *, bits: int, room: int, folder: Path) -> Side:
    """Return a peer with the weights of a model.

    Args:
        name: see `MODULES`.
        lm: a Llama-like model in 32 bits.
        bits: of the peer's own weights, rounded its own way: 32, 16, 8 or 4.
        room: tokens of prompt and text.
        folder: for the files it reads.

    Raises:
        ConfigError: if a package is not installed, or the model is not a plain Llama.
        UnsupportedError: if the peer has no such bits here.
    """
    check_llama(lm)
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    if bits not in module.BITS:
        raise UnsupportedError(
            f"{name} has no weights of {bits} bits on a CPU; ask for "
            f"{' or '.join(map(str, module.BITS))}."
        )
    return module.make(lm, bits=bits, room=room, folder=folder)


def package(name: str, module: str) -> ModuleType:
    """Import a module of a peer's package; what it prints and warns of is left out.

    Args:
        name: of the package, as pip knows it.
        module: what to import.

    Raises:
        ConfigError: if it cannot be imported; says how to install it.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed ({error}); pip install 'suffice[bench]'"
        ) from error


def check_llama(lm: LM) -> None:
    """Refuse models that the peers have no code for.

    Raises:
        ConfigError: naming what is not a Llama's.
    """
    config, spec = lm.config, lm.specs[0]
    weight = getattr(lm.embedding.tokens, "weight", None)  # packed ones have none
    plain = AttentionSpec(
        d_model=config.d_model,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        pattern=Causal(),
        position=Rope(),
        bias=False,
    )
    facts = {
        "standard causal attention with Rope() in each layer": all(s == plain for s in lm.specs),
        "SwiGLU": config.activation == "swiglu",
        "RMS norms": config.norm == "rms",
        "no biases": not config.bias,
        "no positions beside Rope()": config.positions == "none",
        "weights of 32 bits": weight is not None and weight.dtype is torch.float32,
    }
    wrong = [name for name, holds in facts.items() if not holds]
    if wrong:
        raise ConfigError(
            f"peers run plain Llamas, which have {' and '.join(wrong)}; this model has not. "
            "Give another one, or measure it alone."
        )
