"""A server under many clients, beside llama-cpp-python's with the same 8-bit weights.

Each client sends streamed requests one after another, greedily, and reads to the end. A token is
counted once however the pieces are cut: by what the text encodes to. The peer answers its clients
one after another; ours writes their texts together.

Run: python -m benchmarks.serve [--model FILE.gguf] [--clients 16] [--requests 4] [--tokens 64]
    [--rounds 3] [--threads N] [--peer "python -m llama_cpp.server"] [--case http|lookup]

Without --model the sizes of a Llama of 15M or 110M with random weights are used (--shape).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from threading import Event

from benchmarks.report import CONSOLE, print_machine
from suffice.generate import Greedy, Sample, generate
from suffice.measure.edge.shapes import SHAPES, randomise
from suffice.models import configuration, folder
from suffice.text import BPE, Tokenizer

ROOT = Path(__file__).resolve().parents[1]
PEER = f"{sys.executable} -m llama_cpp.server"
REACH_TOKENS, REACH_REPEATING, REACH_OTHER = 1.2, 2.0, 0.98
WORDS = "the dog saw a red ball and ran to it while rain fell over the town all day"


@dataclass
class Load:
    """What clients measured, in seconds."""

    wall: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.tokens / self.wall


def prompts(count: int) -> list[str]:
    """Return prompts of 10 to 60 words, no two with the same beginning."""
    lines, known = [], WORDS.split()
    for number in range(count):
        size = 10 + (number * 7) % 51
        words = [known[(number * 5 + n * (1 + number % 3)) % len(known)] for n in range(size)]
        lines.append(f"{number} " + " ".join(words))
    return lines


async def ask(port: int, prompt: str, tokens: int, load: Load, number: int) -> None:
    """Send one request over its own connection and read the answer."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + content)
    text, latest = "", None
    async for line in reader:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        piece = json.loads(line[6:])["choices"][0]["text"]
        if not piece:
            continue
        now = time.perf_counter()
        if latest is None:
            load.first.append(now - began)
        else:
            load.between.append(now - latest)
        text, latest = text + piece, now
    load.whole.append(time.perf_counter() - began)
    load.texts[number] = text
    writer.close()


async def clients(port: int, asked: argparse.Namespace) -> Load:
    """Return what so many clients measured, each sending its requests in turn."""
    load, lines = Load(), prompts(asked.clients * asked.requests)

    async def client(number: int) -> None:
        for turn in range(asked.requests):
            at = number + turn * asked.clients
            await ask(port, lines[at], asked.tokens, load, at)

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(asked.clients)))
    load.wall = time.perf_counter() - began
    return load


@contextmanager
def server(command: list[str], port: int, threads: int) -> Iterator[None]:
    """Run a server until the block ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"{shlex.join(command)} ended: {log.read()[-800:]!r}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def commands(model: Path, asked: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
    """Return how each server is started, and its port."""
    ours, theirs = free_port(), free_port()
    sides = {
        "suffice": (
            [sys.executable, "-m", "suffice", "serve", str(model), "--port", str(ours)]
            + ["--name", "m", "--rows", str(asked.clients), "--queue", "1024"],
            ours,
        )
    }
    if asked.peer:
        words = shlex.split(asked.peer)
        words += ["--model", str(model), "--model_alias", "m", "--port", str(theirs)]
        words += ["--host", "127.0.0.1", "--n_threads", str(asked.threads), "--verbose", "False"]
        words += ["--n_threads_batch", str(asked.threads), "--interrupt_requests", "False"]
        sides["llama-cpp-python"] = (words, theirs)
    return sides


def made(path: Path, shape: str) -> Path:
    """Write a model with random weights and a small vocabulary as a file."""
    from suffice.export import export_gguf

    texts = [file.read_text("utf-8") for file in sorted((ROOT / "docs").rglob("*.md"))]
    tokenizer = BPE.train(texts, 4096)
    config, specs = configuration(SHAPES[shape], "standard")
    lm = randomise(replace(config, vocabulary_size=4096).build(specs))
    folder.save(path / "model", lm, tokenizer)
    export_gguf(path / "model", path / "model.gguf", kind="q8_0")
    return path / "model.gguf"


def http(model: Path, asked: argparse.Namespace) -> None:
    """Print what clients of both servers measured, in rounds that take turns."""
    _, tokenizer, _ = folder.load(model)
    sides = commands(model, asked)
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for number in range(asked.rounds + 1):
        for name, (command, port) in sides.items():
            with server(command, port, asked.threads):
                asyncio.run(clients(port, argparse.Namespace(clients=2, requests=1, tokens=8)))
                load = asyncio.run(clients(port, asked))
            load.tokens = sum(count(tokenizer, text) for text in load.texts.values())
            if number:  # the first is a warm-up
                loads[name].append(load)
    print_loads(loads)


def count(tokenizer: Tokenizer, text: str) -> int:
    """Return the tokens of a text."""
    return len(tokenizer.encode(text))


def print_loads(loads: dict[str, list[Load]]) -> None:
    """Print a line for each server, and how ours stands to the peer's."""
    CONSOLE.print(
        f"{'':18}{'tokens/s':>10}{'first p50':>11}{'p95':>9}{'between p50':>13}{'p95':>9}"
        f"{'answer p50':>12}{'p95':>9}   ms"
    )
    for name, rounds in loads.items():
        line = f"{name:18}{median(load.rate for load in rounds):>10,.0f}"
        for what, width in (("first", 11), ("between", 13), ("whole", 12)):
            middle, high = (percentile(rounds, what, share) for share in (50, 95))
            line += f"{1e3 * middle:>{width}.1f}{1e3 * high:>9.1f}"
        CONSOLE.print(line, highlight=False)
    if len(loads) == 2:
        ours, theirs = loads.values()
        ratio = median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        verdict = "reached" if ratio >= REACH_TOKENS else "MISSED"
        CONSOLE.print(f"tokens/s {ratio:.2f}x the peer's, reach {REACH_TOKENS}: {verdict}")
        for what in ("first", "between", "whole"):
            high = [percentile(rounds, what, 95) for rounds in (ours, theirs)]
            verdict = "not above" if high[0] <= high[1] else "ABOVE"
            CONSOLE.print(f"p95 of {what}: {verdict} the peer's ({high[0] / high[1]:.2f}x)")


def percentile(rounds: list[Load], what: str, share: int) -> float:
    """Return the median over rounds of a percentile."""
    return median(quantiles(getattr(load, what), n=100)[share - 1] for load in rounds)


class Reader:
    """Waits for the end of a text."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = Event()
        self.reason = ""

    def prompt(self, scores: object) -> None:
        """Nothing asks for scores."""

    def token(self, score: object) -> bool:
        self.tokens.append(score.token)  # type: ignore[attr-defined]
        return True

    def finish(self, reason: str) -> None:
        self.reason = reason
        self.ended.set()

    fail = finish


def lookup(model: Path, asked: argparse.Namespace) -> None:
    """Print the rates of one text with prompt lookup over those without it."""
    from suffice.serve import Engine, Job
    from suffice.serve.drafts import Lookup

    lm, tokenizer, _ = folder.load(model)
    engines = {"without": Engine(lm), "with": Engine(lm, drafter=Lookup())}
    start = tokenizer.encode(" ".join(prompts(3)))[:40]
    # what a model writes greedily becomes a circle; far above its temperature nothing recurs
    circle = generate(lm, [start], max_new_tokens=160).row(0)
    cases = {
        "repeating": (Greedy(), REACH_REPEATING, circle),
        "not repeating": (Sample(temperature=100.0, seed=3), REACH_OTHER, start),
    }
    for name, (sampling, reach, prompt) in cases.items():
        ratios, texts = [], {}
        for number in range(2 * asked.rounds + 3):
            seconds = {}
            for side in sorted(engines, reverse=number % 2 == 0):
                job = Job(prompt=tuple(prompt), max_tokens=4 * asked.tokens, sampling=sampling)
                reader, began = Reader(), time.perf_counter()
                engines[side].submit(job, reader)
                reader.ended.wait()
                seconds[side] = time.perf_counter() - began
                texts[side] = reader.tokens
            if number > 1:
                ratios.append(seconds["without"] / seconds["with"])
        same = "the same text" if texts["with"] == texts["without"] else "ANOTHER TEXT"
        verdict = "reached" if median(ratios) >= reach else "MISSED"
        CONSOLE.print(
            f"prompt lookup, {name}: {median(ratios):.2f}x, reach {reach}: {verdict}; {same}"
        )
    for engine in engines.values():
        engine.close(0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="15m", help="of random weights")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peer", default=PEER, help="command of its server; empty = none")
    parser.add_argument("--case", choices=("http", "lookup"))
    asked = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model or made(Path(scratch), asked.shape)
        for case in (http, lookup):
            if asked.case in (None, case.__name__):
                case(model, asked)


if __name__ == "__main__":
    main()
