"""How far .gguf files of one model are from its predictions, rounded here and by llama.cpp.

Run: python -m benchmarks.divergence MODEL --calibration TEXT --text TEXT [--tokens N]

Each file is read here, K-quants decoded in full, and predicts the same tokens. Divergence is
KL(model || file) in nats a token, with the standard error over rows; "chosen" is the share of
tokens where both have the same likeliest one. Rows of llama.cpp need llama-cpp-python.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.report import CONSOLE, print_machine
from suffice.convert.sources import open_source
from suffice.export.gguf import packed_codes, write_model
from suffice.models import LM
from suffice.models.gguf import read_gguf
from suffice.models.packed import unpack
from suffice.quantise import quantise
from suffice.quantise.report import rows_of
from suffice.text import Tokenizer

TOGETHER = 8  # rows


@dataclass(frozen=True)
class Distance:
    """What a file's predictions are beside the model's."""

    nats: float
    error: float
    chosen: float


def distance(model: LM, other: LM, rows: Tensor) -> Distance:
    """Return how far the predictions of another model are on rows of tokens [B, T]."""
    nats, same = [], []
    for part in rows.split(TOGETHER):
        wanted, found = (lm(part).double().log_softmax(dim=-1) for lm in (model, other))
        nats.append((wanted.exp() * (wanted - found)).sum(dim=-1).mean(dim=1))
        same.append((wanted.argmax(dim=-1) == found.argmax(dim=-1)).double().mean(dim=1))
    each = torch.cat(nats)
    error = float(each.std() / len(each) ** 0.5)
    return Distance(float(each.mean()), error, float(torch.cat(same).mean()))


def packed(model: LM, bits: int, calibration: Tensor | None) -> LM:
    """Return a copy whose matrices are rounded in groups of 32."""
    made = copy.deepcopy(model)
    quantise(made, bits, 32, calibration=calibration)
    return made


def by_llama_cpp(whole: Path, out: Path, kind: str, *, pure: bool) -> None:
    """Let llama.cpp round a file of float32; pure = every matrix in the one kind."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.pure = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), pure
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(out).encode(), options):
        raise SystemExit(f"llama.cpp does not round {whole} to {kind}")


def files(
    model: LM, tokenizer: Tokenizer, calibration: Tensor, place: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the name of each way to round, and the file it made."""
    whole, out = place / "whole.gguf", place / "rounded.gguf"
    write_model(whole, model, tokenizer, kind="f32")
    ways: dict[str, Callable[[], Any]] = {
        f"{kind}, {how}": lambda kind=kind, read=read: export(model, tokenizer, kind, read, out)
        for kind in ("q8_0", "q4_0")
        for how, read in (("nearest", None), ("rounded on text", calibration))
        if kind == "q4_0" or read is None
    }
    try:
        import llama_cpp
    except ImportError:
        CONSOLE.print("llama-cpp-python is not installed: its rows are left out")
    else:
        silent = llama_cpp.llama_log_callback(lambda *_: None)  # must live as long as it is set
        llama_cpp.llama_log_set(silent, None)
        for kind, pure in (("Q8_0", True), ("Q4_0", True), ("Q4_0", False), ("Q4_K_M", False)):
            name = f"llama-quantize {kind}{' --pure' if pure else ''}"
            ways[name] = lambda kind=kind, pure=pure: by_llama_cpp(whole, out, kind, pure=pure)
    for name, make in ways.items():
        make()
        yield name, out


def export(model: LM, tokenizer: Tokenizer, kind: str, read: Tensor | None, out: Path) -> None:
    """Write a file as `suffice quantise` and `suffice export` do."""
    rounded = packed(model, {"q8_0": 8, "q4_0": 4}[kind], read)
    codes = packed_codes(rounded, kind)
    unpack(rounded)
    write_model(out, rounded.float().eval(), tokenizer, kind=kind, codes=codes)


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True, help="text to round on")
    parser.add_argument("--text", type=Path, required=True, help="other text, to predict")
    parser.add_argument("--tokens", type=int, default=8192)
    given = parser.parse_args()
    opened = open_source(given.model)
    model, tokenizer = opened.model, opened.tokenizer
    unpack(model)
    model.float().eval()
    length = model.config.length
    calibration, rows = (
        rows_of([path.read_text("utf-8")], tokenizer, length=length, tokens=given.tokens)
        for path in (given.calibration, given.text)
    )
    print_machine()
    table = Table(
        "file",
        "KiB",
        "nats a token",
        "chosen",
        title=f"{given.model.name}, {rows.numel():,} tokens",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(model, tokenizer, calibration, Path(folder)):
            lm = read_gguf(path)[0]
            unpack(lm)
            found = distance(model, lm, rows)
            table.add_row(
                name,
                f"{path.stat().st_size / 1024:,.0f}",
                f"{found.nats:.5f} ± {found.error:.5f}",
                f"{found.chosen:.2%}",
            )
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
