"""Nothing is kept of texts that have ended or were given up, but prefixes within their bytes."""

from __future__ import annotations

import gc
import random

import torch

from serving.tests.listeners import Kept
from suffice.models.state import ModelState
from suffice_serve.engine import Engine, Limits, Ticket
from suffice_serve.job import Job
from tests.generate.models import V, model

KINDS = (Ticket, ModelState)


def alive():
    """What any engine keeps for texts."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) in KINDS]


def held(others=()):
    """The numbers of what the engine keeps for texts, and the bytes of all tensors.

    Engines of other tests may end meanwhile: what is theirs is left out.
    """
    not_ours = {id(x) for x in others}
    ours = [x for x in alive() if id(x) not in not_ours]
    objects = gc.get_objects()
    counts = {kind.__name__: sum(type(x) is kind for x in ours) for kind in KINDS}
    storages = {
        x.untyped_storage().data_ptr(): x.nbytes for x in objects if type(x) is torch.Tensor
    }
    return counts, sum(storages.values())


def run(engine, texts, draws):
    """Write texts, half of which are given up at some time."""
    open_ = []
    for _ in range(texts):
        kept = Kept(most=draws.choice((None, 3)))
        prompt = tuple(draws.randrange(V) for _ in range(draws.randrange(1, 140)))
        job = Job(prompt=prompt, max_tokens=draws.randrange(30))
        ticket = engine.submit(job, kept)
        open_.append((ticket, kept))
        if draws.random() < 0.5:
            draws.choice(open_)[0].cancel()
        if len(open_) > 12:
            ticket, kept = open_.pop(0)
            while not (ticket.cancelled or kept.ended.wait(0.1)):
                pass
    for ticket, _ in open_:
        ticket.cancel()


def test_memory_is_that_of_the_prefixes():
    lm = model(positions="none")
    others = alive()
    engine = Engine(lm, Limits(rows=4, prefixes=1 << 17))
    draws = random.Random(0)
    run(engine, 60, draws)
    engine.close(60.0)
    after, _ = held(others)
    kept = {"Ticket": 0, "ModelState": len(engine.prefixes.states)}
    assert after == kept
    del engine
    engine = Engine(lm, Limits(rows=4, prefixes=1 << 17))
    sizes = []
    for _ in range(3):
        run(engine, 60, draws)
        job, kept = Job(prompt=(1,), max_tokens=1), Kept()
        engine.submit(job, kept)
        kept.wait()
        sizes.append(held()[1])
    engine.close(60.0)
    assert sizes[2] < sizes[0] + (1 << 18)
