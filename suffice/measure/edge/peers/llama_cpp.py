"""llama.cpp with its defaults, called at its own interface: no Python of others between tokens."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from suffice.errors import StateError
from suffice.measure.edge.peers import gguf_file, package
from suffice.measure.edge.peers.greedy import Greedy
from suffice.measure.edge.run import Side
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


def make(lm: LM, *, bits: int, room: int, folder: Path) -> Side:
    """Write the model as a file and return the side that reads it.

    Raises:
        ConfigError: if llama-cpp-python or gguf is not installed.
        StateError: if llama.cpp cannot load the file, or dies of it.
    """
    path = folder / f"{bits}.gguf"
    gguf_file.write(path, lm, bits=bits, length=room)
    check_lives(path, bits)
    return LlamaCpp(path, vocabulary=lm.config.vocabulary_size, room=room)


def check_lives(path: Path, bits: int) -> None:
    """Refuse a file that llama.cpp dies of, before it ends this process.

    Raises:
        StateError: naming the signal and what helped.
    """
    given = [sys.executable, "-c", TRIAL, str(path)]
    done = subprocess.run(given, capture_output=True, check=False)
    if done.returncode < 0:
        raise StateError(
            f"llama.cpp dies of weights of {bits} bits here (signal {-done.returncode}). Its code "
            "for AMX is known to, where the processor has it: reinstall llama-cpp-python with "
            "CMAKE_ARGS='-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8'."
        )


class LlamaCpp(Greedy):
    """A file of weights, with as many threads as torch has.

    Args:
        path: of the file.
        vocabulary: V.
        room: tokens of prompt and text.

    Raises:
        ConfigError: if llama-cpp-python is not installed.
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
        self.piece = options.n_batch

    def begin(self) -> None:
        """Forget what was read."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [T] and return the logits [V] behind them."""
        for start in range(0, len(ids), self.piece):
            held = np.ascontiguousarray(ids[start : start + self.piece], dtype=np.int32)
            tokens = held.ctypes.data_as(ctypes.POINTER(self.api.llama_token))
            failed = self.api.llama_decode(
                self.context, self.api.llama_batch_get_one(tokens, len(held))
            )
            if failed:
                raise StateError(f"llama.cpp refused {len(held)} tokens with code {failed}.")
        found = self.api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(found, shape=(self.vocabulary,))

    def __del__(self) -> None:
        if getattr(self, "context", None):
            self.api.llama_free(self.context)
            self.api.llama_model_free(self.model)
