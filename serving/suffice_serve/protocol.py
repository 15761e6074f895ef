"""OpenAI's completions and chat completions: requests read, answers written.

Supported fields are honoured. Labels and values that ask for nothing are accepted; any other field
is refused by name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from suffice.errors import SufficeError, did_you_mean
from suffice.generate.sampling import Greedy, Sample, Sampling
from suffice.text import Tokenizer
from suffice.text.tokenizer import check_ids, prompt_ids
from suffice.utils.records import is_number, is_whole
from suffice_serve.chat import ChatTemplate
from suffice_serve.engine import Engine
from suffice_serve.job import Job
from suffice_serve.writing import Entry, Piece, Spelling

NEW_TOKENS = 16  # of a completion that does not say
ANSWER_TOKENS = 1024  # of an answer that does not say
MOST_CHOICES, MOST_PROMPTS, MOST_STOPS, LONGEST_STOP = 128, 256, 16, 256
MOST_LOGPROBS = 20
MOST_MESSAGES = 4096
OPTIONS = (
    *("model", "stream", "stream_options", "max_tokens", "n", "stop", "seed", "temperature"),
    *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "logprobs"),
)
COMPLETION = (*OPTIONS, "prompt", "echo")
CHAT = (*OPTIONS, "messages", "max_completion_tokens", "top_logprobs")
NOTHING: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Values that ask for nothing, of fields that are refused otherwise."""
LABELS: dict[str, type] = dict.fromkeys(("user", "safety_identifier", "prompt_cache_key"), str)
LABELS |= {"metadata": dict, "parallel_tool_calls": bool}
"""Fields that change no answer, whatever their value of this type."""


class RequestError(SufficeError):
    """A request that is refused, as OpenAI's clients read it."""

    def __init__(
        self, message: str, *, field: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        # half a surrogate in a name cannot be sent back
        self.field = field and field.encode(errors="backslashreplace").decode()

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        names = {401: "authentication_error", 429: "rate_limit_error"}
        content = {"message": str(self), "type": names.get(self.status, kind)}
        return {"error": {**content, "param": self.field, "code": self.code}}


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """The model that a server offers."""

    name: str  # name of the model in requests
    engine: Engine  # engine that writes its texts
    tokenizer: Tokenizer  # tokenizer of the model
    template: ChatTemplate | None = None  # template of conversations; None where the model has none
    created: int = 0  # seconds since 1970
    spelling: Spelling = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", Spelling(self.tokenizer))


class Prompt(NamedTuple):
    """A prompt as ids and as text, which may lack some of the first ids."""

    ids: Sequence[int]
    text: str
    unspelled: int = 0


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A request that was read."""

    jobs: tuple[Job, ...]  # a text each, those of a prompt one after another
    prompts: tuple[Prompt, ...]  # prompt of each job
    stop: tuple[str, ...]  # texts that end an answer
    stream: bool  # whether pieces are sent as they come
    usage: bool  # whether a stream ends with the numbers of tokens
    chat: bool  # whether it is a conversation
    choices: int  # number of answers to each prompt


def read_completion(body: Any, served: ServedModel) -> TextRequest:
    """Return the request for completions that a body spells.

    Raises:
        RequestError: naming the field.
        ConfigError: for values outside their range.
    """
    fields = _fields(body, COMPLETION, served)
    prompts = _prompts(fields, served)
    logprobs = _whole(fields, "logprobs", None, 0, MOST_LOGPROBS)
    most = _whole(fields, "max_tokens", NEW_TOKENS, 0)
    options = {
        "max_tokens": most,
        "logprobs": logprobs,
        "echo": _flag(fields, "echo"),
        "stop": () if served.tokenizer.end is None else (served.tokenizer.end,),
    }
    return _request(fields, prompts, options, served, chat=False)


def read_chat(body: Any, served: ServedModel) -> TextRequest:
    """Return the request for an answer in a conversation that a body spells; raises as above."""
    fields = _fields(body, CHAT, served)
    template = served.template
    if template is None:
        raise RequestError(
            f"{served.name} has no chat template, so it was taught no conversations; ask "
            "/v1/completions, or start the server with --template FILE.",
            field="messages",
        )
    ids = template.encode(read_messages(fields.get("messages")))
    if not ids:
        raise RequestError("the messages are empty; write something.", field="messages")
    if _flag(fields, "logprobs"):
        logprobs = _whole(fields, "top_logprobs", 0, 0, MOST_LOGPROBS)
    elif fields.get("top_logprobs"):
        raise RequestError("top_logprobs needs logprobs: true.", field="top_logprobs")
    else:
        logprobs = None
    room = served.engine.room
    default = ANSWER_TOKENS if room is None else min(ANSWER_TOKENS, max(room - len(ids) + 1, 1))
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in fields]
    limits = {_whole(fields, name, default, 1) for name in names} or {default}
    if len(limits) > 1:
        raise RequestError(f"{' and '.join(names)} differ; send one of them.", field=names[0])
    options = {"max_tokens": limits.pop(), "logprobs": logprobs, "stop": template.stop}
    return _request(fields, [Prompt(ids, "")], options, served, chat=True)


def read_messages(value: Any) -> list[dict[str, str]]:
    """Return messages with role and content; a content in parts becomes one text."""
    if not isinstance(value, list) or not 0 < len(value) <= MOST_MESSAGES:
        raise RequestError(
            f"messages is a list of 1 to {MOST_MESSAGES} objects with role and content.",
            field="messages",
        )
    return [_message(each, f"messages.{number}") for number, each in enumerate(value)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} is not an object with role and content.", field=where)
    for name, value in message.items():
        known = name in ("role", "content") or (name == "name" and isinstance(value, str))
        if not known and value not in (None, []):
            raise RequestError(
                f"{where} has {name!r:.60}; role, content and name are read.",
                field=f"{where}.{name:.60}",
            )
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if _is_text(part)]
        if len(parts) < len(content):
            raise RequestError(f"{where} holds more than text.", field=f"{where}.content")
        content = "".join(parts)
    if not isinstance(content, str):
        raise RequestError(f"{where} has no text as content.", field=f"{where}.content")
    name = {"name": message["name"]} if message.get("name") else {}
    return {"role": message["role"], **name, "content": content}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _fields(body: Any, known: Sequence[str], served: ServedModel) -> dict[str, Any]:
    """Return the fields that are not null; RequestError for one that is not honoured."""
    if not isinstance(body, dict):
        raise RequestError("a request is a JSON object.")
    fields = {name: value for name, value in body.items() if value is not None}
    for name, value in fields.items():
        ignorable = value in NOTHING.get(name, ()) or isinstance(value, LABELS.get(name, ()))
        if name not in known and not ignorable:
            hint = "." if name in NOTHING else did_you_mean(name, known)
            raise RequestError(
                f"{name!r:.60} is refused, as it would not be honoured; leave it out{hint}",
                field=name[:60],
            )
    model = fields.get("model", served.name)
    if model != served.name:
        raise RequestError(
            f"there is no model {model!r:.60}; {served.name!r} is served.",
            field="model",
            status=404,
            code="model_not_found",
        )
    return fields


def _request(
    fields: dict[str, Any],
    prompts: Sequence[Prompt],
    options: dict[str, Any],
    served: ServedModel,
    *,
    chat: bool,
) -> TextRequest:
    choices = _choices(fields, len(prompts), served)
    stream = _flag(fields, "stream")
    options |= {
        "sampling": _sampling(fields),
        "presence_penalty": _number(fields, "presence_penalty", 0.0, -100.0, 100.0),
        "frequency_penalty": _number(fields, "frequency_penalty", 0.0, -100.0, 100.0),
        "bias": _bias(fields),
    }
    jobs = []
    for prompt in prompts:
        ids = tuple(prompt.ids)  # one for all choices
        jobs += [Job(prompt=ids, row=len(jobs) + n, **options) for n in range(choices)]
    return TextRequest(
        jobs=tuple(jobs),
        prompts=tuple(prompt for prompt in prompts for _ in range(choices)),
        stop=_stops(fields),
        stream=stream,
        usage=_usage(fields, stream),
        chat=chat,
        choices=choices,
    )


def _choices(fields: dict[str, Any], prompts: int, served: ServedModel) -> int:
    choices = _whole(fields, "n", 1, 1, MOST_CHOICES)
    if (texts := prompts * choices) > (most := served.engine.limits.texts):
        raise RequestError(f"{texts:,} texts at once; ask for at most {most}.", field="n")
    return choices


def _sampling(fields: dict[str, Any]) -> Sampling:
    temperature = _number(fields, "temperature", 1.0, 0.0, 1e6)
    penalty = _number(fields, "repetition_penalty", 1.0, 1e-3, 1e3)
    seed = _whole(fields, "seed", None, -(1 << 63), 1 << 64)
    filters = {
        "top_k": _whole(fields, "top_k", None, 1),
        "top_p": _number(fields, "top_p", 1.0, 1e-6, 1.0),
        "min_p": _number(fields, "min_p", 0.0, 0.0, 1.0),
    }
    sample = Sample(
        temperature=temperature or 1.0,
        repetition_penalty=penalty,
        seed=secrets.randbits(32) if seed is None else seed,
        **filters,
    )
    return sample if temperature else Greedy(repetition_penalty=penalty)


def _prompts(fields: dict[str, Any], served: ServedModel) -> list[Prompt]:
    tokenizer, value = served.tokenizer, fields.get("prompt")
    several: list[Any]
    several = value if isinstance(value, list) and not _is_ids(value) else [value]
    if value is None or not 0 < len(several) <= MOST_PROMPTS:
        raise RequestError(
            f"prompt is a text, a list of ids, or a list of up to {MOST_PROMPTS} of them.",
            field="prompt",
        )
    _choices(fields, len(several), served)
    prompts = []
    for one in several:
        if isinstance(one, str):
            added = int(tokenizer.begin is not None or not one)
            prompts.append(Prompt(prompt_ids(tokenizer, one), one, added))
        elif _is_ids(one):
            check_ids(one, tokenizer.vocabulary_size)
            prompts.append(Prompt(one, tokenizer.decode(one)))
        else:
            raise RequestError(
                f"prompt holds {one!r:.60}; give texts alone, or ids alone.", field="prompt"
            )
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_whole, value))


def _stops(fields: dict[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop", [])
    several = [value] if isinstance(value, str) else value
    if (
        not isinstance(several, list)
        or len(several) > MOST_STOPS
        or not all(isinstance(x, str) and 0 < len(x) <= LONGEST_STOP for x in several)
    ):
        raise RequestError(
            f"stop is a text of up to {LONGEST_STOP} characters, or a list of up to {MOST_STOPS}.",
            field="stop",
        )
    return tuple(several)


def _bias(fields: dict[str, Any]) -> dict[int, float]:
    value = fields.get("logit_bias", {})
    if not isinstance(value, dict) or not all(
        id_.isascii() and id_.isdigit() and len(id_) < 10 and is_number(x) and -100 <= x <= 100
        for id_, x in value.items()
    ):
        raise RequestError(
            "logit_bias is an object of ids with numbers from -100 to 100.", field="logit_bias"
        )
    return {int(id_): float(x) for id_, x in value.items()}


def _usage(fields: dict[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options", {})
    if (
        not isinstance(options, dict)
        or (options and not stream)
        or set(options) - {"include_usage"}
        or not isinstance(options.get("include_usage", False), bool)
    ):
        raise RequestError(
            "stream_options is an object with include_usage, and goes with stream: true.",
            field="stream_options",
        )
    return options.get("include_usage", False)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {value!r:.60}; give true or false.", field=name)
    return value


def _whole(fields: dict[str, Any], name: str, default: Any, least: int, most: int = 1 << 31) -> Any:
    return _checked(fields, name, default, least, most, is_whole, "a whole number")


def _number(fields: dict[str, Any], name: str, default: float, least: float, most: float) -> float:
    return float(_checked(fields, name, default, least, most, is_number, "a number"))


def _checked(
    fields: dict[str, Any],
    name: str,
    default: Any,
    least: float,
    most: float,
    check: Callable[[Any], bool],
    what: str,
) -> Any:
    value = fields.get(name, default)
    if value is not default and not (check(value) and least <= value <= most):
        raise RequestError(
            f"{name} is {value!r:.60}; give {what} from {least} to {most}.", field=name
        )
    return value


# Answers.


class Answer:
    """Writes the JSON of an answer, whole or in pieces.

    Args:
        request: request that is answered.
        served: the model.
        name: id of the answer.
        created: seconds since 1970.
    """

    def __init__(self, request: TextRequest, served: ServedModel, name: str, created: int) -> None:
        self.request, self.spelling = request, served.spelling
        kind = "chat.completion" if request.chat else "text_completion"
        self.head = {"id": name, "object": kind, "created": created, "model": served.name}
        self.begun: set[int] = set()  # choices of a stream

    def whole(self, pieces: Sequence[Piece], usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer, given all that was written for each choice."""
        choices = [self._choice(number, piece) for number, piece in enumerate(pieces)]
        return {**self.head, "choices": choices, "usage": usage}

    def chunk(self, number: int, piece: Piece) -> dict[str, Any]:
        """Return a piece of a choice."""
        choice = self._choice(number, piece, stream=True)
        self.begun.add(number)
        return {**self._stream_head(), "choices": [choice]}

    def closing(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the piece that tells the numbers of tokens."""
        return {**self._stream_head(), "choices": [], "usage": usage}

    def _stream_head(self) -> dict[str, Any]:
        if self.request.chat:
            return {**self.head, "object": "chat.completion.chunk"}
        return self.head

    def _choice(self, number: int, piece: Piece, *, stream: bool = False) -> dict[str, Any]:
        job = self.request.jobs[number]
        first = number not in self.begun
        choice: dict[str, Any] = {"index": number}
        if self.request.chat:
            role = {"role": "assistant"} if first else {}
            choice["delta" if stream else "message"] = {**role, "content": piece.text}
            scored = _chat_logprobs
        else:
            before = self.request.prompts[number].text if job.echo and first else ""
            choice["text"] = before + piece.text
            scored = _logprobs
        choice["logprobs"] = None if job.logprobs is None else scored(piece.entries, job.logprobs)
        return {**choice, "finish_reason": piece.reason}

    def usage(self, tokens: int, cached: int) -> dict[str, Any]:
        """Return the numbers of tokens; a prompt counts once, whatever its choices."""
        prompts = self.request.jobs[:: self.request.choices]
        prompt = sum(len(job.prompt) for job in prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _logprobs(entries: Sequence[Entry], alternatives: int) -> dict[str, Any]:
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [entry.top for entry in entries] if alternatives else None,
        "text_offset": [entry.offset for entry in entries],
    }


def _chat_logprobs(entries: Sequence[Entry], alternatives: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "content": [
            {
                **_scored(entry.text, entry.logprob),
                "top_logprobs": [_scored(*pair) for pair in (entry.top or {}).items()],
            }
            for entry in entries
        ]
    }


def _scored(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": [*text.encode(errors="replace")]}
