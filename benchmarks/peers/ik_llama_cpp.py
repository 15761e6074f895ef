"""ik_llama.cpp, a fork of llama.cpp with other CPU kernels, on the same GGUF files.

Its C interface is llama.cpp's of an earlier time, and so are its structures.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from benchmarks.peers.decoders import Decoder
from benchmarks.peers.installed import Absent, package
from benchmarks.peers.llama_cpp import BITS, LlamaCpp, instructions_of, write_gguf
from suffice.models import LM


def make(lm: LM, *, bits: int, room: int, folder: Path, rows: int) -> Decoder:
    """Write the model as a file and return the peer that reads it.

    Raises:
        Absent: if ik-llama-cpp-python is not installed, and for several rows.
        StateError: if the file cannot be loaded.
    """
    if rows > 1:
        raise Absent(
            "its flash attention ends the process where several texts decode together (0.1.5: "
            "GGML_ASSERT(S > 0) failed)"
        )
    path = folder / f"{bits}.gguf"
    if not path.exists():
        write_gguf(path, lm, bits=bits)
    return IkLlamaCpp(path, vocabulary=lm.config.vocabulary_size, room=room, rows=rows)


class IkLlamaCpp(LlamaCpp):
    """A file of weights, repacked in rows for its kernels as it recommends for CPUs."""

    name = "ik_llama.cpp"

    def interface(self) -> Any:
        """Return the functions and structures of the library, which is silent from now on."""
        api = package("ik-llama-cpp-python", "ik_llama_cpp._ctypes_api")
        library = api._lib
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        library.llama_log_set(self.silence, None)
        api.llama_backend_init()
        return api

    def model_options(self) -> Any:
        """Return how weights are loaded."""
        options = super().model_options()
        options.use_mmap, options.repack_tensors = False, True
        return options

    @property
    def instructions(self) -> str:
        """The instruction sets that the library was compiled for, which is all it reports."""
        describe = self.api._lib.llama_print_system_info
        describe.restype = ctypes.c_char_p
        return instructions_of(describe().decode())

    def clear(self) -> None:
        """Empty the library's KV cache."""
        self.api.llama_kv_cache_clear(self.context)

    def free(self, model: Any) -> None:
        """Free the weights."""
        self.api.llama_free_model(model)


__all__ = ["BITS", "IkLlamaCpp", "make"]
