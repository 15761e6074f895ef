"""llama.cpp with its defaults, called through its C interface, on a GGUF file of our weights."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.decoders import Decoder, GreedyPeer, layers
from benchmarks.peers.installed import package
from suffice.errors import StateError
from suffice.models import LM

BITS = (32, 16, 8, 4)
# two tokens in a process of their own, which may die
TRIAL = """
import ctypes, sys
import llama_cpp as api
options = api.llama_model_default_params()
model = api.llama_model_load_from_file(sys.argv[1].encode(), options)
options = api.llama_context_default_params()
options.n_ctx = 8
context = api.llama_init_from_model(model, options)
tokens = (api.llama_token * 2)(0, 1)
api.llama_decode(context, api.llama_batch_get_one(tokens, 2))
"""


def make(lm: LM, *, bits: int, room: int, folder: Path) -> Decoder:
    """Write the model as a file and return the peer that reads it.

    Raises:
        Absent: if llama-cpp-python or gguf is not installed.
        StateError: if llama.cpp cannot load the file, or dies of it.
    """
    path = folder / f"{bits}.gguf"
    write_gguf(path, lm, bits=bits, length=room)
    check_survives(path, bits)
    return LlamaCpp(path, vocabulary=lm.config.vocabulary_size, room=room)


def check_survives(path: Path, bits: int) -> None:
    """Refuse a file that makes llama.cpp crash, before it ends this process.

    Raises:
        StateError: naming the signal and what helped.
    """
    command = [sys.executable, "-c", TRIAL, str(path)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode < 0:
        raise StateError(
            f"llama.cpp dies of weights of {bits} bits here (signal {-done.returncode}). Its code "
            "for AMX is known to, where the processor has it: reinstall llama-cpp-python with "
            "CMAKE_ARGS='-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8'."
        )


class LlamaCpp(GreedyPeer):
    """A file of weights, with as many threads as torch has.

    Args:
        path: of the file.
        vocabulary: V.
        room: tokens of prompt and text.

    Raises:
        Absent: if llama-cpp-python is not installed.
        StateError: if the file cannot be loaded.
    """

    name = "llama.cpp"

    def __init__(self, path: Path, *, vocabulary: int, room: int) -> None:
        self.api = api = package("llama-cpp-python", "llama_cpp")
        self.vocabulary = vocabulary
        self.silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        self.context = None
        options = api.llama_model_default_params()
        self.model = api.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise StateError(f"llama.cpp cannot load {path}; try another llama-cpp-python.")
        options = api.llama_context_default_params()
        options.n_ctx = room
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        self.context = api.llama_init_from_model(self.model, options)
        self.batch_size = options.n_batch

    def reset(self) -> None:
        """Empty the KV cache."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [T] and return the logits [V] after them."""
        for start in range(0, len(ids), self.batch_size):
            piece = np.ascontiguousarray(ids[start : start + self.batch_size], dtype=np.int32)
            tokens = piece.ctypes.data_as(ctypes.POINTER(self.api.llama_token))
            failed = self.api.llama_decode(
                self.context, self.api.llama_batch_get_one(tokens, len(piece))
            )
            if failed:
                raise StateError(f"llama.cpp refused {len(piece)} tokens with code {failed}.")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, shape=(self.vocabulary,))

    def __del__(self) -> None:
        if getattr(self, "context", None):
            self.api.llama_free(self.context)
            self.api.llama_model_free(self.model)


TYPES = {32: "F32", 16: "F16", 8: "Q8_0", 4: "Q4_0"}
NAMES = {
    **{name: f"attn_{name}" for name in "qkv"},
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}


def write_gguf(path: Path, lm: LM, *, bits: int, length: int) -> None:
    """Write the weights; all maps and the embedding are rounded, norms stay as they are.

    Args:
        path: of the file.
        lm: the model.
        bits: of a weight, see `TYPES`.
        length: tokens that the file says the model was made for.

    Raises:
        Absent: if gguf is not installed.
    """
    gguf = package("gguf", "gguf")
    config, spec = lm.config, lm.specs[0]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.depth)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_dimension_count(spec.head_width)
    writer.add_rope_freq_base(spec.position.theta)
    writer.add_vocab_size(config.vocabulary_size)
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType[TYPES[bits]]
    for name, weight in _tensors(lm).items():
        stored = kind if weight.dim() > 1 else gguf.GGMLQuantizationType.F32
        numbers = np.ascontiguousarray(weight.detach().numpy())
        writer.add_tensor(name, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(lm: LM) -> dict[str, Tensor]:
    spec = lm.specs[0]
    tensors = {
        "token_embd.weight": lm.embedding.tokens.weight,
        "output_norm.weight": lm.norm.weight,
    }
    if lm.head is not None:
        tensors["output.weight"] = lm.head.weight
    for number, layer in enumerate(layers(lm)):
        layer["q"] = interleave_rotary(layer["q"], spec.num_heads)
        layer["k"] = interleave_rotary(layer["k"], spec.kv_heads)
        tensors |= {f"blk.{number}.{path}.weight": layer[name] for name, path in NAMES.items()}
    return tensors


def interleave_rotary(weight: Tensor, heads: int) -> Tensor:
    """Return a map with features i and i + D / 2 of a head, which rotate together, side by side.

    Example:
        >>> import torch
        >>> interleave_rotary(torch.arange(8.0).view(8, 1), heads=2).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
