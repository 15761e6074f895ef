"""llama.cpp with its defaults, called through its C interface, on a GGUF file of our weights."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.decoders import Decoder, GreedyPeer
from benchmarks.peers.installed import package
from suffice.errors import StateError
from suffice.export.gguf import write_model
from suffice.models import LM
from suffice.text import Characters

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
        Absent: if llama-cpp-python is not installed.
        StateError: if llama.cpp cannot load the file, or dies of it.
    """
    path = folder / f"{bits}.gguf"
    if not path.exists():  # two peers read it
        write_gguf(path, lm, bits=bits)
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


TYPES = {32: "f32", 16: "f16", 8: "q8_0", 4: "q4_0"}


def write_gguf(path: Path, lm: LM, *, bits: int) -> None:
    """Write the weights as `suffice export` does; of the vocabulary one character has a meaning."""
    write_model(path, lm, Characters("a"), kind=TYPES[bits])
