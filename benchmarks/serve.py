"""A server under many clients, beside llama-cpp-python's with the same 8-bit weights.

Each client sends streamed requests one after another, greedily, and reads to the end. A token is
counted once however the pieces are cut: by what the text encodes to. The peer answers its clients
one after another; ours writes their texts together.

Run: python -m benchmarks.serve [--model FILE.gguf] [--clients 16] [--requests 4] [--tokens 64]
    [--rounds 3] [--threads N] [--peer "python -m llama_cpp.server"]
    [--case http|mixed] [--minutes 60]

Without --model the sizes of a Llama of 15M or 110M with random weights are used (--shape). Case
mixed runs only when it is asked for: --minutes of clients that read, leave, stall, ask wrongly or
want every probability, and the memory that the server holds meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles

from benchmarks.report import CONSOLE, print_machine
from suffice.choose.bench import SHAPES, randomise
from suffice.models import configuration, folder
from suffice.text import BPE, Tokenizer

ROOT = Path(__file__).resolve().parents[1]
PEER = f"{sys.executable} -m llama_cpp.server"
REACH_TOKENS = 1.2
WARM, GROWTH = 0.2, 1.03  # of the minutes before memory counts; of the memory from then to the end
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
def server(command: list[str], port: int, threads: int) -> Iterator[int]:
    """Run a server until the block ends, and give the id of its process."""
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
            yield process.pid
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


@dataclass
class Traffic:
    """What clients of all kinds did."""

    answers: int = 0
    left: int = 0
    refused: int = 0
    failed: int = 0


def mixed(model: Path, asked: argparse.Namespace) -> None:
    """Print, minute by minute, what clients of all kinds did and the memory the server holds."""
    (command, port), *_ = commands(
        model, argparse.Namespace(**{**vars(asked), "peer": ""})
    ).values()
    traffic, seen = Traffic(), []
    with server(command, port, asked.threads) as process:

        def look(minute: int) -> None:
            seen.append(resident(process))
            CONSOLE.print(
                f"minute {minute:3}: {seen[-1] / 2**20:.1f} MiB; {traffic.answers} answers, "
                f"{traffic.left} clients left, {traffic.refused} refused, {traffic.failed} failed",
                highlight=False,
            )

        asyncio.run(all_kinds(port, asked, traffic, look))
    warm = seen[int(WARM * len(seen)) :]
    growth = max(warm[-len(warm) // 3 :]) / max(warm[: max(1, len(warm) // 3)])
    verdict = "flat" if growth <= GROWTH and not traffic.failed else "NOT FLAT"
    CONSOLE.print(f"memory of the last third over the first: {growth:.3f}: {verdict}")


def resident(process: int) -> int:
    """Return the bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def all_kinds(
    port: int, asked: argparse.Namespace, traffic: Traffic, look: Callable[[int], None]
) -> None:
    """Send requests of all kinds from many clients until the minutes are over."""
    until, lines = time.monotonic() + 60 * asked.minutes, prompts(61)

    async def client(seed: int) -> None:
        random_of = random.Random(seed)
        while time.monotonic() < until:
            await visit(port, random_of, lines, asked.tokens, traffic)

    async def minutes() -> None:
        for minute in range(1, asked.minutes + 1):
            await asyncio.sleep(60)
            look(minute)

    await asyncio.gather(minutes(), *(client(seed) for seed in range(asked.clients)))


async def visit(
    port: int, random_of: random.Random, lines: list[str], tokens: int, traffic: Traffic
) -> None:
    """Send one request of a kind drawn at random, and do with the answer what that kind does."""
    kind = random_of.choice(("stream", "whole", "scores", "leave", "stall", "wrong", "malformed"))
    text = f"{random_of.random()} {random_of.choice(lines)}" * random_of.choice((1, 1, 4))
    body: dict = {"model": "m", "prompt": text, "max_tokens": random_of.randint(1, tokens)}
    body |= {"seed": 1, "temperature": random_of.choice((0, 1)), "stream": kind == "stream"}
    if kind == "scores":
        body |= {"echo": True, "logprobs": 5}
    if kind in ("leave", "stall"):
        body |= {"stream": True, "max_tokens": 4 * tokens}
    if kind == "wrong":
        body |= random_of.choice(({"max_tokens": -1}, {"nonsense": 1}, {"model": 3}))
    content = b"{" if kind == "malformed" else json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + content)
        status = int((await reader.readline()).split()[1])
        if status != 200:
            expected = kind in ("wrong", "malformed") or status == 429
            traffic.refused, traffic.failed = (
                traffic.refused + expected,
                traffic.failed + (not expected),
            )
        elif kind == "leave":
            await reader.read(random_of.randint(100, 2_000))
            traffic.left += 1
        elif kind == "stall":
            await asyncio.sleep(random_of.random())
            traffic.left += 1
        else:
            answer = await reader.read(-1)
            whole = b"[DONE]" in answer if kind == "stream" else b'"usage"' in answer
            traffic.answers, traffic.failed = traffic.answers + whole, traffic.failed + (not whole)
    finally:
        writer.transport.abort()


CASES = (http, mixed)


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
    parser.add_argument("--case", choices=[case.__name__ for case in CASES])
    parser.add_argument("--minutes", type=int, default=60, help="of case mixed")
    asked = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model or made(Path(scratch), asked.shape)
        for case in CASES:
            if asked.case == case.__name__ or (asked.case is None and case is not mixed):
                case(model, asked)


if __name__ == "__main__":
    main()
