"""OpenAI's client speaks to the server; the verb starts it."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys

import pytest

from serving.tests.conftest import CHATML, alone
from suffice.errors import ConfigError
from suffice.models import folder
from suffice_serve import cli as verb

PROMPT = "once upon a time"
ASK = [{"role": "user", "content": "a dog"}]


def test_openais_client_reads_answers_and_streams(server, lm, tokenizer):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    options = {"model": "tiny", "max_tokens": 9, "temperature": 0}
    text = client.completions.create(prompt=PROMPT, **options).choices[0].text
    new = alone(lm, tokenizer.encode(PROMPT), 9)
    assert text == tokenizer.decode([id_ for id_ in new if id_ != tokenizer.end][: len(new)])
    pieces = client.completions.create(prompt=PROMPT, stream=True, **options)
    assert "".join(piece.choices[0].text for piece in pieces) == text
    chat = client.chat.completions
    answer = chat.create(messages=ASK, logprobs=True, top_logprobs=3, **options).choices[0]
    assert len(answer.logprobs.content[0].top_logprobs) == 3
    pieces = chat.create(messages=ASK, stream=True, **options)
    written = "".join(piece.choices[0].delta.content for piece in pieces)
    assert written == answer.message.content
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError, match="tools"):
        chat.create(
            messages=ASK, tools=[{"type": "function", "function": {"name": "f"}}], **options
        )
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")


def test_openais_asynchronous_client_reads_many_streams(server):
    openai = pytest.importorskip("openai")

    async def read(client, number):
        stream = await client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, max_tokens=5 + number, seed=number
        )
        return "".join([piece.choices[0].delta.content async for piece in stream])

    async def read_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            together = await asyncio.gather(*(read(client, number) for number in range(8)))
            return together, [await read(client, number) for number in range(8)]

    together, apart = asyncio.run(read_all())
    assert together == apart


@pytest.fixture(scope="module")
def saved(lm, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "tiny"
    folder.save(path, lm, tokenizer, chat_template=CHATML)
    return path


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_verb_serves_until_a_signal(saved, sent):
    command = [sys.executable, "-m", "suffice", "serve", str(saved), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert re.match(r"tiny: http://127\.0\.0\.1:\d+/v1 \(completions, chat; steps: ", line)
        process.send_signal(sent)
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, rest) == (0, "stopped.\n")


def test_the_verb_refuses_what_it_cannot_do(saved, tmp_path, monkeypatch):
    for options, named in (
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"host": "198.51.100.1", "api_key": "x"}, "198.51.100.1"),
        ({"port": 10**6}, "1000000"),
        ({"rows": 0}, "rows"),
    ):
        with pytest.raises(ConfigError, match=named):
            verb.serve(saved, **options)
