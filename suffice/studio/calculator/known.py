"""Published models as the calculator knows them, with how many numbers they learn."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.studio.calculator.composition import Composition


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
