"""The HTTP application of a server: routes, refusals, and responses streamed from the engine.

Starlette routes and uvicorn speaks HTTP; everything here runs in one event loop, parallel to the
engine's thread, which never waits for a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffice.errors import SufficeError
from suffice.utils.files import parse_json
from suffice_serve.engine import Engine, Ticket
from suffice_serve.job import TooMany
from suffice_serve.protocol import (
    Answer,
    RequestError,
    ServedModel,
    TextRequest,
    read_chat,
    read_completion,
)
from suffice_serve.writing import Piece, Writer

MAX_BODY = 4 << 20  # bytes
MAX_PARALLEL_BODY = 1 << 16  # bytes; larger bodies are parsed one after another
MOST_HELD = 64 << 20  # bytes of all bodies that come or wait; then large ones are refused
BODY_SECONDS = 30.0  # in which a body must have come
RETRY_SECONDS = 1  # after which a client that was refused may try again
LOOPBACK = ("127.0.0.1", "localhost", "::1")

SERVED = "/v1/completions, /v1/chat/completions, /v1/models, /health and /metrics"

Read = Callable[[Any, ServedModel], TextRequest]


class Hub:
    """Passes what the engine's thread writes to the event loop, once for each of its rounds."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pieces: list[tuple[Inbox, int, Piece]] = []

    def put(self, inbox: Inbox, number: int, piece: Piece) -> None:
        """Take a piece; called in the engine's thread."""
        self._pieces.append((inbox, number, piece))

    def flush(self) -> None:
        """Pass the pieces on; called in the engine's thread."""
        if self._pieces and self.loop is not None:
            pieces, self._pieces = self._pieces, []
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self.loop.call_soon_threadsafe(_deliver, pieces)


def _deliver(pieces: list[tuple[Inbox, int, Piece]]) -> None:
    for inbox, number, piece in pieces:
        inbox.add(number, piece)


class Inbox:
    """The pieces of one answer that were not sent yet, those of a choice as one."""

    def __init__(self, choices: int) -> None:
        self.open = choices
        self.left = False  # the client
        self._pieces: dict[int, Piece] = {}
        self._filled = asyncio.Event()

    def add(self, number: int, piece: Piece) -> None:
        """Take a piece of a choice."""
        if number in self._pieces:
            self._pieces[number].extend(piece)
        else:
            self._pieces[number] = piece
        self._filled.set()

    def leave(self) -> None:
        """Learn that the client has left."""
        self.left = True
        self._filled.set()

    async def rounds(self) -> AsyncIterator[dict[int, Piece]]:
        """Yield what has come, until every choice has ended or the client has left."""
        while self.open and not self.left:
            await self._filled.wait()
            self._filled.clear()
            pieces, self._pieces = self._pieces, {}
            self.open -= sum(piece.last for piece in pieces.values())
            if pieces:
                yield pieces


class EngineResponse(Response):
    """An answer that is written while the engine works; it stops when the client leaves."""

    def __init__(
        self, request: TextRequest, answer: Answer, inbox: Inbox, tickets: Sequence[Ticket]
    ) -> None:
        self.request, self.answer, self.inbox, self.tickets = request, answer, inbox, tickets
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if self.request.stream:
                await self._stream(send)
            else:
                await self._whole(scope, receive, send)
        finally:
            watcher.cancel()
            for ticket in self.tickets:
                ticket.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.inbox.leave()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = [Piece() for _ in self.request.jobs]
        async for written in self.inbox.rounds():
            for number, piece in written.items():
                pieces[number].extend(piece)
                if piece.error is not None:
                    response = refusal(RequestError(piece.error, status=500))
                    await response(scope, receive, send)
                    return
        if not self.inbox.left:
            content = self.answer.whole(pieces, self._usage(pieces))
            await JSONResponse(content)(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        counts = [Piece() for _ in self.request.jobs]
        async for written in self.inbox.rounds():
            events = []
            for number, piece in written.items():
                counts[number].tokens += piece.tokens
                if piece.error is not None:
                    await self._end(
                        send, [*events, RequestError(piece.error, status=500).to_json()]
                    )
                    return
                events.append(self.answer.chunk(number, piece))
            await send(_body(_events(events), more=True))
        if not self.inbox.left:
            closing = [self.answer.closing(self._usage(counts))] if self.request.usage else []
            await self._end(send, closing)

    async def _end(self, send: Send, events: Sequence[Any]) -> None:
        await send(_body(_events(events) + b"data: [DONE]\n\n", more=False))

    def _usage(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        firsts = self.tickets[:: self.request.choices]
        cached = sum(ticket.cached for ticket in firsts)
        return self.answer.usage(sum(piece.tokens for piece in pieces), cached)


def _events(contents: Sequence[Any]) -> bytes:
    return b"".join(
        b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"
        for content in contents
    )


def _body(content: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


def refusal(error: RequestError) -> JSONResponse:
    """Return an error as OpenAI's clients read it."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if error.status in (429, 503) else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.to_json(), status_code=error.status, headers=headers)


@dataclass(eq=False)
class Handlers:
    """What the routes do."""

    served: ServedModel
    hub: Hub
    held: int = 0  # bytes of bodies
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)  # a large body

    async def models(self, _: HTTPRequest) -> Response:
        """List the one model."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: HTTPRequest) -> Response:
        """Describe the model by its name."""
        name = request.path_params["name"]
        if name != self.served.name:
            raise RequestError(f"there is no model {name!r:.60}.", status=404, field="model")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        served = self.served
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "suffice",
        }

    async def health(self, _: HTTPRequest) -> Response:
        """Tell that the server answers."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: HTTPRequest) -> Response:
        """Tell what was done, in Prometheus' text format."""
        return PlainTextResponse(
            metrics(self.served.engine), media_type="text/plain; version=0.0.4"
        )

    async def completions(self, request: HTTPRequest) -> Response:
        """Continue prompts."""
        return await self._answer(request, read_completion)

    async def chat(self, request: HTTPRequest) -> Response:
        """Answer in a conversation."""
        return await self._answer(request, read_chat)

    async def _answer(self, http: HTTPRequest, read: Read) -> Response:
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError("send Content-Type: application/json.", status=415)
        if (coding := http.headers.get("content-encoding", "identity")) != "identity":
            raise RequestError(f"Content-Encoding {coding!r:.60}: send it plain.", status=415)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in http.stream():
                    body += piece
                    self.held += len(piece)
                    self._check_size(len(body))
            if len(body) < MAX_PARALLEL_BODY:
                return await run_in_threadpool(self._begin, body, read)
            async with self.parsing:
                return await run_in_threadpool(self._begin, body, read)
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            reason = f"the body did not come within {BODY_SECONDS:g} seconds."
            raise RequestError(reason, status=408) from None
        finally:
            self.held -= len(body)
            body.clear()  # an error that is being sent would keep it

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY:
            reason = f"a body of more than {MAX_BODY >> 20} MiB; send less."
            raise RequestError(reason, status=413)
        if size > MAX_PARALLEL_BODY and self.held > MOST_HELD:
            reason = "too many large bodies come at once; try again later."
            raise RequestError(reason, status=503)

    def _begin(self, body: bytearray, read: Read) -> Response:
        """Give the engine the jobs of a body; called outside the event loop's thread."""
        try:
            content = parse_json(bytes(body))
        except (ValueError, RecursionError):
            reason = (
                "the body is not JSON in Unicode, is nested too deeply, or has too many values."
            )
            raise RequestError(reason) from None
        request = read(content, self.served)
        served, inbox = self.served, Inbox(len(request.jobs))
        jobs = []
        for number, (job, prompt) in enumerate(zip(request.jobs, request.prompts, strict=True)):
            writer = Writer(
                served.spelling,
                job.prompt,
                stop=request.stop,
                unspelled=prompt.unspelled,
                offset=len(prompt.text) if job.echo else 0,
                scored=job.logprobs is not None,
                deliver=lambda piece, number=number: self.hub.put(inbox, number, piece),
            )
            jobs.append((job, writer))
        tickets = served.engine.submit_all(jobs)
        kind = "chatcmpl" if request.chat else "cmpl"
        answer = Answer(request, served, f"{kind}-{secrets.token_hex(12)}", int(time.time()))
        return EngineResponse(request, answer, inbox, tickets)


FIGURES = {
    "texts": ("counter", "Texts accepted."),
    "refused": ("counter", "Texts refused as the queue was full."),
    "cancelled": ("counter", "Texts whose client left."),
    "failed": ("counter", "Texts that ended with an error."),
    "prompt_tokens": ("counter", "Prompt tokens read."),
    "cached_tokens": ("counter", "Prompt tokens found in a kept state."),
    "new_tokens": ("counter", "Tokens written."),
    "steps": ("counter", "Steps of the model."),
    "first_token_seconds": ("counter", "Seconds from request to first token, summed."),
    "first_tokens": ("counter", "First tokens, by which that sum is divided."),
    "waiting": ("gauge", "Texts in the queue."),
    "running": ("gauge", "Texts being written."),
    "prefix_bytes": ("gauge", "Bytes of the states of earlier prompts."),
}


def metrics(engine: Engine) -> str:
    """Return an engine's figures in Prometheus' text format."""
    lines = []
    for name, value in engine.figures().items():
        kind, description = FIGURES[name]
        full = f"suffice_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {full} {description}", f"# TYPE {full} {kind}", f"{full} {value}"]
    return "\n".join(lines) + "\n"


class Gate:
    """Refuses requests of other hosts, other pages and without the key, before they are read.

    Args:
        app: application that answers the requests let through.
        local: whether the server is for this machine alone: other host names are then refused, so
            that no web page can reach it through a domain that resolves to this machine.
        key: key that requests must bring; None: no key. /health is open.
        origin: other server whose pages may send requests; None: no other.
    """

    def __init__(self, app: ASGIApp, *, local: bool, key: str | None, origin: str | None) -> None:
        self.app, self.local, self.key, self.origin = app, local, key, origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "http" and (error := self._error(scope)) is not None:
            await refusal(error)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _error(self, scope: Scope) -> RequestError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.local and _name_of(host) not in LOOPBACK:
            return RequestError(
                f"this server answers to {' and '.join(LOOPBACK[:2])} alone.", status=403
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        foreign = origin != self.origin and origin.partition("://")[2] != host
        if b"origin" in headers and foreign:
            return RequestError("another page may not send requests here.", status=403)
        if self.key is None or scope["path"] == "/health":
            return None
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
            return RequestError(
                "the key is absent or wrong; send Authorization: Bearer KEY.",
                status=401,
                code="invalid_api_key",
            )
        return None


def _name_of(host: str) -> str:
    """Return a Host header without its port.

    Example:
        >>> _name_of("localhost:80"), _name_of("[::1]:80"), _name_of("[::1]")
        ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def drained(app: ASGIApp) -> ASGIApp:
    """Return an application that answers when a request has come whole.

    A client that still sends would see its connection reset instead of the answer.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        whole, end = scope["type"] != "http", asyncio.get_running_loop().time() + BODY_SECONDS

        async def read() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    while not whole:
                        await read()
            await send(message)

        await app(scope, read, answer)

    return run


def build_app(
    served: ServedModel,
    hub: Hub,
    *,
    local: bool = True,
    key: str | None = None,
    origin: str | None = None,
) -> ASGIApp:
    """Return the application that answers for a model.

    Args:
        served: the model; its engine calls `hub.flush` after each round.
        hub: channel from the engine's thread to the event loop.
        local: see `Gate`.
        key: see `Gate`.
        origin: see `Gate`.
    """
    handlers = Handlers(served, hub)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        hub.loop = asyncio.get_running_loop()
        yield

    app = Starlette(
        routes=[
            Route("/v1/models", handlers.models),
            Route("/v1/models/{name:path}", handlers.model),
            Route("/v1/completions", handlers.completions, methods=["POST"]),
            Route("/v1/chat/completions", handlers.chat, methods=["POST"]),
            Route("/health", handlers.health),
            Route("/metrics", handlers.metrics),
        ],
        exception_handlers=dict(_handlers()),
        lifespan=lifespan,
    )
    gate: ASGIApp = Gate(app, local=local, key=key, origin=origin)
    if origin is not None:  # outside the gate, as a browser asks for permission without the key
        gate = CORSMiddleware(gate, [origin], ["GET", "POST"], ["*"])
    return drained(gate)


def _handlers() -> Iterator[tuple[Any, Any]]:
    async def refuse(request: HTTPRequest, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return refusal(_as_request_error(error))
        what, allowed = f"{request.method} {request.url.path}"[:60], error.headers or {}
        reason = f"send {allowed['Allow']}" if "Allow" in allowed else f"there are {SERVED}"
        answer = refusal(RequestError(f"{what}: {reason}.", status=error.status_code))
        answer.headers.update(allowed)
        return answer

    for kind in (RequestError, TooMany, SufficeError, HTTPException, Exception):
        yield kind, refuse


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TooMany):
        return RequestError(str(error), status=429, code="queue_full")
    if isinstance(error, SufficeError):
        return RequestError(str(error))
    return RequestError(f"the server failed with {type(error).__name__}.", status=500)
