"""A server in a thread of its own, with a small model that has byte pairs and a chat template."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from suffice.generate import Greedy, generate
from suffice.text.bpe import BPE
from suffice.text.tokenizer import description_of, special_token
from suffice_serve import server as http
from suffice_serve.app import Hub, build_app
from suffice_serve.chat import ChatTemplate
from suffice_serve.engine import Engine, Limits
from suffice_serve.protocol import ServedModel
from tests.generate.models import model

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "once upon a time there was a little dog and a big dog who ran to the sea, é and 漢字\n"


@pytest.fixture(scope="session")
def tokenizer():
    """Byte pairs of a few words, with ChatML's special tokens; whole texts decode as they were."""
    import json

    learned = json.loads(BPE.train([WORDS * 3], 280).description)
    count = len(learned["model"]["vocab"])
    names = ["<|im_start|>", "<|im_end|>"]
    vocabulary = {**learned["model"]["vocab"], **{n: count + k for k, n in enumerate(names)}}
    learned["model"]["vocab"] = vocabulary
    description = description_of(
        model=learned["model"],
        decoder=learned["decoder"],
        pre_tokenizer=learned["pre_tokenizer"],
        added_tokens=[*learned["added_tokens"], *(special_token(vocabulary[n], n) for n in names)],
    )
    return BPE(json.dumps(description), end="<|im_end|>")


@pytest.fixture(scope="session")
def lm(tokenizer):
    return model(positions="none", vocabulary=tokenizer.vocabulary_size)


def alone(lm, ids, new, sampling=None):
    """Return the tokens that `generate` writes after a prompt."""
    sampling = sampling or Greedy()
    return generate(lm, [ids], max_new_tokens=new, sampling=sampling).row(0)[len(ids) :]


@pytest.fixture(scope="session")
def start(lm, tokenizer):
    """A function that starts a server and returns its port, URL and engine."""
    running = []

    def begin(*, limits=None, key=None, origin=None, template=CHATML, **options):
        hub = Hub()
        engine = Engine(lm, limits or Limits(), after=hub.flush, **options)
        served = ServedModel(
            name="tiny",
            engine=engine,
            tokenizer=tokenizer,
            template=template and ChatTemplate(template, tokenizer),
        )
        listener, ready = http.listen("127.0.0.1", 0), threading.Event()
        instance = http.make(build_app(served, hub, key=key, origin=origin), ready.set)
        thread = threading.Thread(target=instance.run, args=([listener],), daemon=True)
        thread.start()
        assert ready.wait(60)
        running.append((instance, thread, engine))
        port = listener.getsockname()[1]
        return SimpleNamespace(
            port=port, url=f"http://127.0.0.1:{port}", engine=engine, instance=instance, stop=stop
        )

    def stop(instance, thread, engine):
        instance.should_exit = instance.force_exit = True
        thread.join(60)
        engine.close(0.0)

    yield begin
    for each in running:
        stop(*each)


@pytest.fixture(scope="session")
def server(start):
    return start()
