"""Programs of others that speak to the server: openai's client, curl, lm_eval; and the verb."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from suffice.cli import serve as verb
from suffice.errors import ConfigError
from suffice.measure.evaluation import evaluate_task
from suffice.models import folder
from tests.serve.conftest import CHATML, WORDS, alone

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


TASK = """
task: here
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {items}}}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{ctx}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "{{{{endings}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def test_lm_eval_scores_as_our_own_evaluation(server, lm, tokenizer, tmp_path, monkeypatch):
    for name in ("lm_eval", "aiohttp", "tenacity", "transformers"):
        pytest.importorskip(name)
    words = WORDS.split()[:-3]
    items = [
        {
            "ctx": " ".join(words[n % 7 : n % 7 + 5]),
            "endings": [" ".join(words[k : k + 2 + (n + k) % 3]) for k in range(n % 5, n % 5 + 4)],
            "label": n % 4,
        }
        for n in range(24)
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps({**item, "ind": n}) + "\n" for n, item in enumerate(items)))
    wanted = evaluate_task(lm, tokenizer, "hellaswag", data=str(path)).scores
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "task.yaml").write_text(TASK.format(items=path))
    arguments = [
        f"model=tiny,base_url={server.url}/v1/completions",
        f"tokenizer_backend=huggingface,tokenizer={tmp_path / 'tokenizer'}",
        "num_concurrent=4,max_length=65",
    ]
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions"]
    command += ["--model_args", ",".join(arguments), "--tasks", "here"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OPENAI_API_KEY": "none"}
    subprocess.run(command, env={**os.environ, **offline}, check=True, capture_output=True)
    (results,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]["here"]
    for score in wanted[:2]:
        assert round(scores[f"{score.name},none"], 4) == round(score.value, 4)


@pytest.fixture(scope="module")
def saved(lm, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "tiny"
    folder.save(path, lm, tokenizer, chat_template=CHATML)
    return path


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_verb_serves_until_a_signal(saved, sent):
    pytest.importorskip("uvicorn")
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
    pytest.importorskip("uvicorn")
    for options, named in (
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"host": "198.51.100.1", "api_key": "x"}, "198.51.100.1"),
        ({"port": 10**6}, "1000000"),
        ({"rows": 0}, "rows"),
    ):
        with pytest.raises(ConfigError, match=named):
            verb.serve(saved, **options)


def test_without_its_libraries_the_verb_says_what_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"\[serve\]"):
        verb.serve(saved)
