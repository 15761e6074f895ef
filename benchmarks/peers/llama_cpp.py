"""llama.cpp with its defaults, called through its C interface, on a GGUF file of our weights."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def make(lm: LM, *, bits: int, room: int, folder: Path, rows: int) -> Decoder:
    """Write the model as a file and return the peer that reads it.

    Raises:
        Absent: if llama-cpp-python or gguf is not installed.
        StateError: if llama.cpp cannot load the file, or dies of it.
    """
    path = folder / f"{bits}.gguf"
    if not path.exists():  # two peers read it
        write_gguf(path, lm, bits=bits, length=room)
    check_survives(path, bits)
    return LlamaCpp(path, vocabulary=lm.config.vocabulary_size, room=room, rows=rows)


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
        rows: texts written at once.

    Raises:
        Absent: if the package is not installed.
        StateError: if the file cannot be loaded.
    """

    name = "llama.cpp"

    def __init__(self, path: Path, *, vocabulary: int, room: int, rows: int = 1) -> None:
        self.api = api = self.interface()
        self.vocabulary, self.rows, self.length = vocabulary, rows, 0
        self.context = None
        self.model = api.llama_model_load_from_file(str(path).encode(), self.model_options())
        if not self.model:
            raise StateError(f"{self.name} cannot load {path}; try another version of it.")
        options = api.llama_context_default_params()
        options.n_ctx = room * rows
        options.n_seq_max = rows
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        self.context = api.llama_init_from_model(self.model, options)
        self.batch_size = options.n_batch
        self.batch = api.llama_batch_init(self.batch_size, 0, 1)

    def interface(self) -> Any:
        """Return the functions and structures of the library, which is silent from now on."""
        api = package("llama-cpp-python", "llama_cpp")
        self.silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        return api

    def model_options(self) -> Any:
        """Return how weights are loaded."""
        return self.api.llama_model_default_params()

    @property
    def instructions(self) -> str:
        """The instruction sets that the library was compiled for and finds here."""
        return instructions_of(self.api.llama_print_system_info().decode())

    def clear(self) -> None:
        """Empty the library's KV cache."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def reset(self) -> None:
        """Empty the KV cache."""
        self.clear()
        self.length = 0

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [B, T] and return the logits [B, V] after them."""
        rows, length = ids.shape
        step = max(1, self.batch_size // rows)
        for start in range(0, length, step):
            piece = ids[:, start : start + step]
            failed = self.api.llama_decode(self.context, self._filled(piece))
            if failed:
                raise StateError(f"{self.name} refused {piece.size} tokens with code {failed}.")
            self.length += piece.shape[1]
        ends = range(piece.shape[1] - 1, piece.size, piece.shape[1])
        return np.stack([self._logits(end) for end in ends])

    def _filled(self, ids: np.ndarray) -> Any:
        """Return a batch of ids [B, T]; logits are asked for after the last of each row."""
        batch, width = self.batch, ids.shape[1]
        batch.n_tokens = ids.size
        for at, token in enumerate(ids.reshape(-1).tolist()):
            row, column = divmod(at, width)
            batch.token[at], batch.pos[at] = token, self.length + column
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
            batch.logits[at] = column == width - 1
        return batch

    def _logits(self, at: int) -> np.ndarray:
        logits = self.api.llama_get_logits_ith(self.context, at)
        return np.ctypeslib.as_array(logits, shape=(self.vocabulary,))

    def __del__(self) -> None:
        if getattr(self, "context", None):
            self.api.llama_batch_free(self.batch)
            self.api.llama_free(self.context)
            self.free(self.model)

    def free(self, model: Any) -> None:
        """Free the weights."""
        self.api.llama_model_free(model)


def instructions_of(facts: str) -> str:
    """Return "avx512", "avx2" or what else a line of facts says of the processor.

    Example:
        >>> instructions_of("CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | REPACK = 1 |")
        'avx2'
    """
    for fact, name in (("AVX512 = 1", "avx512"), ("AVX2 = 1", "avx2"), ("NEON = 1", "neon")):
        if fact in facts:
            return name
    return "others"


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
    writer.add_key_length(spec.head_width)
    writer.add_value_length(spec.head_width)
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
