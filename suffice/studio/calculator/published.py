"""Published models as the calculator knows them, with how many numbers they learn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from suffice.studio.calculator.answer import Composition, answer


@dataclass(frozen=True, kw_only=True)
class Known:
    """A published model.

    Args:
        model: its sizes.
        parameters: learned numbers as published, or as its published weights hold.
        length: the longest text it was made for, tokens.
        source: where the sizes stand.
    """

    model: Composition
    parameters: int
    length: int
    source: str


LLAMA_2_7B = Known(
    model=Composition(
        name="Llama 2 7B",
        rotary=True,
        d_model=4096,
        layers=32,
        num_heads=32,
        vocabulary=32_000,
        mlp_width=11_008,
    ),
    parameters=6_738_415_616,
    length=4096,
    source="Touvron et al. 2023, arXiv:2307.09288",
)
LLAMA_2_70B = Known(
    model=Composition(
        name="Llama 2 70B",
        rotary=True,
        d_model=8192,
        layers=80,
        num_heads=64,
        num_kv_heads=8,
        vocabulary=32_000,
        mlp_width=28_672,
    ),
    parameters=68_976_648_192,
    length=4096,
    source="Touvron et al. 2023, arXiv:2307.09288",
)
LLAMA_3_8B = Known(
    model=Composition(
        name="Llama 3 8B",
        rotary=True,
        d_model=4096,
        layers=32,
        num_heads=32,
        num_kv_heads=8,
        vocabulary=128_256,
        mlp_width=14_336,
    ),
    parameters=8_030_261_248,
    length=8192,
    source="Grattafiori et al. 2024, arXiv:2407.21783, table 3",
)
MISTRAL_7B = Known(
    model=Composition(
        name="Mistral 7B",
        rotary=True,
        d_model=4096,
        layers=32,
        num_heads=32,
        num_kv_heads=8,
        window=4096,
        vocabulary=32_000,
        mlp_width=14_336,
    ),
    parameters=7_241_732_096,
    length=32_768,
    source="Jiang et al. 2023, arXiv:2310.06825, table 1",
)
GEMMA_2B = Known(
    model=Composition(
        name="Gemma 2B",
        rotary=True,
        d_model=2048,
        layers=18,
        num_heads=8,
        num_kv_heads=1,
        head_dim=256,
        vocabulary=256_128,
        mlp_width=16_384,
        tied=True,
    ),
    parameters=524_550_144 + 1_981_884_416,
    length=8192,
    source="Gemma Team 2024, arXiv:2403.08295, tables 1 and 2",
)
GEMMA_7B = Known(
    model=Composition(
        name="Gemma 7B",
        rotary=True,
        d_model=3072,
        layers=28,
        num_heads=16,
        head_dim=256,
        vocabulary=256_128,
        mlp_width=24_576,
        tied=True,
    ),
    parameters=786_825_216 + 7_751_248_896,
    length=8192,
    source="Gemma Team 2024, arXiv:2403.08295, tables 1 and 2",
)
GEMMA_3_1B = Known(
    model=Composition(
        name="Gemma 3 1B",
        rotary=True,
        d_model=1152,
        layers=26,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        window=512,
        full_every=6,
        vocabulary=262_144,
        mlp_width=6912,
        tied=True,
        norms=4,
        qk_norm=True,
    ),
    parameters=999_885_952,
    length=32_768,
    source="Gemma Team 2025, arXiv:2503.19786, section 2 (five windows to one full layer)",
)
TINYLLAMA = Known(
    model=Composition(
        name="TinyLlama 1.1B",
        rotary=True,
        d_model=2048,
        layers=22,
        num_heads=32,
        num_kv_heads=4,
        vocabulary=32_000,
        mlp_width=5632,
    ),
    parameters=1_100_048_384,
    length=2048,
    source="Zhang et al. 2024, arXiv:2401.02385, table 2",
)
GPT_2 = Known(
    model=Composition(
        name="GPT-2",
        d_model=768,
        layers=12,
        num_heads=12,
        bias=True,
        vocabulary=50_257,
        mlp_width=3072,
        gated=False,
        mlp_bias=True,
        tied=True,
        positions=1024,
        norm_bias=True,
        weight_bits=32,
        state_bits=32,
    ),
    parameters=124_439_808,
    length=1024,
    source="Radford et al. 2019, table 2, and the published weights",
)

KNOWN: tuple[Known, ...] = (
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    MISTRAL_7B,
    GEMMA_2B,
    GEMMA_7B,
    GEMMA_3_1B,
    TINYLLAMA,
    GPT_2,
)


SOURCE = "J. D. Baena, Efficient Attention Mechanisms for Tiny Language Models"
FORMULA = "2 × layers × kv_heads × head_dim × seq_len × bytes"
CLOSE = 0.02  # what two printed digits can be off that were cut, not rounded

MIB, MB, GB = 1 << 20, 10**6, 10**9
ARTICLE = Composition(name="The article's calculator", d_model=2048, layers=32, num_heads=32)
LENGTH = 2048
SEVEN_B = Composition(name="Its 7B model", d_model=4096, layers=32, num_heads=32)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One printed figure.

    Args:
        where: in the article.
        says: as printed.
        printed: the same in bytes.
        computed: what the formula gives for the sizes that stand there, bytes.
        note: what is wrong, or what the figure is of.
    """

    where: str
    says: str
    printed: float
    computed: int
    note: str

    @property
    def agrees(self) -> bool:
        """Whether the figure is what the formula gives, within its digits."""
        return abs(self.printed - self.computed) <= CLOSE * self.computed

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"agrees": self.agrees}


def grouped(model: Composition, kv_heads: int) -> Composition:
    """Return a model with other key/value heads."""
    return Composition.from_json(model.to_json() | {"num_kv_heads": kv_heads})


def of_layer(model: Composition, length: int = LENGTH) -> int:
    """Return what one layer keeps."""
    return answer(model, length).layers[0].state


def of_model(model: Composition, length: int = LENGTH) -> int:
    """Return what all layers keep."""
    return answer(model, length).state


@cache
def reported() -> tuple[Claim, ...]:
    """Return the article's figures in its order."""
    return (*_visualiser(), *_code(), *_calculator(), *_groups(), *_windows())


def _visualiser() -> list[Claim]:
    rows = {"MHA": (32, 16.0), "MQA": (1, 0.5), "GQA-4": (4, 2.0), "GQA-8": (8, 4.0)}
    return [
        Claim(
            where=f"pattern visualiser, {name}",
            says=f"{size:g} MB",
            printed=size * MIB,
            computed=of_layer(grouped(ARTICLE, heads)),
            note="of one layer, and MB are MiB (2^20 bytes)",
        )
        for name, (heads, size) in rows.items()
    ]


def _code() -> list[Claim]:
    code = (
        "what the code beside it returns, of one layer: neither that nor all 32 layers "
        f"({of_model(ARTICLE) / MB:,.0f} MB) is what is printed"
    )
    return [
        Claim(
            where="get_cache_size of MultiHeadAttention(2048, 32), 2048 tokens",
            says="262.14 MB",
            printed=262.14 * MB,
            computed=of_layer(ARTICLE),
            note=code,
        ),
        Claim(
            where="get_cache_size of MultiQueryAttention(2048, 32), 2048 tokens",
            says="8.19 MB",
            printed=8.19 * MB,
            computed=of_layer(grouped(ARTICLE, 1)),
            note="the ratio of 32 beside it is right",
        ),
        Claim(
            where="Llama-7B, one layer",
            says="33,554,432 bytes",
            printed=33_554_432,
            computed=of_layer(SEVEN_B),
            note="",
        ),
        Claim(
            where="Llama-7B, 32 layers",
            says="1.07 GB",
            printed=1.07 * GB,
            computed=of_model(SEVEN_B),
            note="",
        ),
        Claim(
            where="MQA against MHA, 7B",
            says="33 MB",
            printed=33 * MB,
            computed=of_model(grouped(SEVEN_B, 1)),
            note="33.55 MB, cut off",
        ),
    ]


def _calculator() -> list[Claim]:
    return [
        Claim(
            where="KV cache calculator, total at 2K",
            says="512.00 MB",
            printed=512 * MIB,
            computed=of_model(ARTICLE),
            note="MB are MiB here, in the code above them 10^6 bytes",
        ),
        Claim(
            where="KV cache calculator, per layer",
            says="16.00 MB",
            printed=16 * MIB,
            computed=of_layer(ARTICLE),
            note="MB are MiB",
        ),
        Claim(
            where="KV cache calculator, per token",
            says="8192 B",
            printed=8192,
            computed=round(answer(ARTICLE, LENGTH).per_token),
            note="8192 B are one token in one layer; the 512 MB beside it are of 32 layers, so a "
            "token takes 32 times that",
        ),
    ]


def _groups() -> list[Claim]:
    code = {32: 1048.58, 8: 262.14, 1: 32.77}
    rows = {32: 1050.0, 16: 525.0, 8: 262.0, 4: 131.0, 1: 33.0}
    printed = [
        Claim(
            where=f"get_cache_size, d_model 4096, {heads} KV heads",
            says=f"{size:,.2f} MB",
            printed=size * MB,
            computed=of_layer(grouped(SEVEN_B, heads)),
            note=f"one layer; all 32 take {of_model(grouped(SEVEN_B, heads)) / MB:,.2f} MB",
        )
        for heads, size in code.items()
    ]
    return printed + [
        Claim(
            where=f"Llama-2 7B variants, {heads} KV heads",
            says="1.05 GB" if heads == 32 else f"{size:g} MB",  # noqa: PLR2004
            printed=size * MB,
            computed=of_model(grouped(SEVEN_B, heads)),
            note="33.55 MB, cut off"
            if heads == 1
            else "from 1.05 GB for 32 heads, where the same model is counted at 1.07 GB before",
        )
        for heads, size in rows.items()
    ]


def _windows() -> list[Claim]:
    mistral = grouped(SEVEN_B, 8)
    rolling = Composition.from_json(mistral.to_json() | {"window": 4096})
    full = {4096: 1.05, 8192: 4.19, 16_384: 16.78}
    note = "four times as much for twice the length, where the formula is linear; 8 KV heads"
    printed = [
        Claim(
            where=f"Mistral-7B, full, {length} tokens",
            says=f"{size:g} GB",
            printed=size * GB,
            computed=of_model(mistral, length),
            note=note,
        )
        for length, size in full.items()
    ]
    return [
        *printed,
        Claim(
            where="Mistral-7B, sliding window, any length from 4096",
            says="1.05 GB",
            printed=1.05 * GB,
            computed=of_model(rolling, 16_384),
            note="twice what 8 KV heads keep of 4096 tokens; that it stays the same is right",
        ),
    ]
