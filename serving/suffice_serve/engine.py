"""One thread that writes many texts at once with a model, and one that reads their prompts.

Prompts are read in pieces while other texts are being written, whose steps wait for no prompt.
Those texts are the rows of one state where the model's attention allows it, and take their steps
one after another where it does not.
"""

from __future__ import annotations

import atexit
import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError, SufficeError
from suffice.generate.decoding import CausalModel, choose_backend
from suffice.generate.generate import eval_mode, max_length
from suffice.generate.sampling import Greedy, Sampler
from suffice.memory import Dynamic
from suffice.models.state import ModelState
from suffice_serve.job import Job, Listener, TokenScore, TooMany

GREEDY = Greedy()
CHUNK = 128  # prompt tokens read at a time
SPARE = 64  # positions of room in every buffer of a state
MOST_TOKENS = 1 << 23  # of all prompts that are read or wait; their ids take up to 300 MB
GROWTH = 1.25  # of a state's buffers
IDLE_SHARE = 4  # one row in four of a lane may be idle, as leaving it out copies the others


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an engine may use.

    Raises:
        ConfigError: for numbers out of range.
    """

    rows: int = 16  # number of texts written at once
    queue: int = 64  # number of texts that wait; more are refused
    cache: int = 1 << 30  # bytes of the states of all texts being written
    prefixes: int = 1 << 28  # bytes of the states of earlier prompts, kept to be continued

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("queue", 0), ("cache", 1), ("prefixes", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name}={value}: give at least {least}.")

    @property
    def texts(self) -> int:
        """Texts that are written or wait, at most."""
        return self.rows + self.queue


@dataclass
class Counters:
    """What an engine has done so far."""

    texts: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    first_token_seconds: float = 0.0
    first_tokens: int = 0


@dataclass(eq=False)
class Ticket:
    """A text inside the engine."""

    job: Job
    listener: Listener
    arrived: float
    sampler: Any = None  # a Sampler, once the text has begun
    state: Any = None  # a ModelState, from then until the text is a row of a lane
    read: int = 0  # tokens of the prompt
    cached: int = 0  # of them, found in an earlier state
    written: int = 0
    last: int = 0
    counts: Tensor | None = None  # [V], of the new tokens
    bias: Tensor | None = None  # [V]
    done: bool = False
    cancelled: bool = False

    def cancel(self) -> None:
        """Stop writing; nobody listens any more. May be called from any thread."""
        self.cancelled = True

    @property
    def over(self) -> bool:
        """Whether no further token is wanted."""
        return self.done or self.cancelled

    @property
    def left(self) -> int:
        """New tokens that may still be written."""
        return self.job.max_tokens - self.written

    @property
    def length(self) -> int:
        """Tokens of prompt and text."""
        return len(self.job.prompt) + self.written

    def finish(self, reason: str) -> None:
        """End the text."""
        self.done = True
        self.listener.finish(reason)

    @property
    def likeliest(self) -> bool:
        """Whether the likeliest token is chosen, whatever was written before."""
        return self.job.sampling == GREEDY and self.bias is None and self.counts is None

    def choose(self, logits: Tensor) -> int:
        """Return the next token, given logits [1, V]."""
        job, logits = self.job, logits.float()
        if self.bias is not None:
            logits = logits + self.bias
        if self.counts is None:
            return int(self.sampler(logits))
        present = (self.counts > 0).float()
        logits = logits - job.frequency_penalty * self.counts - job.presence_penalty * present
        token = int(self.sampler(logits))
        self.counts[token] += 1
        return token

    def take(self, token: int, logits: Tensor) -> None:
        """Pass on the next token, chosen from logits [1, V]."""
        job = self.job
        self.last = token
        self.written += 1
        if token in job.stop:
            self.finish("stop")
            return
        score = TokenScore(token)
        if job.logprobs is not None:
            (score,) = scores(logits.float(), [token], job.logprobs)
        if not self.listener.token(score):
            self.finish("stop")
        elif not self.left:
            self.finish("length")


def scores(logits: Tensor, tokens: Sequence[int], alternatives: int) -> list[TokenScore]:
    """Return the log-probability of each token, given logits [N, V], and the likeliest others."""
    log_probs = logits.log_softmax(dim=-1)
    taken = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    likeliest: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if alternatives:
        values, ids = log_probs.topk(min(alternatives, log_probs.shape[1]), dim=-1)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        likeliest = [tuple(zip(*pair, strict=True)) for pair in pairs]
    return [TokenScore(*each) for each in zip(tokens, taken, likeliest, strict=True)]


@dataclass(eq=False)
class Lane:
    """Texts that take their steps together: the rows of one state; None marks an idle row."""

    state: ModelState
    tickets: list[Ticket | None]

    @property
    def live(self) -> list[Ticket]:
        """The texts that are being written."""
        return [ticket for ticket in self.tickets if ticket is not None]


class Prefixes:
    """States after whole chunks of earlier prompts, the latest used kept within a limit of bytes.

    A prompt is read in the same chunks with and without them, so its text does not change by a bit.

    Args:
        limit: bytes of all states; 0 keeps none.
        chunk: tokens of a chunk.
    """

    def __init__(self, limit: int, chunk: int) -> None:
        self.limit, self.chunk = limit, chunk
        self.states: OrderedDict[bytes, ModelState] = OrderedDict()  # by digest of the beginning

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in tuple(self.states.values()))

    def _digests(self, prompt: Sequence[int], length: int) -> Iterator[bytes]:
        """Yield the digest of each beginning of whole chunks; all cost one pass over the prompt."""
        running = sha256()
        for end in range(self.chunk, length + 1, self.chunk):
            running.update(array("q", prompt[end - self.chunk : end]).tobytes())
            yield running.digest()

    def find(self, prompt: Sequence[int]) -> ModelState | None:
        """Return the state after the longest beginning that leaves a token; fork it before use."""
        kept = None
        for digest in self._digests(prompt, len(prompt) - 1) if self.states else ():
            kept = digest if digest in self.states else kept
        if kept is None:
            return None
        self.states.move_to_end(kept)
        return self.states[kept]

    def keep(self, beginning: Sequence[int], state: ModelState) -> None:
        """Keep a fork of the state after the beginning of a prompt, of whole chunks."""
        if state.nbytes > self.limit:
            return
        *_, digest = self._digests(beginning, len(beginning))
        if digest not in self.states:
            self.states[digest] = state.fork()
        while self.nbytes > self.limit:
            self.states.popitem(last=False)


class Engine:
    """Writes texts with a language model, many at once.

    Each text is what `suffice.generate` writes for its prompt alone with the same sampling, within
    rounding, whatever texts are written at the same time. Texts wait in a queue until there
    is room for all their positions.

    Args:
        lm: the model.
        limits: limits of memory and of texts.
        impl: see `suffice.generate.generate`.
        log: function that receives errors other than SufficeError.
        after: function called in the engine's thread after each round, after the listeners.

    Raises:
        ConfigError: if single tokens cannot be decoded as `impl` says.
    """

    def __init__(
        self,
        lm: CausalModel,
        limits: Limits | None = None,
        *,
        impl: str = "auto",
        log: Callable[[BaseException], None] = lambda _: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.lm, self.limits, self.log, self.after = lm, limits or Limits(), log, after
        self.memory = Dynamic()
        self.model, self.steps = choose_backend(lm, self.memory, impl)
        self.prompts = choose_backend(lm, self.memory, impl)[0]  # the reader's: it has own buffers
        self.vocabulary_size = lm.config.vocabulary_size
        self.room = max_length(lm)
        self.counters = Counters()
        self.prefixes = Prefixes(self.limits.prefixes, CHUNK)
        with torch.inference_mode(), eval_mode(lm):
            self._probe()
        self._wake = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._reading: list[Ticket] = []
        self._lanes: list[Lane] = []
        self._open: list[Ticket] = []  # texts that were not over when it was last looked
        self._turn = 0
        self._reader = ThreadPoolExecutor(1, "suffice-reader")
        self._piece: tuple[Ticket, Future[Tensor]] | None = None  # read now: its logits
        self._threads = torch.get_num_threads()
        self._closing = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="suffice-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close, 0.0)  # a thread in native code must not outlive the interpreter

    def _probe(self) -> None:
        state = self.lm.state(self.memory)
        self.lm.features(torch.zeros(1, 1, dtype=torch.long, device=self.lm.device), state=state)
        stores = [store for layer in state.layers for store in layer.stores()]
        self.bytes_per_token = sum(x.nbytes for store in stores for x in store.latest(1))
        self.bytes_per_text = state.nbytes - sum(store.nbytes for store in stores)
        self.joins = state.can_join

    def nbytes_of(self, tokens: int) -> int:
        """Return the bytes that the state of a text may take, room to grow included."""
        return int((tokens * GROWTH + SPARE) * self.bytes_per_token) + self.bytes_per_text

    def check(self, job: Job) -> None:
        """Raise ConfigError for a job that can never be done."""
        needed = job.positions
        if self.room is not None and needed > self.room:
            raise ConfigError(
                f"a prompt of {len(job.prompt)} tokens and {job.max_tokens} new ones need {needed} "
                f"positions of a model that has {self.room}; shorten the prompt or ask for fewer."
            )
        if (nbytes := self.nbytes_of(needed)) > self.limits.cache:
            raise ConfigError(
                f"{needed} tokens take {nbytes:,} bytes of state, and the engine has "
                f"{self.limits.cache:,}; shorten the prompt or ask for fewer tokens."
            )
        ids = (*job.prompt, *job.bias)
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocabulary_size:
            raise ConfigError(
                f"id {low if low < 0 else high} is not in the vocabulary; give ids of 0 to "
                f"{self.vocabulary_size - 1}."
            )

    def submit(self, job: Job, listener: Listener) -> Ticket:
        """Accept a text; see `submit_all`."""
        (ticket,) = self.submit_all([(job, listener)])
        return ticket

    def submit_all(self, jobs: Sequence[tuple[Job, Listener]]) -> list[Ticket]:
        """Accept all of these texts or none; listeners are called from the engine's thread.

        Raises:
            ConfigError: for a text that can never be written.
            TooMany: if the queue is too full for them, or the engine is closing.
        """
        if len(jobs) > (most := self.limits.texts):
            raise ConfigError(f"{len(jobs)} texts at once; ask for at most {most}.")
        for job in {(id(j.prompt), id(j.bias), j.max_tokens): j for j, _ in jobs}.values():
            self.check(job)  # choices share their prompt
        now = time.perf_counter()
        tickets = [Ticket(job, listener, now) for job, listener in jobs]
        with self._wake:
            self._open = [ticket for ticket in self._open if not ticket.over]
            prompts = {id(each.job.prompt): each.job.prompt for each in (*self._open, *tickets)}
            full = len(self._open) + len(jobs) > most
            full = full or bool(self._open) and sum(map(len, prompts.values())) > MOST_TOKENS
            if self._closing or full:
                self.counters.refused += len(jobs)
                raise TooMany(
                    "the server is stopping."
                    if self._closing
                    else f"{len(self._open)} texts are written or wait; try again later."
                )
            self._open += tickets
            self.counters.texts += len(jobs)
            self._waiting.extend(tickets)
            self._wake.notify()
        return tickets

    def figures(self) -> dict[str, float]:
        """Return what was done so far, and what is being done: the figures of /metrics."""
        with self._wake:
            waiting = sum(not ticket.over for ticket in self._waiting)
            accepted = sum(not ticket.over for ticket in self._open)
        return {
            **asdict(self.counters),
            "waiting": waiting,
            "running": accepted - waiting,
            "prefix_bytes": self.prefixes.nbytes,
        }

    def close(self, seconds: float = 30.0) -> None:
        """Refuse new texts, give the accepted ones `seconds` to end, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(seconds)
        self._stopped = True
        self._thread.join()
        atexit.unregister(self.close)

    # The engine's thread.

    def _run(self) -> None:
        with torch.inference_mode(), eval_mode(self.lm):
            while self._wait_for_work():
                try:
                    self._admit()
                    self._read()
                    self._step_all()
                except BaseException as error:  # noqa: BLE001 - the texts that wait go on
                    self._give_up(error)
                self.after()
            self._reader.shutdown()
            torch.set_num_threads(self._threads)
            for ticket in (*self._active(), *self._waiting):
                self._fail(ticket, "the server is stopping")
            self.after()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._waiting or self._reading or self._lanes or self._stopped):
                if self._closing:
                    return False
                self._wake.wait()
        return not self._stopped

    def _active(self) -> list[Ticket]:
        return [*self._reading, *(ticket for lane in self._lanes for ticket in lane.live)]

    def _ended(self, ticket: Ticket) -> None:
        ticket.state = None
        self.counters.cancelled += ticket.cancelled and not ticket.done
        with self._wake:
            self._open = [each for each in self._open if not each.over]

    def _fail(self, ticket: Ticket, reason: str) -> None:
        if not ticket.over:
            ticket.done = True
            self.counters.failed += 1
            ticket.listener.fail(reason)

    def _catch(self, tickets: Sequence[Ticket], error: BaseException) -> None:
        """End texts with an error, which must not end the others."""
        if not isinstance(error, SufficeError):
            self.log(error)
        for ticket in tickets:
            self._fail(ticket, str(error) or type(error).__name__)

    def _give_up(self, error: BaseException) -> None:
        active = self._active()
        self._reading, self._lanes, self._piece = [], [], None
        self._catch(active, error)
        for ticket in active:
            self._ended(ticket)

    def _admit(self) -> None:
        active = self._active()
        while self._waiting:
            ticket = self._waiting[0]
            if not ticket.over and not self._fits([*active, ticket]):
                return
            with self._wake:
                self._waiting.popleft()
            if ticket.over:
                self._ended(ticket)
                continue
            try:
                self._begin(ticket)
            except BaseException as error:  # noqa: BLE001 - one text must not end the others
                self._catch([ticket], error)
                self._ended(ticket)
                continue
            active.append(ticket)
            self._reading.append(ticket)

    def _fits(self, tickets: list[Ticket]) -> bool:
        if len(tickets) == 1:
            return True
        needs = [self.nbytes_of(ticket.job.positions) for ticket in tickets]
        total = max(needs) * len(needs) if self.joins else sum(needs)
        return len(tickets) <= self.limits.rows and total <= self.limits.cache

    def _begin(self, ticket: Ticket) -> None:
        job, device = ticket.job, self.lm.device
        # presence is all that a sampler reads of a prompt, of which choices share millions of ids
        seen = {*job.prompt} if job.sampling.repetition_penalty != 1.0 else job.prompt[:1]
        prompt = torch.tensor([[*seen]], device=device)
        ticket.sampler = Sampler(job.sampling, prompt, None, self.vocabulary_size, first=job.row)
        if job.presence_penalty or job.frequency_penalty:
            ticket.counts = torch.zeros(self.vocabulary_size, device=device)
        if job.bias:
            ticket.bias = torch.zeros(self.vocabulary_size, device=device)
            ticket.bias[list(job.bias)] = torch.tensor(list(job.bias.values()), device=device)
        state = None if job.echo else self.prefixes.find(job.prompt)
        if state is None:
            ticket.state = self.lm.state(self.memory)
        else:
            ticket.state, ticket.read = state.fork(), state.length
            ticket.cached = state.length
            self.counters.cached_tokens += state.length

    def _read(self) -> None:
        """Take the piece of a prompt that has been read, and let the reader begin the next one.

        Steps, and a piece that is read meanwhile, have half of the threads each.
        """
        if self._piece is not None and (not self._lanes or self._piece[1].done()):
            (ticket, logits), self._piece = self._piece, None
            self._finish_piece(ticket, logits)
        half = self._threads // 2
        if self._piece is None and self._reading:
            ticket = self._next_to_read()
            threads = max(half, 1) if self._lanes else self._threads
            self._piece = ticket, self._reader.submit(self._read_piece, ticket, threads)
        torch.set_num_threads(self._threads if self._piece is None else self._threads - half)

    def _finish_piece(self, ticket: Ticket, logits: Future[Tensor]) -> None:
        try:
            finished = ticket.over or self._take_piece(ticket, logits.result())
        except BaseException as error:  # noqa: BLE001 - one text must not end the others
            self._catch([ticket], error)
            finished = True
        if finished:
            self._reading.remove(ticket)
            if ticket.over:
                self._ended(ticket)
            else:
                self._enter(ticket)

    def _next_to_read(self) -> Ticket:
        self._turn += 1
        if self._turn % 2:
            return self._reading[0]
        return min(self._reading, key=lambda ticket: len(ticket.job.prompt) - ticket.read)

    def _read_piece(self, ticket: Ticket, threads: int) -> Tensor:
        """Read a piece of a prompt, in the reader's thread; return the logits that are needed.

        They are [1, T, V] of all tokens, or of the last one; of a piece that needs none, empty.
        """
        torch.set_num_threads(threads)
        job = ticket.job
        piece = job.prompt[ticket.read : ticket.read + CHUNK]
        with torch.inference_mode():
            tokens = torch.tensor([piece], device=self.lm.device)
            features = self.prompts.features(tokens, state=ticket.state)
            if job.echo and job.logprobs is not None:
                return self.lm.logits(features)
            last = ticket.read + len(piece) == len(job.prompt)
            return self.lm.logits(features[:, -1:]) if last and job.max_tokens else features[:, :0]

    def _take_piece(self, ticket: Ticket, logits: Tensor) -> bool:
        """Count a piece that was read, given its logits; return whether it was the last."""
        job, prompt = ticket.job, ticket.job.prompt
        start, end = ticket.read, min(ticket.read + CHUNK, len(prompt))
        ticket.read = end
        self.counters.prompt_tokens += end - start
        if job.echo and job.logprobs is not None:
            targets = prompt[start + 1 : end + 1]
            of_targets = logits[0, : len(targets)].float()
            ticket.listener.prompt(scores(of_targets, targets, job.logprobs))
        if end < len(prompt):
            if (len(prompt) - 1) // CHUNK * CHUNK == end:
                self.prefixes.keep(prompt[:end], ticket.state)
            return False
        if job.max_tokens:
            ticket.take(ticket.choose(logits[:, -1]), logits[:, -1])
            self.counters.new_tokens += 1
            self.counters.first_tokens += 1
            self.counters.first_token_seconds += time.perf_counter() - ticket.arrived
        else:
            ticket.finish("length")
        return True

    def _enter(self, ticket: Ticket) -> None:
        if not self.joins or not self._lanes:
            self._lanes.append(Lane(ticket.state, [ticket]))
            return
        (lane,) = self._lanes
        idle = [row for row, each in enumerate(lane.tickets) if each is None]
        state, ticket.state = ticket.state, None
        if idle and state.length <= lane.state.length:
            lane.state.put(idle[0], state)
            lane.tickets[idle[0]] = ticket
        else:
            self._rebuild(lane, [(state, ticket)])

    def _rebuild(self, lane: Lane, more: Sequence[tuple[ModelState, Ticket]] = ()) -> None:
        rows = [(lane.state, row) for row, each in enumerate(lane.tickets) if each is not None]
        lane.tickets = [*lane.live, *(ticket for _, ticket in more)]
        lane.state = ModelState.join([*rows, *((state, 0) for state, _ in more)])

    def _step_all(self) -> None:
        for lane in list(self._lanes):
            self._sweep(lane)
            if not lane.live:
                self._lanes.remove(lane)
                continue
            try:
                self._step(lane)
            except BaseException as error:  # noqa: BLE001 - the other lanes go on
                self._catch(lane.live, error)
            self.counters.steps += 1

    def _sweep(self, lane: Lane) -> None:
        """Leave out texts that are over, and what is kept of them once it is much."""
        for row, ticket in enumerate(lane.tickets):
            if ticket is not None and ticket.over:
                lane.tickets[row] = None
                self._ended(ticket)
        live = lane.live
        idle = len(lane.tickets) - len(live)
        if not live or not self.joins:
            return
        needed = max(ticket.length for ticket in live)
        if idle * IDLE_SHARE >= len(lane.tickets) or lane.state.length > needed * GROWTH + SPARE:
            self._rebuild(lane)

    def _step(self, lane: Lane) -> None:
        last = [0 if ticket is None else ticket.last for ticket in lane.tickets]
        logits = self.model.step(torch.tensor(last, device=self.lm.device), lane.state)
        likeliest = logits.argmax(dim=-1).tolist()
        for row, ticket in enumerate(lane.tickets):
            if ticket is not None:
                own = logits[row : row + 1]
                try:
                    ticket.take(likeliest[row] if ticket.likeliest else ticket.choose(own), own)
                except BaseException as error:  # noqa: BLE001 - the other texts go on
                    self._catch([ticket], error)
        self.counters.new_tokens += len(lane.live)
