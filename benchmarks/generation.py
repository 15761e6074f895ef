"""Writing and reading with language models, against transformers and against themselves.

Run: python -m benchmarks.generation [--quick] [--rounds 9] [--case decode|prefill|shared|state]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.contest import FULL, QUICK, Effort, Rival, Side, contest
from benchmarks.peers.llama import llama, written
from benchmarks.report import Outcome, print_machine, print_outcomes
from suffice.generate import generate
from suffice.memory import Dynamic, Memory, Rolling
from suffice.models import LM, LMConfig, configuration
from suffice.models.configurations import layers
from suffice.models.native_decoder import NativeDecoder
from suffice.positions import Rope
from suffice.utils.timing import peak_bytes

DECODED = {"llama_15m": 1.5, "llama_110m": 1.0}
# a cache of 9 MiB a layer is read again from the processor's cache, one of 25 MiB from memory
SHARED = {"llama_15m": 1.05, "llama_110m": 1.0}
PROMPT, NEW = 16, 32
PREFILL, WINDOW, LONG = 4096, 256, 8192
MEBIBYTE = 1 << 20
Rows = Iterator[Outcome]


def named(name: str) -> LM:
    """Return a model of random weights, large enough that its tokens vary."""
    torch.manual_seed(0)
    config, specs = configuration(name)
    lm = config.build(specs).eval()
    with torch.no_grad():
        lm.norm.weight.normal_()  # else a token is most like itself
        for block in lm.blocks:
            block.attention.o_proj.weight *= 20.0
            block.mlp.down.weight *= 20.0
    return lm


def ids(length: int, vocabulary: int) -> Tensor:
    """Return one prompt."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, vocabulary, (1, length), generator=generator)


def decode(effort: Effort) -> Rows:
    """Greedy tokens of batch 1, the same tokens first."""
    for name, reach in DECODED.items():
        lm = named(name)
        tokens = ids(PROMPT, lm.config.vocabulary_size)
        new = effort.length(NEW)

        def ours(lm: LM = lm, tokens: Tensor = tokens, new: int = new) -> Tensor:
            return generate(lm, tokens, max_new_tokens=new).new

        def rival(lm: LM = lm, tokens: Tensor = tokens, new: int = new, ours=ours) -> Side:
            peer = llama(lm)

            def check() -> None:
                want = written(peer, tokens, new)
                assert torch.equal(ours(), want), "another token"
                whole = torch.cat([tokens, want], dim=1)
                with torch.inference_mode():
                    apart = (lm(whole) - peer(whole).logits).abs().max().item()
                assert apart < 1e-3, f"logits are {apart:.1e} apart"

            def call() -> Tensor:
                return written(peer, tokens, new)

            return Side(name="transformers", call=call, check=check)

        case = f"{name}, {new} tokens behind {PROMPT}"
        own = Side(name="generate", call=ours, check=lambda: None)
        yield from contest(case, own, [Rival(make=rival, reach=reach, name="transformers")], effort)


def small(window: int | None) -> LM:
    """Return a model of four layers, 128 wide, of a causal window or of all."""
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 256, "length": LONG, "d_model": 128, "depth": 4, "mlp_width": 344}
    config = LMConfig(**sizes, activation="swiglu", norm="rms", positions="none", bias=False)
    options = {} if window is None else {"window": window}
    return config.build(layers("standard", config, 4, position=Rope(), **options)).eval()


def prefill(effort: Effort) -> Rows:
    """A prompt through a window's memory, piece by piece, against one shot of dense attention."""
    length = effort.length(PREFILL)
    near, dense = small(WINDOW), small(None)
    near.load_state_dict(dense.state_dict())
    tokens = ids(length, 256)

    def read(lm: LM, memory: Memory) -> Tensor:
        return generate(lm, tokens, max_new_tokens=1, memory=memory).tokens

    def pieces() -> Tensor:
        return read(near, Rolling(WINDOW))

    def check() -> None:
        state = near.state(Rolling(WINDOW))
        with torch.inference_mode():
            pairs = tokens.split(WINDOW, dim=1)
            got = torch.cat([near(piece, state=state) for piece in pairs], dim=1)
            assert (got - near(tokens)).abs().max() < 1e-3

    def one_shot() -> Tensor:
        return read(dense, Dynamic())

    rival = Side(name="one shot", call=one_shot, check=lambda: None)
    case = f"prefill of {length}, window {WINDOW}"
    own = Side(name="rolling", call=pieces, check=check)
    yield from contest(case, own, [Rival(make=lambda: rival, reach=2.0, name="one shot")], effort)
    found = peak_bytes(pieces), peak_bytes(one_shot)
    row = Outcome(case=f"{case}, memory", op="rolling", peer="one shot")
    yield row.told(
        "",
        ours=f"{found[0] / MEBIBYTE:.1f} MiB",
        theirs=f"{found[1] / MEBIBYTE:.1f} MiB",
        value=f"{found[1] / found[0]:.2f}x",
    )


def stepping(lm: LM, length: int) -> Side:
    """Return one token natively behind a text; the state is the same after each call."""
    tokens, held = ids(length + 1, lm.config.vocabulary_size), lm.state()
    decoder = NativeDecoder(lm, Dynamic())
    with torch.inference_mode():
        for piece in tokens[:, :length].split(WINDOW, dim=1):
            lm.features(piece, state=held)

    @torch.inference_mode()
    def call() -> Tensor:
        logits = decoder.step(tokens[:, length], held)
        held.drop_last(1)
        return logits

    @torch.inference_mode()
    def check() -> None:
        want = lm.step(tokens[:, length], held)
        held.drop_last(1)
        apart = (call() - want).abs().max().item()
        assert apart < 1e-3 * want.abs().max().item(), f"logits are {apart:.1e} apart"

    return Side(name="shared" if lm.specs[1].shares is not None else "own", call=call, check=check)


def shared(effort: Effort) -> Rows:
    """One token at 4k where every second layer reads its neighbour's cache, against its own."""
    length = effort.length(PREFILL)
    for name, reach in SHARED.items():
        models = []
        for shares in (2, None):
            torch.manual_seed(0)
            config, specs = configuration(name, length=PREFILL + 1, shares=shares)
            models.append(config.build(specs).eval())

        def rival(lm: LM = models[1]) -> Side:
            return stepping(lm, length)

        case = f"{name}, a token behind {length}, every second layer shares"
        rivals = [Rival(make=rival, reach=reach, name="own")]
        yield from contest(case, stepping(models[0], length), rivals, effort)


def state(effort: Effort) -> Rows:
    """Bytes of what is kept, measured on what the layers hold, against MHA."""
    length = effort.length(LONG)
    config = small(None).config
    heads = 16
    kinds = {
        "standard": ({}, Dynamic(), None),
        "efficient": ({"position": None}, Dynamic(), 0.5),
        "gqa": ({"num_kv_heads": 4}, Dynamic(), 4 / heads),
        "cla": ({}, Dynamic(), 0.5),
        "rolling": ({}, Rolling(WINDOW), 2 * WINDOW / length),
    }
    whole = 0
    for name, (options, memory, reach) in kinds.items():
        given = {"position": Rope(), **options}
        given = {key: value for key, value in given.items() if value is not None}
        specs = layers("standard" if name == "rolling" else name, config, heads, **given)
        lm = replace(config, depth=len(specs)).build(specs).eval()
        held = lm.state(memory)
        with torch.inference_mode():
            for piece in ids(length, 256).split(WINDOW, dim=1):
                lm.features(piece, state=held)
        whole = whole or held.nbytes
        if reach is None:
            continue
        row = Outcome(case=f"state of {length} tokens", op=name, peer=f"MHA, {heads} heads")
        share = held.nbytes / whole
        yield row.told(
            effort.judge(share <= reach * 1.02),
            ours=f"{held.nbytes / MEBIBYTE:.2f} MiB",
            theirs=f"{whole / MEBIBYTE:.2f} MiB",
            value=f"{share:.3f}x",
            reach=f"{reach:.3f}x",
        )


CASES = {"decode": decode, "prefill": prefill, "shared": shared, "state": state}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short lengths, nothing is judged")
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    effort = QUICK if given.quick else replace(FULL, rounds=given.rounds)
    print_machine()
    for name, case in CASES.items():
        if given.case in (None, name):
            print_outcomes(name, case(effort))


if __name__ == "__main__":
    main()
