"""SmolLM2's packed file in this library and in llama.cpp: text, logits, perplexity and rates.

Run: make models .venv/.peers; python -m benchmarks.smollm2_llama_cpp [--threads N]

Both read the same file of Q4_1 blocks. Logits of each are compared with those of the weights
unpacked to float32; perplexity is that of the first 512 tokens of 8 articles of WikiText-2's
validation part; rates are medians over rounds that take turns. The figures go to
benchmarks/measured/smollm2_llama_cpp.json.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import models
from benchmarks.peers.decoders import Ours, gain, relative_error, session
from benchmarks.peers.llama_cpp import LlamaCpp, check_survives
from benchmarks.report import CONSOLE, peer_versions
from suffice.convert.certificate import row_losses
from suffice.convert.sources import open_source
from suffice.ops.native import library
from suffice.text import corpus
from suffice.utils.files import write_json
from suffice.utils.machine import machine_facts, software_versions

FILE = Path(__file__).parent / "measured" / "smollm2_llama_cpp.json"
PROMPT = "The history of the city begins in the twelfth century, when"
NEW = 200  # greedy tokens
TEXTS, LENGTH = 8, 512
PREFILL, DECODE, ROUNDS = 512, 64, 9


class Scored(LlamaCpp):
    """llama.cpp, asked for the logits of every token."""

    def losses(self, rows: Tensor) -> list[float]:
        """Return the mean loss of each row [B, T], in nats."""
        return [self._loss(row) for row in rows]

    def _loss(self, row: Tensor) -> float:
        self.reset()
        found = []
        for piece in row.split(self.batch_size):
            batch = self._filled(piece[None].numpy())
            for at in range(len(piece)):
                batch.logits[at] = 1
            if failed := self.api.llama_decode(self.context, batch):
                raise SystemExit(f"llama.cpp refused {len(piece)} tokens with code {failed}.")
            self.length += len(piece)
            found.append(np.stack([self._logits(at).copy() for at in range(len(piece))]))
        logits = torch.from_numpy(np.concatenate(found))[:-1]
        return F.cross_entropy(logits.double(), row[1:]).item()


def shared(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """Return how many tokens two texts have in common before they part."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((at for at, (one, other) in pairs if one != other), len(ours))


def compared(threads: int) -> dict[str, object]:
    """Return what both programs make of the file."""
    torch.set_num_threads(threads)
    path = models.path("smollm2")
    source = open_source(path)
    tokenizer, exact = source.tokenizer, Ours(open_source(path, packed=False).model.eval())
    ours = Ours(source.model.eval())
    check_survives(path, 4)
    theirs = Scored(path, vocabulary=source.model.config.vocabulary_size, room=1024)
    prompt = torch.tensor(tokenizer.encode(PROMPT))
    articles = [tokenizer.encode(text) for text in corpus("wikitext2").validation]
    rows = torch.tensor([one[:LENGTH] for one in articles if len(one) >= LENGTH][:TEXTS])
    texts = [side.write(prompt, NEW).tokens for side in (exact, ours, theirs)]
    sides = {"suffice": ours, "llama.cpp": theirs}
    losses = {"suffice": row_losses(source.model, rows), "llama.cpp": theirs.losses(rows)}
    losses["float32"] = row_losses(exact.lm, rows)
    long = rows.flatten()[:PREFILL]
    runs = session(list(sides.values()), long, DECODE, ROUNDS)
    rates = {
        f"{name} {rate}": median(getattr(run, rate) for run in found)
        for name, found in runs.items()
        for rate in ("prefill", "decode")
    }
    return {
        "prompt": PROMPT,
        "text": tokenizer.decode(list(texts[1])),
        "tokens in common": {
            "suffice and llama.cpp": shared(texts[1], texts[2]),
            "suffice and float32": shared(texts[0], texts[1]),
            "llama.cpp and float32": shared(texts[0], texts[2]),
        },
        "relative error of logits": {
            name: relative_error(exact, side, rows[0]) for name, side in sides.items()
        },
        "perplexity": {name: math.exp(sum(one) / len(one)) for name, one in losses.items()},
        "tokens a second": rates,
        "gain": {name: gain(*runs.values(), name) for name in ("prefill", "decode")},
        "threads": threads,
        "instructions": {"suffice": library.instructions(), "llama.cpp": theirs.instructions},
        "machine": {
            name: str(value)
            for name, value in (software_versions() | machine_facts() | peer_versions()).items()
        },
    }


def main() -> None:
    """Compare, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    found = compared(parser.parse_args().threads)
    write_json(FILE, found)
    CONSOLE.print_json(json.dumps({k: v for k, v in found.items() if k != "machine"}))


if __name__ == "__main__":
    main()
