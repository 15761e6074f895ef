"""The server over HTTP: what its routes answer and refuse, byte for byte."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from serving.tests.conftest import CHATML, alone
from suffice.generate import Sample, generate
from suffice.testing import assert_close
from suffice.text.tokenizer import REPLACEMENT
from suffice_serve import server as server_module
from suffice_serve.chat import PRIVATE
from suffice_serve.engine import Limits
from suffice_serve.protocol import ServedModel, read_completion
from suffice_serve.writing import Writer

PROMPT = "once upon a time"
ENDLESS = {"logit_bias": {"281": -100}}  # never the end of a text


def call(server, path, body=None, *, method=None, headers=(), raw=None):
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    content = raw if raw is not None or body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **dict(headers)}
    connection.request(method or ("GET" if content is None else "POST"), path, content, sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def complete(server, **body):
    status, _, text = call(server, "/v1/completions", body)
    assert status == 200, text
    return json.loads(text)


def refused(server, path="/v1/completions", status=400, **body):
    got, headers, text = call(server, path, body)
    assert got == status, text
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events(text):
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion_is_what_generate_writes(server, lm, tokenizer):
    answer = complete(server, prompt=PROMPT, max_tokens=20, temperature=0)
    ids = tokenizer.encode(PROMPT)
    new = alone(lm, ids, 20)
    end = new.index(tokenizer.end) if tokenizer.end in new else None
    assert answer["choices"][0]["text"] == tokenizer.decode(new[:end])
    assert answer["choices"][0]["finish_reason"] == ("length" if end is None else "stop")
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["model"] == "tiny"
    assert answer["object"] == "text_completion"


def test_a_seed_draws_what_generate_draws(server, lm, tokenizer):
    options = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "seed": 5}
    answer = complete(server, prompt=[PROMPT, "the sea"], max_tokens=12, **options)
    for row, prompt in enumerate((PROMPT, "the sea")):
        ids = tokenizer.encode(prompt)
        rows = [tokenizer.encode(PROMPT), ids][: row + 1]
        new = generate(lm, rows, max_new_tokens=12, sampling=Sample(**options))
        text = new.row(row)[len(ids) :]
        end = text.index(tokenizer.end) if tokenizer.end in text else None
        assert answer["choices"][row]["text"] == tokenizer.decode(text[:end])


def test_choices_differ_and_seeds_repeat(server):
    body = {"prompt": PROMPT, "max_tokens": 10, "n": 3, "seed": 1, "temperature": 2.0}
    first, again = complete(server, **body), complete(server, **body)
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    ids = first["usage"]
    assert ids["prompt_tokens"] * 3 > ids["total_tokens"] - ids["completion_tokens"]
    unseeded = [complete(server, **{**body, "seed": None})["choices"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_prompts_may_be_texts_or_ids(server, tokenizer):
    ids = tokenizer.encode(PROMPT)
    texts = [
        complete(server, prompt=prompt, max_tokens=8, temperature=0)["choices"][-1]["text"]
        for prompt in (PROMPT, ids, [PROMPT], [ids], ["a", PROMPT], [[1, 2], ids])
    ]
    assert len(set(texts)) == 1


def test_echo_scores_the_prompt_as_the_model_does(server, lm, tokenizer):
    prompts = [PROMPT, "the sea, é and 漢字 ran"]
    answer = complete(
        server, prompt=prompts, max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234
    )
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        ids = tokenizer.encode(prompt)
        scores = choice["logprobs"]
        assert choice["text"].startswith(prompt)
        assert scores["token_logprobs"][0] is None
        assert scores["top_logprobs"][0] is None
        assert len(scores["tokens"]) == len(scores["token_logprobs"]) == len(ids) + 1
        before = [tokenizer.decode(ids[:k]).rstrip(REPLACEMENT) for k in range(len(ids) + 1)]
        assert scores["text_offset"] == [*map(len, before)]
        with torch.no_grad():
            expected = lm(torch.tensor([ids]))[0].log_softmax(-1)
        wanted = expected[torch.arange(len(ids) - 1), ids[1:]]
        assert_close(torch.tensor(scores["token_logprobs"][1:-1]), wanted.float())
        for token, top in zip(
            scores["token_logprobs"][1:], scores["top_logprobs"][1:], strict=True
        ):
            assert max(top.values()) >= token
        best = expected[:-1].argmax(-1).tolist()
        greedy = [a == b for a, b in zip(best, ids[1:], strict=True)]
        told = [
            token == max(top.values())
            for token, top in zip(
                scores["token_logprobs"][1:-1], scores["top_logprobs"][1:-1], strict=True
            )
        ]
        assert told == greedy


def test_a_prompt_is_scored_without_new_tokens_and_parts_of_characters_are_named(server, tokenizer):
    answer = complete(server, prompt=f"{PROMPT}鬱", max_tokens=0, logprobs=0, echo=True)
    (choice,) = answer["choices"]
    assert (choice["text"], answer["usage"]["completion_tokens"]) == (f"{PROMPT}鬱", 0)
    parts = [f"token_id:{id_}" for id_ in tokenizer.encode("鬱")]
    assert "".join(choice["logprobs"]["tokens"]) == PROMPT + "".join(parts)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_the_answer_in_pieces(server, path):
    question = {"messages": [{"role": "user", "content": PROMPT}]}
    body = {
        "max_tokens": 12,
        "temperature": 0,
        **(question if "chat" in path else {"prompt": PROMPT}),
    }
    whole = json.loads(call(server, path, body)[2])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    _, headers, text = call(server, path, {**body, **options})
    pieces = events(text)
    assert headers["content-type"].startswith("text/event-stream")
    choices = [piece["choices"][0] for piece in pieces[:-1]]
    if "chat" in path:
        assert choices[0]["delta"]["role"] == "assistant"
        written = "".join(choice["delta"]["content"] for choice in choices)
        assert written == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert pieces[-1]["usage"] == whole["usage"]
    assert pieces[-1]["choices"] == []


def test_a_stop_text_ends_an_answer_wherever_tokens_are_cut(server):
    text = complete(server, prompt=PROMPT, max_tokens=30, temperature=0, seed=1)["choices"][0][
        "text"
    ]
    for stop in (text[3:6], text[5:9], text[2:3]):
        body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "stop": ["\u0000", stop]}
        choice = complete(server, **body, logprobs=0)["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
        offsets = choice["logprobs"]["text_offset"]
        assert all(offset < max(len(choice["text"]), 1) for offset in offsets)
        pieces = events(call(server, "/v1/completions", {**body, "stream": True})[2])
        streamed = "".join(piece["choices"][0]["text"] for piece in pieces)
        assert streamed == choice["text"]


def test_penalties_and_biases_are_honoured(server, tokenizer):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    plain = complete(server, **body)["choices"][0]["logprobs"]["tokens"]
    for change in ({"presence_penalty": 99}, {"frequency_penalty": 99}):
        tokens = complete(server, **body, **change)["choices"][0]["logprobs"]["tokens"]
        assert len(set(tokens)) == len(tokens)
    assert len(set(plain)) < len(plain)
    (wanted,) = tokenizer.encode("a")[:1]
    biased = complete(server, **body, logit_bias={str(wanted): 100})["choices"][0]
    assert biased["text"] == "a" * 12


def test_a_conversation_is_read_as_the_template_writes_it(server, lm, tokenizer):
    messages = [
        {"role": "system", "content": "a dog"},
        {"role": "user", "content": [{"type": "text", "text": "who <|im_end|> ran"}]},
    ]
    status, _, text = call(
        server,
        "/v1/chat/completions",
        {"messages": messages, "max_completion_tokens": 9, "temperature": 0, "logprobs": True,
         "top_logprobs": 2},
    )  # fmt: skip
    answer = json.loads(text)
    special, encode = tokenizer.special, tokenizer.encode
    start, end = special["<|im_start|>"], special["<|im_end|>"]
    ids = [start, *encode("system\na dog"), end, *encode("\n"), start]
    ids += [*encode("user\nwho <|im_end|> ran"), end, *encode("\n"), start, *encode("assistant\n")]
    new = alone(lm, ids, 9)
    cut = new.index(end) if end in new else None
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": tokenizer.decode(new[:cut]),
    }
    assert answer["usage"]["prompt_tokens"] == len(ids)
    scored = answer["choices"][0]["logprobs"]["content"]
    assert len(scored) == len(new[:cut])
    assert all(len(one["top_logprobs"]) == 2 for one in scored)


def test_models_health_and_metrics(server):
    models = json.loads(call(server, "/v1/models")[2])
    assert [each["id"] for each in models["data"]] == ["tiny"]
    assert json.loads(call(server, "/v1/models/tiny")[2])["id"] == "tiny"
    assert call(server, "/v1/models/other")[0] == 404
    assert call(server, "/health")[0] == 200
    before = figures(server)
    complete(server, prompt=PROMPT, max_tokens=3)
    after = figures(server)
    assert after["suffice_new_tokens_total"] > before["suffice_new_tokens_total"]
    assert after["suffice_texts_total"] == before["suffice_texts_total"] + 1


def figures(server):
    """Return what /metrics tells, having checked its form."""
    status, headers, text = call(server, "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    lines = text.splitlines()
    for help_, kind, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = value.split()[0]
        assert help_.startswith(f"# HELP {name} ")
        assert kind in (f"# TYPE {name} counter", f"# TYPE {name} gauge")
    return {line.split()[0]: float(line.split()[1]) for line in lines[2::3]}


# Refusals.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unknown", 1), ("tools", [{}]), ("best_of", 2), ("suffix", "x"), ("user", 1),
        ("metadata", "x"), ("tool_choice", "auto"), ("parallel_tool_calls", "no"),
        ("response_format", {"type": "json_object"}), ("temperature", "hot"), ("temperature", -1),
        ("temperature", True), ("top_p", 1.5), ("top_p", 0), ("top_k", 0), ("n", 0), ("n", 10**9),
        ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", 10**12), ("stop", [1]),
        ("stop", [""]), ("stop", ["a"] * 99), ("stream", "yes"), ("stream_options", {}),
        ("logprobs", 99), ("logprobs", True), ("echo", 1), ("seed", "x"), ("seed", 10**40),
        ("logit_bias", {"x": 1}), ("logit_bias", {"99999": 1}), ("prompt", None), ("prompt", []),
        ("prompt", [[]]), ("prompt", [1, "a"]), ("prompt", [-1]),
        ("prompt", [10**30]), ("prompt", "\ud800"), ("prompt", {"a": 1}), ("messages", []),
        ("frequency_penalty", float("nan")), ("presence_penalty", 10**400), ("\ud800", 1),
        ("logit_bias", {"\ud800": 1}), ("stream_options", {"\ud800": True}), ("model", "\ud800"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused(server, field, value):
    body = {"prompt": PROMPT, "max_tokens": 1, field: value}
    if value == {}:
        body[field] = {"include_usage": True}
    error = refused(server, status=404 if field == "model" else 400, **body)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 1), ("suffix", None), ("tools", []), ("functions", []), ("user", None),
        ("logit_bias", {}), ("stop", None), ("user", "me"), ("safety_identifier", "x"),
        ("prompt_cache_key", "x"), ("metadata", {"a": "b"}), ("parallel_tool_calls", True),
        ("parallel_tool_calls", False), ("tool_choice", "none"), ("function_call", "none"),
    ],
)  # fmt: skip
def test_fields_that_ask_for_nothing_are_taken_and_change_nothing(server, field, value):
    body = {"max_tokens": 3, "temperature": 0}
    message = {"role": "user", "content": "a"}
    for path, question in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [message]}),
    ):
        status, _, text = call(server, path, body | question | {field: value})
        assert status == 200, text
        plain = json.loads(call(server, path, body | question)[2])
        assert json.loads(text)["choices"] == plain["choices"]


def test_a_message_may_have_a_name_and_lists_of_nothing(server):
    message = {"role": "user", "content": "a", "name": "me", "tool_calls": [], "refusal": None}
    body = {"messages": [message], "max_tokens": 3}
    assert call(server, "/v1/chat/completions", body)[0] == 200


def test_another_model_is_not_found(server):
    assert refused(server, status=404, model="gpt-9", prompt="a")["code"] == "model_not_found"


@pytest.mark.parametrize(
    "messages",
    [
        None, [], "hi", [1], [{"role": "user"}], [{"content": "a"}], [{"role": 1, "content": "a"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "a", "tool_calls": [{}]}],
        [{"role": "user", "content": "a", "\ud800": 1}],
        [{"role": "user", "content": "a", "name": 1}], [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{}]}], [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": "".join(map(chr, PRIVATE))}],
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused(server, messages):
    assert refused(server, "/v1/chat/completions", messages=messages)["message"]


def test_two_names_of_one_limit_agree_or_are_refused(server):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    wrong = refused(server, "/v1/chat/completions", **body, max_completion_tokens=3)
    assert wrong["message"].startswith("max_tokens and max_completion_tokens")
    status, _, text = call(server, "/v1/chat/completions", {**body, "max_completion_tokens": 2})
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 2)


def test_a_model_without_a_template_answers_no_chat(start):
    server = start(template=None)
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert "chat template" in refused(server, "/v1/chat/completions", **body)["message"]
    assert complete(server, prompt=PROMPT, max_tokens=1)["choices"]


@pytest.mark.parametrize(
    ("path", "method", "raw", "headers", "status"),
    [
        ("/nothing", "GET", None, {}, 404),
        ("/v1/completions", "GET", None, {}, 405),
        ("/v1/completions", "POST", b"{", {}, 400),
        ("/v1/completions", "POST", b"[1]", {}, 400),
        ("/v1/completions", "POST", b"\xff\xfe", {}, 400),
        ("/v1/completions", "POST", b"[" * 100_000, {}, 400),
        ("/v1/completions", "POST", b"{}", {"Content-Type": "text/plain"}, 415),
        ("/v1/completions", "POST", b"{}", {"Content-Encoding": "gzip"}, 415),
        ("/v1/completions", "POST", b" " * (5 << 20), {}, 413),
        ("/v1/models", "GET", None, {"Host": "evil.example"}, 403),
    ],
)
def test_requests_that_are_none_are_refused(server, path, method, raw, headers, status):
    got, _, text = call(server, path, method=method, raw=raw, headers=headers)
    assert got == status
    assert json.loads(text)["error"]["message"]


def test_another_path_or_method_is_told_what_is_there(server):
    _, _, text = call(server, "/completions", {"prompt": "a"})  # a base URL without /v1
    assert "there are /v1/completions" in json.loads(text)["error"]["message"]
    _, headers, text = call(server, "/v1/completions")
    assert headers["allow"] == "POST"
    assert "send POST" in json.loads(text)["error"]["message"]


ORIGINS = [
    "http://evil.example", "http://localhost", "http://localhost:1", "http://127.0.0.1:1", "null",
    "http://127.0.0.1:PORT.evil.example", "http://evil.example:PORT", "http://localhost:PORT0",
]  # fmt: skip


def origin_of(server, origin):
    return origin.replace("PORT", str(server.port))


@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_other_servers_may_not_send_requests(server, origin):
    for path, body in (("/v1/models", None), ("/v1/completions", {"prompt": "a"})):
        status, headers, text = call(
            server, path, body, headers={"Origin": origin_of(server, origin)}
        )
        assert (status, json.loads(text)["error"]["type"]) == (403, "invalid_request_error")
        assert "access-control-allow-origin" not in headers
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert call(server, "/v1/models", headers=own)[0] == 200


def test_pages_of_one_other_server_may_if_that_is_allowed(start):
    page = "http://localhost:3000"
    server = start(origin=page, key="secret")
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a, b"}
    path, key = "/v1/completions", {"Authorization": "Bearer secret"}
    status, headers, _ = call(server, path, method="OPTIONS", headers={"Origin": page, **asks})
    assert (status, headers["access-control-allow-origin"]) == (200, page)
    body = {"prompt": "a", "max_tokens": 1}
    status, headers, _ = call(server, path, body, headers={"Origin": page, **key})
    assert (status, headers["access-control-allow-origin"]) == (200, page)
    assert call(server, path, body, headers={"Origin": page})[0] == 401
    for origin in [*ORIGINS, "http://localhost:30000", "http://localhost:300"]:
        other = {"Origin": origin_of(server, origin)}
        status, headers, _ = call(server, path, body, headers={**other, **key})
        assert (status, headers.get("access-control-allow-origin")) == (403, None)
        assert call(server, path, method="OPTIONS", headers={**other, **asks})[0] == 400


@pytest.mark.parametrize("choices", [1, 3])
def test_usage_counts_a_prompt_once_whatever_its_choices(server, tokenizer, choices):
    prompts = [f"{choices} {PROMPT * 40}", f"{choices} {PROMPT * 50} a dog"]
    body = {"prompt": prompts, "max_tokens": 2, "n": choices, **ENDLESS}
    complete(server, **body)
    usage = complete(server, **body)["usage"]
    lengths = [len(tokenizer.encode(prompt)) for prompt in prompts]
    assert min(lengths) > 128
    assert usage["prompt_tokens"] == sum(lengths)
    assert usage["completion_tokens"] == 2 * 2 * choices
    cached = sum((length - 1) // 128 * 128 for length in lengths)
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_conversation_stops_at_every_end_of_turn(start, tokenizer):
    """The end of the tokenizer, and what the template puts behind an answer."""
    server = start(template=CHATML.replace("<|im_end|>", "<|endoftext|>"))
    message = {"role": "user", "content": "a"}
    for name in ("<|im_end|>", "<|endoftext|>"):
        bias = {str(tokenizer.special[name]): 100}
        body = {"messages": [message], "logit_bias": bias, "max_tokens": 9}
        answer = json.loads(call(server, "/v1/chat/completions", body)[2])
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


def test_texts_are_counted_before_anything_is_made_of_them(server, monkeypatch):
    def encode(*_):
        raise AssertionError("a prompt was read")

    monkeypatch.setattr("suffice_serve.protocol.prompt_ids", encode)
    for prompts, choices in ((256, 128), (81, 1), (1, 81)):
        error = refused(server, prompt=["a"] * prompts, n=choices)
        assert str(prompts * choices) in error["message"].replace(",", "")


def test_choices_share_their_prompt(server, tokenizer):
    served = ServedModel(name="tiny", engine=server.engine, tokenizer=tokenizer)
    prompt = tokenizer.encode(PROMPT * 5000)
    gc.collect()
    tracemalloc.start()
    request = read_completion({"prompt": prompt, "n": 60}, served)
    writers = [Writer(served.spelling, job.prompt, deliver=print) for job in request.jobs]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(writers) == 60
    assert taken < 3 * 8 * len(prompt) + 60 * 4096  # a tuple and the text, not 120 copies


def test_a_key_is_asked_for(start):
    server = start(key="secret")
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer secret\u00e9"},
    ):
        status, answer, text = call(server, "/v1/models", headers=headers)
        assert status == 401
        assert answer["www-authenticate"] == "Bearer"
        assert json.loads(text)["error"]["code"] == "invalid_api_key"
    assert call(server, "/metrics")[0] == 401
    assert call(server, "/health")[0] == 200
    assert call(server, "/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200


# Clients that misbehave.


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def request(body, *, path="/v1/completions", length=None):
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content) if length is None else length}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_bytes_that_are_no_request_end_the_connection(server, sent):
    with connect(server) as connection:
        connection.sendall(sent)
        answer = connection.recv(1 << 16)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    assert call(server, "/health")[0] == 200


def test_a_thousand_idle_connections_do_not_matter(server):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, hard = 2200, before[1]  # both ends of each are in this process
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], needed), hard))
    with contextlib.ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(connect(server))
        began = time.monotonic()
        assert call(server, "/health")[0] == 200
        assert complete(server, prompt=PROMPT, max_tokens=2)["choices"]
        assert time.monotonic() - began < 10
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_silent_client_is_left_after_a_while(start, monkeypatch):
    server = start()
    monkeypatch.setattr("suffice_serve.server.HEAD_SECONDS", 0.2)
    for sent in (b"", b"GET /health HT"):
        with connect(server) as connection:
            connection.sendall(sent)
            connection.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""


def test_a_client_that_was_answered_is_left_too(start, monkeypatch):
    server = start()
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in connection.recv(1 << 16).partition(b"\r\n")[0]
        monkeypatch.setattr("suffice_serve.server.HEAD_SECONDS", 0.2)
        connection.sendall(b"GET /health HT")
        connection.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass


def test_a_body_that_never_comes_is_refused(start, monkeypatch):
    server = start()
    monkeypatch.setattr("suffice_serve.app.BODY_SECONDS", 0.2)
    with connect(server) as connection:
        connection.sendall(request({}, length=1000))
        assert b" 408 " in connection.recv(1 << 16).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("status", "headers"), [(413, {}), (415, {"Content-Type": "a/b"}), (403, {"Host": "evil"})]
)
def test_who_sends_too_much_reads_the_refusal(server, status, headers):
    """The connection is not reset while the client still sends."""
    with connect(server) as connection:
        head = {"Host": "localhost", "Content-Type": "application/json", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        size = 12 << 20
        first = f"POST /v1/completions HTTP/1.1\r\n{lines}Content-Length: {size}\r\n\r\n"
        connection.sendall(first.encode())
        for _ in range(12):
            connection.sendall(b" " * (1 << 20))
            time.sleep(0.02)
        assert f" {status} ".encode() in connection.recv(1 << 16).partition(b"\r\n")[0]


def test_bodies_that_are_held_are_bounded_together(start, monkeypatch):
    server = start()
    monkeypatch.setattr("suffice_serve.app.MOST_HELD", 1 << 20)
    with contextlib.ExitStack() as held:
        for _ in range(2):
            connection = held.enter_context(connect(server))
            connection.sendall(request({}, length=520_000)[:-2] + b" " * 510_000)
        time.sleep(0.5)
        large = {"unknown": "a" * 100_000}
        assert refused(server, status=503, **large)["type"] == "server_error"
        assert complete(server, prompt="a", max_tokens=1)["choices"]
    until(lambda: call(server, "/v1/completions", large)[0] == 400)


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_text(start, stream):
    server = start()
    body = {"prompt": PROMPT, "max_tokens": 10**5, "stream": stream, **ENDLESS}
    with connect(server) as connection:
        connection.sendall(request(body))
        until(lambda: server.engine.figures()["running"] == 1)
    until(lambda: server.engine.figures()["cancelled"] == 1)
    assert server.engine.figures()["running"] == 0
    assert server.engine.figures()["new_tokens"] < 10**5


def test_a_client_that_never_reads_holds_nobody_up(start, monkeypatch):
    listen = server_module.listen

    def listen_with_small_buffers(*address):
        listener = listen(*address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(server_module, "listen", listen_with_small_buffers)
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 1.0)
    server = start()
    body = {"prompt": PROMPT, "max_tokens": 10**5, "stream": True, "logprobs": 20, **ENDLESS}
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request(body))
        until(lambda: server.engine.figures()["new_tokens"] > 50)
        began = time.monotonic()
        assert complete(server, prompt=PROMPT, max_tokens=5)["choices"]
        assert time.monotonic() - began < 20
        until(lambda: server.engine.figures()["cancelled"] == 1, 100)


def test_a_full_queue_is_told(start):
    server = start(limits=Limits(rows=1, queue=1))
    body = {"prompt": PROMPT, "max_tokens": 10**4, "stream": True, **ENDLESS}
    with connect(server) as one, connect(server) as other:
        for connection in (one, other):
            connection.sendall(request(body))
        until(lambda: sum(server.engine.figures()[n] for n in ("running", "waiting")) == 2)
        status, headers, text = call(server, "/v1/completions", {"prompt": "a"})
        assert (status, headers["retry-after"]) == (429, "1")
        assert json.loads(text)["error"]["type"] == "rate_limit_error"
    until(lambda: server.engine.figures()["running"] == 0)
    assert refused(server, prompt="a", n=5)["message"]
    assert complete(server, prompt="a", max_tokens=1)["choices"]


def test_an_error_in_the_engine_is_told(start, monkeypatch):
    server = start()

    def broken(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(server.engine, "_read_piece", broken)
    status, _, text = call(server, "/v1/completions", {"prompt": "a"})
    assert (status, json.loads(text)["error"]["type"]) == (500, "server_error")
    _, _, text = call(server, "/v1/completions", {"prompt": "a", "stream": True})
    assert events(text)[-1]["error"]["message"] == "no room"


def test_many_clients_get_what_each_gets_alone(server):
    bodies = [
        {"prompt": PROMPT[: 4 + n], "max_tokens": 5 + n, "temperature": n % 2, "seed": n,
         "stream": n % 3 == 0}
        for n in range(24)
    ]  # fmt: skip

    def text_of(body):
        text = call(server, "/v1/completions", body)[2]
        answers = events(text) if body["stream"] else [json.loads(text)]
        return "".join(answer["choices"][0]["text"] for answer in answers)

    apart = [text_of(body) for body in bodies]
    with ThreadPoolExecutor(12) as clients:
        assert list(clients.map(text_of, bodies)) == apart


def test_stopping_finishes_what_is_being_written(start):
    server = start()
    texts = []
    body = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, **ENDLESS}
    client = threading.Thread(target=lambda: texts.append(complete(server, **body)))
    client.start()
    until(lambda: server.engine.figures()["running"] == 1)
    server.instance.handle_exit(15, None)
    client.join(60)
    assert texts[0]["usage"]["completion_tokens"] == 300
    until(lambda: not _answers(server))


def _answers(server):
    try:
        return call(server, "/health")[0] == 200
    except OSError:
        return False
