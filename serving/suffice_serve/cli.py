"""`suffice serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Option

from suffice.cli.options import Checkpoint, Device, check_at_least
from suffice.cli.terminal import print_text
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.models import LM
    from suffice.text import Tokenizer

MIB = 1 << 20
Template = Annotated[Path | None, Option(help="File of a chat template, if the model has none.")]
Impl = Annotated[str, Option(help="auto, native (CPU kernels; an error without them) or torch.")]


def serve(
    model: Checkpoint,
    host: Annotated[str, Option(help="Address; all but this machine's own need --api-key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(help="Port; 0 = a free one.")] = 8000,
    name: Annotated[
        str | None, Option(help="Name in requests; that of the file if absent.")
    ] = None,
    api_key: Annotated[
        str | None, Option(envvar="SUFFICE_API_KEY", help="Key that requests must bring.")
    ] = None,
    allow_origin: Annotated[
        str | None, Option(help="Web page that may send requests, as http://localhost:3000.")
    ] = None,
    rows: Annotated[int, Option(help="Maximum concurrent requests.")] = 16,
    queue: Annotated[int, Option(help="Texts that wait; more are refused with 429.")] = 64,
    cache: Annotated[int, Option(help="MiB of KV caches of the texts being written.")] = 1024,
    prefixes: Annotated[int, Option(help="MiB of states of earlier prompts, to go on from.")] = 256,
    template: Template = None,
    device: Device = "cpu",
    impl: Impl = "auto",
) -> None:
    """Answer OpenAI's clients over HTTP: completions, chat, log-probabilities of prompts.

    Requests are batched. Supported fields are honoured; any other field returns 400. Ctrl-C
    finishes running requests and stops; a second one stops at once.
    """
    check_at_least(1, rows=rows, cache=cache)
    check_at_least(0, queue=queue, prefixes=prefixes, port=port)
    for flag, word in (("name", name), ("api-key", api_key)):
        if word is not None and not (word.isprintable() and word.isascii()):
            raise ConfigError(f"--{flag} {word!a:.80}: give printable characters of ASCII.")
    if allow_origin is not None and not re.fullmatch(r"https?://[\w.:\[\]-]+", allow_origin):
        raise ConfigError(
            f"--allow-origin {allow_origin!a:.80} is not an origin; give scheme, host and port of "
            "the page, such as http://localhost:3000."
        )
    from suffice_serve.app import LOOPBACK, Hub, build_app
    from suffice_serve.chat import template_of
    from suffice_serve.engine import Engine, Limits
    from suffice_serve.protocol import ServedModel as ServedModel
    from suffice_serve.server import GRACE_SECONDS, listen, run

    local = host in LOOPBACK
    if not local and api_key is None:
        raise ConfigError(
            f"--host {host} can be reached by other machines; give --api-key, or leave --host out."
        )
    lm, tokenizer, facts = load_model(model, device)
    chat = template_of(model, facts, tokenizer, template)
    hub, console = Hub(), Console(stderr=True)
    limits = Limits(rows=rows, queue=queue, cache=cache * MIB, prefixes=prefixes * MIB)
    with listen(host, port) as listener:
        engine = Engine(
            lm,
            limits,
            impl=impl,
            log=lambda error: print_text(f"a text failed: {error!r:.500}", console),
            after=hub.flush,
        )
        served = ServedModel(
            name=name or (model.stem if model.suffix == ".gguf" else model.resolve().name),
            engine=engine,
            tokenizer=tokenizer,
            template=chat,
            created=int(time.time()),
        )
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listener.getsockname()[1]}/v1"
        routes = "completions, chat" if chat else "completions; no chat template"
        together = "together" if engine.joins else "one after another (this attention keeps sums)"
        steps = f"steps: {engine.steps}, {rows} texts {together}"

        def ready() -> None:
            print_text(f"{served.name}: {url} ({routes}; {steps}; Ctrl-C stops it)", console)

        try:
            app = build_app(served, hub, local=local, key=api_key, origin=allow_origin)
            run(app, listener, ready)
        finally:
            engine.close(GRACE_SECONDS)
    print_text("stopped.", console)


def load_model(model: Path, device: str) -> tuple[LM, Tokenizer, dict[str, Any]]:
    """Return a language model, its tokenizer and its facts."""
    from suffice.models import folder
    from suffice.train import resolve_device

    return folder.load(model, resolve_device(device))
