"""ModernBERT beside transformers and ONNX Runtime: equal rows of several lengths, and unequal ones.

The shapes are those of ModernBERT-base with fewer layers and drawn weights; one layer in three sees
every token, the others 128. Peers: the stock class with torch's attention (SDPA), the same class
after `suffice.hf.accelerate`, and ONNX Runtime on the graph that `suffice export` writes.

Run: python -m benchmarks.encoders [--threads 2] [--layers 6] [--length N ...] [--rounds 5]
         [--processor-time]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
import transformers
from torch import Tensor, nn

from benchmarks.report import Row, gate, print_machine, print_rows
from suffice.convert.sources import open_source
from suffice.export.graph import graph_module, write_onnx
from suffice.hf import accelerate
from suffice.utils.timing import interleave

LENGTHS = (512, 2048, 8192)
REACH = {512: 1 / 1.2, 2048: 1 / 2, 8192: 1 / 4}  # our time over that of SDPA
UNEQUAL = (512, 35, 128, 210, 64, 390, 90, 19)  # tokens of a batch of texts
REACH_OF_UNEQUAL = 1 / 2
VOCABULARY = 1024
DENSE = 4096  # tokens up to which ONNX Runtime is run: its scores of all pairs are held in memory


def models(layers: int, folder: Path) -> tuple[nn.Module, transformers.PreTrainedModel]:
    """Return our model and that of transformers, of the same weights."""
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    marks |= {"cls_token_id": 1, "sep_token_id": 2}
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY, num_hidden_layers=layers, attn_implementation="sdpa", **marks
    )
    torch.manual_seed(0)
    stock = transformers.ModernBertModel(config).eval()
    stock.save_pretrained(folder)
    return open_source(folder).model, stock


STOP_SPINNING = "session.force_spinning_stop", "1"
"""Threads that wait for the next run would slow what is timed after this one."""


def onnx_runtime(model: nn.Module, path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session on the graph of our model."""
    write_onnx(graph_module(model), path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry(*STOP_SPINNING)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def mean_of_stock(stock: nn.Module, tokens: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the features of real tokens."""
    features = stock(tokens, attention_mask=valid.long()).last_hidden_state
    return (features * valid[..., None]).sum(dim=1) / valid.sum(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, action="append", help="equal rows; 0: unequal rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--processor-time", action="store_true", help="of this process, with --threads 1, when busy"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print_machine()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        ours, stock = models(options.layers, Path(name))
        fast = copy.deepcopy(stock)
        accelerate(fast)
        session = onnx_runtime(ours, Path(name) / "model.onnx", options.threads)
        for length in options.length or (*LENGTHS, 0):
            lengths = torch.tensor([length] if length else UNEQUAL)
            valid = torch.arange(int(lengths.max()))[None] < lengths[:, None]
            tokens = torch.randint(3, VOCABULARY, valid.shape).masked_fill(~valid, 0)
            feeds = {"tokens": tokens.numpy(), "valid": valid.numpy()}
            runs: dict[str, Callable[[], object]] = {
                "ours": lambda t=tokens, v=valid: ours(t, v),
                f"transformers {transformers.__version__}, SDPA": (
                    lambda t=tokens, v=valid: mean_of_stock(stock, t, v)
                ),
                "the same, accelerated": lambda t=tokens, v=valid: mean_of_stock(fast, t, v),
            }
            if length <= DENSE:
                runs[f"ONNX Runtime {onnxruntime.__version__}"] = lambda f=feeds: torch.from_numpy(
                    session.run(None, f)[0]
                )
            for peer, run in runs.items():
                gate(f"{peer}, {length} tokens", run(), ours(tokens, valid))
            clock = time.process_time if options.processor_time else None
            settings = {"rounds": options.rounds, "warmup": 0, "min_seconds_per_sample": 0.001}
            times = interleave(runs, **settings, clock=clock)
            case = f"{length:,} tokens" if length else f"{len(UNEQUAL)} texts of 19 to 512"
            for number, peer in enumerate(name for name in runs if name != "ours"):
                reach = None if number else REACH.get(length) if length else REACH_OF_UNEQUAL
                rows.append(
                    Row(case=case, peer=peer, ours=times["ours"], theirs=times[peer], reach=reach)
                )
    print_rows(f"ModernBERT-base, {options.layers} layers", rows)


if __name__ == "__main__":
    main()
