"""One thread that owns a model and answers many requests at once, token by token.

Prompts are read in pieces between the steps of the texts that are being written; those texts are
the rows of one state where the model's attention allows it, and step one after another where not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from suffice.errors import ConfigError, SufficeError
from suffice.generate.decoding import CausalModel, choose_backend
from suffice.generate.generate import eval_mode, max_length
from suffice.generate.sampling import Sampler
from suffice.memory import Dynamic
from suffice.models.state import ModelState
from suffice.serve.job import Job, Listener, Score, TooMany
from suffice.serve.prefixes import Prefixes

CHUNK = 128  # prompt tokens read between two steps
SPARE = 64  # positions of room in every buffer of a state
GROWTH = 1.25  # of a state's buffers


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an engine may use.

    Args:
        rows: texts written at once.
        queue: requests that wait beside them; more are refused.
        cache: bytes of the states of all texts being written.
        prefixes: bytes of the states of earlier prompts, kept to be continued.
    """

    rows: int = 16
    queue: int = 64
    cache: int = 1 << 30
    prefixes: int = 1 << 28

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("queue", 0), ("cache", 1), ("prefixes", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name}={value}: give at least {least}.")


@dataclass
class Counters:
    """What an engine has done so far, as /metrics shows it."""

    requests: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0


@dataclass(eq=False)
class Ticket:
    """A request inside the engine."""

    job: Job
    listener: Listener
    sampler: Sampler
    state: ModelState
    read: int = 0  # tokens of the prompt
    cached: int = 0  # of them, found in an earlier state
    written: int = 0
    last: int = 0
    counts: Tensor | None = None  # [V], of the new tokens
    done: bool = False
    cancelled: bool = False

    def cancel(self) -> None:
        """Stop writing; nobody listens any more. May be called from any thread."""
        self.cancelled = True

    def finish(self, reason: str) -> None:
        """End the text."""
        self.done = True
        self.listener.finish(reason)

    def take(self, logits: Tensor) -> None:
        """Choose the next token, given logits [1, V], and pass it on."""
        job = self.job
        changed = logits.float()
        if self.counts is not None:
            present = (self.counts > 0).float()
            changed = changed - job.frequency_penalty * self.counts - job.presence_penalty * present
        token = int(self.sampler(changed))
        if self.counts is not None:
            self.counts[token] += 1
        self.last = token
        self.written += 1
        score = Score(token)
        if job.logprobs is not None:
            (score,) = scores(logits.float(), [token], job.logprobs)
        if token in job.stop:
            self.finish("stop")
        elif not self.listener.token(score):
            self.finish("stop")
        elif self.written == job.max_tokens:
            self.finish("length")


def scores(logits: Tensor, tokens: list[int], alternatives: int) -> list[Score]:
    """Return the log-probability of each token, given logits [N, V], and the likeliest others."""
    log_probs = logits.log_softmax(dim=-1)
    taken = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    best: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if alternatives:
        values, ids = log_probs.topk(min(alternatives, log_probs.shape[1]), dim=-1)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        best = [tuple(zip(*pair, strict=True)) for pair in pairs]
    return [Score(*each) for each in zip(tokens, taken, best, strict=True)]


@dataclass(eq=False)
class Lane:
    """Texts that take their steps together: the rows of one state."""

    state: ModelState
    tickets: list[Ticket]


@dataclass(eq=False)
class Engine:
    """Answers requests with a language model.

    Each text is what `suffice.generate` writes for its prompt alone with the same sampling, within
    rounding: which requests are answered beside it does not matter.

    Args:
        lm: the model.
        limits: of memory and of requests.
        impl: as of `suffice.generate.generate`.

    Raises:
        ConfigError: if single tokens cannot be decoded as `impl` says.
    """

    lm: CausalModel
    limits: Limits = field(default_factory=Limits)
    impl: str = "auto"
    log: Callable[[BaseException], None] = lambda _: None

    def __post_init__(self) -> None:
        memory = Dynamic()
        self.model, self.steps = choose_backend(self.lm, memory, self.impl)
        self.memory = memory
        self.vocabulary_size = self.lm.config.vocabulary_size
        self.room = max_length(self.lm)
        self.counters = Counters()
        self.prefixes = Prefixes(self.limits.prefixes, CHUNK)
        self.per_token, self.joins = self._probe()
        self._wake = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._reading: deque[Ticket] = deque()
        self._lanes: list[Lane] = []
        self._closing = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="suffice-engine", daemon=True)
        self._thread.start()

    def _probe(self) -> tuple[int, bool]:
        """Return the bytes that a token of a text takes, and whether texts share their steps."""
        with torch.inference_mode(), eval_mode(self.lm):
            state = self.lm.state(self.memory)
            self.lm.features(torch.zeros(1, 1, dtype=torch.long, device=self.lm.device), state=state)
            stores = [store for layer in state.layers for store in layer.stores()]
            per_token = sum(x.nbytes for store in stores for x in store.latest(1))
        return per_token, state.can_join

    def nbytes_of(self, tokens: int) -> int:
        """Return the bytes that the state of a text may take, room to grow included."""
        return int((tokens * GROWTH + SPARE) * self.per_token)

    def check(self, job: Job) -> None:
        """Raise ConfigError for a job that can never be done."""
        needed = len(job.prompt) + max(job.max_tokens - 1, 0)
        if self.room is not None and needed > self.room:
            raise ConfigError(
                f"a prompt of {len(job.prompt)} tokens and {job.max_tokens} new ones need {needed} "
                f"positions of a model that has {self.room}; shorten the prompt or ask for fewer."
            )
        if self.nbytes_of(needed) > self.limits.cache:
            raise ConfigError(
                f"{needed} tokens take {self.nbytes_of(needed) >> 20} MiB of state, and the server "
                f"has {self.limits.cache >> 20}; shorten the prompt or ask for fewer tokens."
            )
        low, high = min(job.prompt), max(job.prompt)
        if low < 0 or high >= self.vocabulary_size:
            raise ConfigError(
                f"the prompt holds id {low if low < 0 else high}; give ids of 0 to "
                f"{self.vocabulary_size - 1}."
            )

    def submit(self, job: Job, listener: Listener) -> Ticket:
        """Accept a request; the listener is called from the engine's thread.

        Raises:
            ConfigError: for a request that can never be answered.
            TooMany: if the queue is full, or the engine is closing.
        """
        self.check(job)
        prompt = torch.tensor([job.prompt])
        sampler = Sampler(job.sampling, prompt, None, self.vocabulary_size)
        if self.lm.device.type != "cpu":
            sampler = Sampler(job.sampling, prompt.to(self.lm.device), None, self.vocabulary_size)
        ticket = Ticket(job, listener, sampler, self.lm.state(self.memory))
        if job.presence_penalty or job.frequency_penalty:
            ticket.counts = torch.zeros(self.vocabulary_size, device=self.lm.device)
        with self._wake:
            if self._closing or len(self._waiting) >= self.limits.queue + self._free():
                self.counters.refused += 1
                raise TooMany(len(self._waiting))
            self.counters.requests += 1
            self._waiting.append(ticket)
            self._wake.notify()
        return ticket

    def _active(self) -> list[Ticket]:
        return [*self._reading, *(ticket for lane in self._lanes for ticket in lane.tickets)]

    def _free(self) -> int:
        return max(self.limits.rows - len(self._active()), 0)

    @property
    def load(self) -> tuple[int, int]:
        """Requests that are being answered, and that wait."""
        return len(self._active()), len(self._waiting)

    def close(self, seconds: float = 30.0) -> None:
        """Refuse new requests, finish those accepted for so many seconds, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(seconds)
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode(), eval_mode(self.lm):
            while self._wait_for_work():
                self._admit()
                self._read_chunk()
                self._step()
            for ticket in (*self._active(), *self._waiting):
                ticket.listener.fail("the server is stopping")

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._waiting or self._reading or self._lanes):
                if self._closing:
                    return False
                self._wake.wait()
        return not self._stopped

    def _admit(self) -> None:
        """Begin the requests that fit, in the order they came."""
        with self._wake:
            while self._waiting and self._free() and self._fits(self._waiting[0]):
                self._reading.append(self._waiting.popleft())

    def _fits(self, ticket: Ticket) -> bool:
        """Return whether a request fits beside the others: rows are as long as the longest."""
        tickets = [*self._active(), ticket]
        longest = max(len(each.job.prompt) + each.job.max_tokens for each in tickets)
        return len(tickets) == 1 or len(tickets) * self.nbytes_of(longest) <= self.limits.cache

    def _read_chunk(self) -> None:
        """Read the next piece of the oldest prompt."""
        if not self._reading:
            return
        ticket = self._reading[0]
        try:
            finished = ticket.cancelled or self._read(ticket)
        except BaseException as error:  # noqa: BLE001 - one request must not end the others
            self._fail([ticket], error)
            finished = True
        if finished:
            self._reading.popleft()
            self.counters.cancelled += ticket.cancelled
            if not (ticket.done or ticket.cancelled):
                self._lanes.append(Lane(ticket.state, [ticket]))

    def _read(self, ticket: Ticket) -> bool:
        """Read a piece of a prompt; return whether it was the last."""
        job, prompt = ticket.job, ticket.job.prompt
        if not ticket.read and not job.echo:
            found = self.prefixes.find(prompt)
            if found is not None:
                ticket.state, ticket.read = found.fork(), found.length
                ticket.cached = found.length
                self.counters.cached_tokens += found.length
        start, end = ticket.read, min(ticket.read + CHUNK, len(prompt))
        tokens = torch.tensor([prompt[start:end]], device=self.lm.device)
        features = self.lm.features(tokens, state=ticket.state)
        ticket.read = end
        self.counters.prompt_tokens += end - start
        last = end == len(prompt)
        if job.echo and job.logprobs is not None:
            targets = list(prompt[start + 1 : end + 1])
            logits = self.lm.logits(features)[0].float()
            ticket.listener.prompt(scores(logits[: len(targets)], targets, job.logprobs))
        if not last:
            if not end % CHUNK and (len(prompt) - 1) // CHUNK * CHUNK == end:
                self.prefixes.keep(prompt[:end], ticket.state)
            return False
        if not job.max_tokens:
            ticket.finish("length")
            return True
        ticket.take(self.lm.logits(features[:, -1]))
        self.counters.new_tokens += 1
        return True

    def _step(self) -> None:
        """Write the next token of every text."""
        self._lanes = [lane for lane in map(self._without_finished, self._lanes) if lane.tickets]
        if self.joins and len(self._lanes) > 1:
            rows = [(lane.state, row) for lane in self._lanes for row in range(len(lane.tickets))]
            tickets = [ticket for lane in self._lanes for ticket in lane.tickets]
            self._lanes = [Lane(ModelState.join(rows), tickets)]
        for lane in self._lanes:
            try:
                last = torch.tensor([ticket.last for ticket in lane.tickets], device=self.lm.device)
                logits = self.model.step(last, lane.state)
                for row, ticket in enumerate(lane.tickets):
                    ticket.take(logits[row : row + 1])
            except BaseException as error:  # noqa: BLE001 - the other lanes go on
                self._fail(lane.tickets, error)
            self.counters.steps += 1
            self.counters.new_tokens += len(lane.tickets)

    def _without_finished(self, lane: Lane) -> Lane:
        """Return a lane without the texts that have ended or that nobody reads."""
        rows = [n for n, each in enumerate(lane.tickets) if not (each.done or each.cancelled)]
        gone = [each for each in lane.tickets if each.cancelled and not each.done]
        self.counters.cancelled += len(gone)
        if len(rows) == len(lane.tickets):
            return lane
        tickets = [lane.tickets[row] for row in rows]
        if not tickets:
            return Lane(lane.state, [])
        return Lane(ModelState.join([(lane.state, row) for row in rows]), tickets)

    def _fail(self, tickets: list[Ticket], error: BaseException) -> None:
        if not isinstance(error, SufficeError):
            self.log(error)
        for ticket in tickets:
            if not ticket.done:
                ticket.done = True
                self.counters.failed += 1
                ticket.listener.fail(str(error) or type(error).__name__)

