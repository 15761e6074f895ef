"""Everything that needs a GPU, in one run within a budget of time: `make check-cuda`.

The tests marked `cuda`; every op, and every mechanism forward, backward and streamed, against the
float64 reference in fp32, bf16 and fp16; torch.compile; packed weights by torchao; times against
SDPA, FlexAttention and flash-linear-attention. Writes `check-cuda.json` and `check-cuda.md`.

Without CUDA it prints the checks it would run and exits with 0. `--device cpu` runs them at sizes
that take seconds, which tests the harness and says nothing about a GPU.

Exit codes: 0 nothing is wrong, 1 a check failed, 3 the time ran out before all checks had run.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import chain, islice
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.contest import Absent
from suffice import Attention, AttentionSpec, preset
from suffice.encoders import Encoder, Norm
from suffice.errors import ConfigError
from suffice.kernels import Elu, Kernel
from suffice.memory.past import Past
from suffice.mixing import Mixing
from suffice.models import LMConfig, folder
from suffice.models import packed as packed_models
from suffice.ops import OPS, AttentionCall, MaskInputs, choose
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full, Global, Pattern, Window
from suffice.positions import Position
from suffice.presets import PRESETS, takes_length
from suffice.quantise import quantise, unpack
from suffice.testing import drawn, normal, spec_around
from suffice.testing.oracle import check_ops
from suffice.text import Characters
from suffice.utils.machine import machine_facts, software_versions
from suffice.utils.timing import interleave

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# of the relative RMS error: some ten roundings of a layer's own dtype
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 8e-3}
# gradients of gates are sums of rounded ones with both signs; a CPU has the same errors
CANCELLED = 3.0
STREAMED = 4  # positions decoded one by one, after the others at once
CHECKED = 64  # queries whose outputs are compared before a side is timed
COMPILED = ("standard", "efficient", "super_attention", "linear", "mla", "mistral", "differential")
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where checks run and how large they are."""

    device: torch.device
    tiny: bool

    @property
    def cuda(self) -> bool:
        """True if the device is a GPU."""
        return self.device.type == "cuda"

    def length(self, length: int) -> int:
        """Return the length to run in place of this one."""
        return max(length // 64, CHECKED) if self.tiny else length


@dataclass(kw_only=True)
class Result:
    """What came out of a check; `numbers` are errors or milliseconds."""

    group: str
    name: str
    standing: str = "not run"  # or passed, FAILED, absent
    detail: str = ""
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)


Run = Callable[[Setting, Result], None]  # fills in the numbers; raises where something is wrong


@dataclass(frozen=True)
class Check:
    """One check by name, in a group that has a share of the time."""

    group: str
    name: str
    run: Run


# -- what is checked -------------------------------------------------------------------------------


def suite(setting: Setting, result: Result) -> None:
    """Run the tests marked `cuda`."""
    marked = [p for p in Path("tests").rglob("test_*.py") if "mark.cuda" in p.read_text()]
    arguments = ["-m", "cuda", *map(str, marked), "-p", "no:cacheprovider"]
    if setting.tiny:
        arguments.append("--collect-only")
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result.detail = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
    if done.returncode != 0:
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        raise AssertionError("; ".join(failed) or result.detail)


def ops(dtype: torch.dtype) -> Run:
    """Check the ops themselves, but for flex, which compiles a kernel for each case."""

    def run(setting: Setting, result: Result) -> None:
        checks = check_ops(setting.device, dtypes=[dtype], without={"flex"})
        done = list(islice(checks, 60 if setting.tiny else None))
        wrong = [str(check) for check in done if not check.passed]
        compared = [check for check in done if check.error is not None]
        result.numbers["largest error"] = max(check.error for check in compared)
        result.detail = f"{len(compared)} compared, {len(done) - len(compared)} refused"
        if wrong:
            raise AssertionError("; ".join(wrong[:5]) + f" ({len(wrong)} in all)")

    return run


@cache
def mechanisms(d_model: int, length: int) -> dict[str, AttentionSpec]:
    """Return a spec of each preset, causal or not, and of each sample of each axis."""
    specs = {}
    for name in PRESETS:
        options = {"length": length} if takes_length(name) else {}
        for causal in (False, True):
            try:
                spec = preset(name, d_model, 4, causal=causal, **options)
            except ConfigError:  # the preset is always causal, or never
                continue
            specs[f"causal {name}" if causal else name] = spec
    for family in (Pattern, Encoder, Mixing, Kernel, Norm, Position, Past):
        own = [v for v in family.table.values() if v.__module__.startswith("suffice.")]
        for sample in chain.from_iterable(value.samples() for value in own):
            specs[repr(sample)] = spec_around(sample, d_model=d_model)
    return specs


def mechanism(name: str, dtype: torch.dtype, length: int = 48, d_model: int = 48) -> Run:
    """Check a layer forward, backward and streamed against the reference in float64."""

    def run(setting: Setting, result: Result) -> None:
        width, positions = (24, 9) if setting.tiny else (d_model, length)
        compare(mechanisms(width, positions)[name], positions, dtype, setting, result)

    return run


def long(pattern: Pattern, dtype: torch.dtype) -> Run:
    """Check a sparse pattern where its own kernels are chosen."""

    def run(setting: Setting, result: Result) -> None:
        spec = AttentionSpec(d_model=64, num_heads=2, pattern=pattern)
        compare(spec, setting.length(1024), dtype, setting, result)

    return run


def compiled(name: str, dtype: torch.dtype) -> Run:
    """Check a layer compiled to one graph, forward and backward."""

    def run(setting: Setting, result: Result) -> None:
        torch._dynamo.reset()
        spec = mechanisms(24 if setting.tiny else 64, 48)[name]
        backend = "inductor" if setting.cuda else "aot_eager"
        compare(spec, 48, dtype, setting, result, backend=backend)

    return run


def compare(
    spec: AttentionSpec,
    length: int,
    dtype: torch.dtype,
    setting: Setting,
    result: Result,
    *,
    backend: str | None = None,
) -> None:
    """Fill in the relative RMS errors of output, gradients and stream; raise if one is large."""
    length = min(length, spec.max_length or length)
    layer = drawn(Attention(spec), seed=2).to(setting.device, dtype)
    exact = Attention(spec, impl="reference", dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    x, slope = (normal(2, length, spec.d_model, seed=seed).to(dtype) for seed in (1, 3))
    call = layer if backend is None else torch.compile(layer, backend=backend, fullgraph=True)
    want = gradients(exact, x.double(), slope.double(), exact)
    got = gradients(call, x.to(setting.device), slope.to(setting.device), layer)
    result.numbers["forward"] = error(got[0], want[0])
    floor = 0.05 * max(gradient.norm().item() for gradient in want[1:])
    pairs = zip(got[1:], want[1:], strict=True)
    result.numbers["backward"] = max(error(a, b, floor) for a, b in pairs)
    if backend is None:
        try:
            state = layer.state()
        except ConfigError as refusal:
            result.detail = f"not streamed: {refusal}".splitlines()[0]
        else:
            result.numbers["streamed"] = error(
                streamed(layer, x.to(setting.device), state), want[0]
            )
    limits = dict.fromkeys(result.numbers, TOLERANCES[dtype])
    limits["backward"] *= CANCELLED
    wrong = [
        f"{k} {v:.1e} > {limits[k]:g}" for k, v in result.numbers.items() if not v <= limits[k]
    ]
    if wrong:
        raise AssertionError(f"relative error {', '.join(wrong)}")


def gradients(
    call: Callable[[Tensor], Tensor], x: Tensor, slope: Tensor, layer: torch.nn.Module
) -> list[Tensor]:
    """Return the output, and the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    out = call(x)
    sources = [x, *layer.parameters()]
    found = torch.autograd.grad(out, sources, slope, allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


@torch.no_grad()
def streamed(layer: Attention, x: Tensor, state) -> Tensor:
    """Return the output of all positions but a few at once, then one by one."""
    first = max(x.shape[1] - STREAMED, 1)
    pieces = [first, *[1] * (x.shape[1] - first)]
    return torch.cat([layer(piece, state=state) for piece in x.split(pieces, dim=1)], dim=1)


def error(got: Tensor, want: Tensor, floor: float = 0.0) -> float:
    """Return the norm of the difference over that of `want`, or over the floor if it is larger."""
    want = want.double()
    gap = (got.to("cpu", torch.float64) - want.to("cpu")).norm().item()
    over = gap / max(want.norm().item(), floor, 1e-30)
    return over if over == over else torch.inf  # noqa: PLR0124 - NaN


def packed(bits: int) -> Run:
    """Check a model with packed weights, products by torchao, against the unpacked one."""

    def run(setting: Setting, result: Result) -> None:
        sizes = {"vocabulary_size": 30, "length": 16, "d_model": 64, "depth": 2, "mlp_width": 96}
        model = drawn(LMConfig(**sizes).build(preset("efficient", 64, 4, causal=True)), seed=3)
        quantise(model.eval(), bits)
        with tempfile.TemporaryDirectory() as path, torch.no_grad():
            folder.save(Path(path), model, Characters("abc"))
            there = folder.load(Path(path), setting.device.type)[0].eval()
            packed_models.with_torchao(there)
            unpack(model)
            text = torch.arange(24).view(2, 12)
            result.numbers["forward"] = error(there(text.to(setting.device)), model(text).double())
        if not result.numbers["forward"] <= TOLERANCES[torch.float32]:
            raise AssertionError(f"relative error {result.numbers['forward']:.1e}")

    return run


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One row of the table: an attention in bf16, ours and the peers'.

    Args:
        full: positions of the keys; the same of the queries unless decoding.
        one_tensor: True if keys are the values, too.
    """

    full: int
    pattern: Pattern = Causal()
    kernel: Kernel | None = None
    batch: int = 1
    heads: int = 16
    groups: int = 16
    width: int = 64
    decode: bool = False
    one_tensor: bool = False
    backward: bool = False

    def run(self, setting: Setting, result: Result) -> None:
        """Fill in milliseconds by side; what is absent or wrong stands in the detail."""
        keys = setting.length(self.full)
        queries = 1 if self.decode else keys
        dtype = torch.bfloat16
        generator = torch.Generator().manual_seed(0)

        def numbers(heads: int, length: int) -> Tensor:
            shape = self.batch, heads, length, self.width
            return torch.randn(shape, generator=generator).to(setting.device, dtype)

        q, k = numbers(self.heads, queries), numbers(self.groups, keys)
        v = k if self.one_tensor else numbers(self.groups, keys)
        call, parts = self._call(queries, keys, setting)
        rows = min(CHECKED, queries)
        exact, exact_parts = self._call(rows, keys, setting, dtype=torch.float64)
        with torch.no_grad():
            want = OPS["reference"].run(
                q[:, :, -rows:].double(), k.double(), v.double(), MaskInputs(), exact, exact_parts
            )
        notes, calls = [], {}
        for name, compute in self._sides(call, parts, setting):
            try:
                timed = self._timed(compute, q, k, v)
                wrong = error(compute(q, k, v)[:, :, -rows:].detach(), want)
            except (Absent, ImportError, RuntimeError, NotImplementedError, ValueError) as reason:
                notes.append(f"{name} absent: {type(reason).__name__}: {reason}".splitlines()[0])
                continue
            if not wrong <= TOLERANCES[dtype]:
                notes.append(f"{name} WRONG: relative error {wrong:.1e}")
                continue
            calls[name] = timed
        rounds, seconds = (1, 1e-6) if setting.tiny else (9, 0.02)
        device = str(setting.device)
        times = interleave(
            calls, rounds=rounds, warmup=1, min_seconds_per_sample=seconds, device=device
        )
        result.numbers = {n: 1e3 * statistics.median(t) for n, t in times.items()}
        result.detail = "; ".join(notes)
        if any(note.startswith("suffice") or "WRONG" in note for note in notes):
            raise AssertionError(result.detail)

    def _call(
        self, queries: int, keys: int, setting: Setting, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[AttentionCall, Parts]:
        axes = {} if self.kernel is None else {"kernel": self.kernel}
        spec = AttentionSpec(
            d_model=self.heads * self.width,
            num_heads=self.heads,
            num_kv_heads=self.groups,
            pattern=self.pattern,
            **axes,
        )
        device = setting.device
        with torch.set_grad_enabled(self.backward):
            call = AttentionCall.of(spec, queries, keys, device=device.type, dtype=dtype)
        if self.kernel is None:
            return call, Parts()
        maps = self.kernel.build(head_dim=self.width, scale=call.scale, device=device)
        return call, Parts(features=maps)

    def _timed(self, compute: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
        if not self.backward:

            def forward() -> Tensor:
                with torch.no_grad():
                    return compute(*inputs)

            forward()
            return forward
        leaves = [x.detach().requires_grad_() for x in inputs]
        slope = torch.ones_like(compute(*leaves))

        def both() -> Sequence[Tensor]:
            return torch.autograd.grad(compute(*leaves), leaves, slope)

        both()
        return both

    def _sides(
        self, call: AttentionCall, parts: Parts, setting: Setting
    ) -> Iterator[tuple[str, Callable[..., Tensor]]]:
        op = choose(call)
        yield f"suffice {op.name}", _ours(op, call, parts)
        if self.kernel is not None:
            yield "flash-linear-attention", _fla
            return
        mask = None
        if not isinstance(self.pattern, (Full, Causal)):
            mask = self.pattern.mask(call.queries, call.keys, device=setting.device)
        for name, backend in BACKENDS.items():
            yield f"SDPA {name}", _sdpa(backend, mask, is_causal=call.triangular, call=call)
        yield "FlexAttention", _flex(self.pattern, call, setting)


def _ours(op, call: AttentionCall, parts: Parts) -> Callable[..., Tensor]:
    return lambda q, k, v: op(q, k, v, MaskInputs(), call, parts)


def _sdpa(
    backend: SDPBackend, mask: Tensor | None, *, is_causal: bool, call: AttentionCall
) -> Callable[..., Tensor]:
    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=call.group > 1
            )

    return compute


def _flex(pattern: Pattern, call: AttentionCall, setting: Setting) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    offset = call.keys - call.queries
    made = {}

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        return pattern.allowed(q + offset, k)

    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), 1_024)
    kernel = flex_attention
    if setting.cuda:
        kernel = torch._dynamo.config.patch(**limits)(torch.compile(kernel, dynamic=False))

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if "mask" not in made and not call.unrestricted:
            made["mask"] = create_block_mask(
                allowed, None, None, call.queries, call.keys, device=str(setting.device)
            )
        return kernel(q, k, v, block_mask=made.get("mask"), enable_gqa=call.group > 1)

    return compute


def _fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention of features elu(x) + 1 by flash-linear-attention."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError as reason:
        raise Absent("pip install flash-linear-attention") from reason
    q, k = ((F.elu(x.float()) + 1.0).to(v.dtype) for x in (q, k))
    rows = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # its axes are [B, T, H, D]
    out = chunk_linear_attn(*rows, scale=1.0, normalize=True)
    return out[0].transpose(1, 2)


LONGFORMER = Window(256) | Global(16)
CONTESTS = {
    "dense causal, T=4096": Contest(full=4096),
    "dense causal, T=4096, backward": Contest(full=4096, backward=True),
    "window 512, T=16384": Contest(full=16384, pattern=Window(512) & Causal()),
    "window 512, T=8192, backward": Contest(
        full=8192, pattern=Window(512) & Causal(), backward=True
    ),
    "Longformer 256 + 16, T=8192": Contest(full=8192, pattern=LONGFORMER),
    "linear, T=16384": Contest(full=16384, kernel=Elu()),
    "linear, T=16384, backward": Contest(full=16384, kernel=Elu(), backward=True),
    "decode, GQA 32 / 8, S=8192": Contest(
        full=8192, batch=8, heads=32, groups=8, width=128, decode=True
    ),
    "decode, K = V, GQA 32 / 8, S=8192": Contest(
        full=8192, batch=8, heads=32, groups=8, width=128, decode=True, one_tensor=True
    ),
    "decode, K = V, MQA 16 / 1, S=32768": Contest(
        full=32768, batch=4, groups=1, width=128, decode=True, one_tensor=True
    ),
}

SPARSE = (Window(40) & Causal(), Window(30) | Global(2))
SHARES = {  # of the time; what a group leaves unused is for those after it
    "suite": 0.2,
    "ops": 0.1,
    "mechanisms": 0.25,
    "long": 0.1,
    "torchao": 0.05,
    "table": 0.2,
    "compile": 0.1,
}


def checks() -> list[Check]:
    """Return every check, group by group."""
    found = [Check("suite", "tests marked cuda", suite)]
    found += [Check("ops", name, ops(dtype)) for name, dtype in DTYPES.items()]
    for kind, names, run in (
        ("mechanisms", mechanisms(48, 48), mechanism),
        ("long", SPARSE, long),
    ):
        for what in names:
            found += [Check(kind, f"{what}, {n}", run(what, dtype)) for n, dtype in DTYPES.items()]
    found += [Check("torchao", f"{bits} bits", packed(bits)) for bits in (8, 4)]
    found += [Check("table", name, contest.run) for name, contest in CONTESTS.items()]
    for name in COMPILED:
        for short in ("fp32", "bf16"):
            run = compiled(f"causal {name}", DTYPES[short])
            found.append(Check("compile", f"causal {name}, {short}", run))
    return found


# -- running ---------------------------------------------------------------------------------------


class OutOfTime(BaseException):
    """The alarm of the budget; no `except Exception` of a library swallows it."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside the block after this time."""

    def ring(*_: object) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def run_all(
    todo: Sequence[Check],
    setting: Setting,
    seconds: float,
    say: Callable[[Result, float], None],
) -> list[Result]:
    """Run the checks, each group within its share; then those left over, in the rest of the time.

    Those that did not run in time keep the standing "not run".
    """
    start = perf_counter()
    results = [Result(group=check.group, name=check.name) for check in todo]
    share = 0.0
    limits = {group: (share := share + part) * seconds for group, part in SHARES.items()}
    for last in (False, True):
        for check, result in zip(todo, results, strict=True):
            spent = perf_counter() - start
            limit = seconds if last else limits[check.group]
            if result.standing == "not run" and spent < limit:
                run_one(check, result, setting, limit - spent, last=last)
                say(result, seconds - (perf_counter() - start))
    return results


def run_one(
    check: Check, result: Result, setting: Setting, seconds: float, *, last: bool = True
) -> None:
    """Run one check within a time, and fill in its result."""
    begun = perf_counter()
    try:
        with alarm(seconds):
            check.run(setting, result)
            if setting.cuda:
                torch.cuda.synchronize(setting.device)
        result.standing = "passed"
    except OutOfTime:
        result.detail = "cut off" if last else "cut off once"
    except (Absent, ImportError) as reason:
        result.standing, result.detail = "absent", str(reason)
    except Exception as reason:  # noqa: BLE001 - whatever breaks is the finding
        message = f"{type(reason).__name__}: {reason}".splitlines()[0]
        result.standing, result.detail = "FAILED", message
    result.seconds += perf_counter() - begun


def page(facts: dict[str, str], results: Sequence[Result], what: str) -> str:
    """Return the results as Markdown."""
    lines = [f"# check-cuda: {what}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    lines += [
        "| group | passed | FAILED | absent | not run | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for group in SHARES:
        own = [result for result in results if result.group == group]
        count = Counter(result.standing for result in own)
        cells = [count[s] for s in ("passed", "FAILED", "absent", "not run")]
        lines.append(f"| {group} | {' | '.join(map(str, cells))} | {_seconds(own):.0f} |")
    for standing in ("FAILED", "not run", "absent"):
        own = [result for result in results if result.standing == standing]
        if own:
            lines += ["", f"## {standing}", ""]
            lines += [f"- {r.group}: {r.name}: {r.detail or 'no time'}" for r in own]
    lines += [
        "",
        "## Milliseconds, bf16",
        "",
        "| case | side | ms | over the first |",
        "|---|---|---|---|",
    ]
    for result in results:
        if result.group == "table" and result.numbers:
            first = next(iter(result.numbers.values()))
            for side, taken in result.numbers.items():
                lines.append(f"| {result.name} | {side} | {taken:.3f} | {taken / first:.2f} |")
            if result.detail:
                lines.append(f"| {result.name} | {result.detail.replace('|', '/')} | | |")
    lines += ["", "## Relative errors", "", "| check | errors |", "|---|---|"]
    for result in results:
        if result.group != "table" and result.numbers:
            told = ", ".join(f"{k} {v:.1e}" for k, v in result.numbers.items())
            lines.append(f"| {result.name.replace('|', '&#124;')} | {told} |")
    return "\n".join(lines) + "\n"


def _seconds(results: Sequence[Result]) -> float:
    return sum(result.seconds for result in results)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.cuda", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu at tiny sizes")
    parser.add_argument("--minutes", type=float, default=8.5, help="budget of time")
    parser.add_argument("--only", default="", help="checks whose group or name holds this")
    parser.add_argument("--list", action="store_true", help="print the checks and stop")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder of both files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, or say what would be run; return the exit code."""
    options = parsed(arguments)
    todo = [c for c in checks() if options.only in f"{c.group}: {c.name}"]
    device = torch.device(options.device)
    absent = device.type == "cuda" and not torch.cuda.is_available()
    if options.list or absent:
        print("No CUDA device here. On one these checks would run:" if absent else "The checks:")
        for group, number in Counter(check.group for check in todo).items():
            names = [check.name for check in todo if check.group == group]
            shown = names if options.list else [*names[:3], *["..."][: number > 3]]  # noqa: PLR2004
            print(f"{number:4} {group}: {'; '.join(shown)}")
        print(f"{len(todo):4} in all, within {options.minutes:g} minutes")
        return 0
    setting = Setting(device=device, tiny=device.type != "cuda")
    facts = {**software_versions(), **machine_facts()}
    if setting.cuda:
        facts["GPU"] = torch.cuda.get_device_name(device)
    done = iter(range(1, 2 * len(todo) + 1))

    def say(result: Result, left: float) -> None:
        numbers = " ".join(f"{k}={v:.2g}" for k, v in result.numbers.items())
        told = f"{next(done):3}/{len(todo)} {result.standing:7} {result.group}: {result.name}"
        print(f"{told} {numbers} {result.detail} ({left:.0f} s left)", flush=True)

    results = run_all(todo, setting, 60.0 * options.minutes, say)
    options.out.mkdir(parents=True, exist_ok=True)
    what = "tiny sizes on a CPU, which test the harness alone" if setting.tiny else facts["GPU"]
    report = {"what": what, "machine": facts, "results": [asdict(r) for r in results]}
    (options.out / "check-cuda.json").write_text(json.dumps(report, indent=1))
    (options.out / "check-cuda.md").write_text(page(facts, results, what))
    count = Counter(result.standing for result in results)
    print(", ".join(f"{number} {standing}" for standing, number in count.items()))
    print(f"{options.out / 'check-cuda.json'}, {options.out / 'check-cuda.md'}")
    if count["FAILED"]:
        return 1
    return 3 if count["not run"] else 0


if __name__ == "__main__":
    sys.exit(main())
