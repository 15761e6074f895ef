"""Published models with their parameter counts, and the figures of a published calculator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from suffice.studio.calculator import DecoderSizes, calculate


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A published model."""

    model: DecoderSizes
    parameters: int  # as published, or counted in the published weights
    length: int  # context length, tokens
    source: str  # publication of the sizes


SIZES = ("d_model", "layers", "num_heads", "num_kv_heads", "vocabulary", "mlp_width")


def _published(
    name: str, sizes: tuple[int, ...], parameters: int, length: int, source: str, **options: Any
) -> PublishedModel:
    fields: dict[str, Any] = dict(zip(SIZES, sizes, strict=True)) | {"rotary": True} | options
    fields["trained"] = length
    model = DecoderSizes(name=name, **fields)
    return PublishedModel(model=model, parameters=parameters, length=length, source=source)


LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288"
LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, table 3"
MISTRAL = "Jiang et al. 2023, arXiv:2310.06825, table 1"
GEMMA = "Gemma Team 2024, arXiv:2403.08295, tables 1 and 2"
GEMMA_3 = "Gemma Team 2025, arXiv:2503.19786, section 2 (five windows to one full layer)"
QWEN_3 = "Qwen Team 2025, arXiv:2505.09388, tables 1 and 2"
PHI_4 = "Abdin et al. 2024, arXiv:2412.08905, section 3"
GPT_OSS = "OpenAI 2025, arXiv:2508.10925, section 2 (its sink logits are not counted)"
DEEPSEEK_V3 = "DeepSeek-AI 2024, arXiv:2412.19437, section 4.2 (without multi-token prediction)"
TINY_LLAMA = "Zhang et al. 2024, arXiv:2401.02385, table 2"
GPT_2 = "Radford et al. 2019, table 2, and the published weights"
GEMMA_OPTIONS = {"head_dim": 256, "tied": True}
GEMMA_3_OPTIONS = {"full_every": 6, "norms": 4, "qk_norm": True, "tied": True}
QWEN_3_OPTIONS = {"head_dim": 128, "qk_norm": True}
QWEN_3_EXPERTS = {**QWEN_3_OPTIONS, "experts": 128, "active_experts": 8}
GPT_OSS_OPTIONS = {"head_dim": 64, "window": 128, "full_every": 2, "bias": True, "mlp_bias": True}
GPT_OSS_OPTIONS |= {"expert_width": 2880, "active_experts": 4, "weight_bits": 4}
DEEPSEEK_V3_OPTIONS = {"projections": "MLA", "head_dim": 128, "rank": 512, "rotary_dim": 64}
DEEPSEEK_V3_OPTIONS |= {"value_dim": 128, "query_rank": 1536, "experts": 256, "weight_bits": 8}
DEEPSEEK_V3_OPTIONS |= {"expert_width": 2048, "shared_experts": 1, "active_experts": 8}
DEEPSEEK_V3_OPTIONS |= {"dense_layers": 3}
GPT_2_OPTIONS = {"rotary": False, "bias": True, "gated": False, "mlp_bias": True, "tied": True}
GPT_2_OPTIONS |= {"positions": 1024, "norm_bias": True, "weight_bits": 32, "state_bits": 32}
K = 1024

PUBLISHED_MODELS = (
    _published("Llama 2 7B", (4096, 32, 32, 0, 32_000, 11_008), 6_738_415_616, 4 * K, LLAMA_2),
    _published("Llama 2 70B", (8192, 80, 64, 8, 32_000, 28_672), 68_976_648_192, 4 * K, LLAMA_2),
    _published("Llama 3 8B", (4096, 32, 32, 8, 128_256, 14_336), 8_030_261_248, 8 * K, LLAMA_3),
    _published("Llama 3.1 8B", (4096, 32, 32, 8, 128_256, 14_336), 8_030_261_248, 128 * K, LLAMA_3),
    _published(
        "Llama 3.1 70B", (8192, 80, 64, 8, 128_256, 28_672), 70_553_706_496, 128 * K, LLAMA_3
    ),
    _published(
        "Llama 3.1 405B", (16_384, 126, 128, 8, 128_256, 53_248), 405_853_388_800, 128 * K, LLAMA_3
    ),
    _published(
        "Llama 3.2 1B",
        (2048, 16, 32, 8, 128_256, 8192),
        1_235_814_400,
        128 * K,
        LLAMA_3,
        tied=True,
    ),
    _published(
        "Llama 3.2 3B",
        (3072, 28, 24, 8, 128_256, 8192),
        3_212_749_824,
        128 * K,
        LLAMA_3,
        tied=True,
    ),
    _published(
        "Qwen3 0.6B",
        (1024, 28, 16, 8, 151_936, 3072),
        596_049_920,
        32 * K,
        QWEN_3,
        tied=True,
        **QWEN_3_OPTIONS,
    ),
    _published(
        "Qwen3 4B",
        (2560, 36, 32, 8, 151_936, 9728),
        4_022_468_096,
        128 * K,
        QWEN_3,
        tied=True,
        **QWEN_3_OPTIONS,
    ),
    _published(
        "Qwen3 8B",
        (4096, 36, 32, 8, 151_936, 12_288),
        8_190_735_360,
        128 * K,
        QWEN_3,
        **QWEN_3_OPTIONS,
    ),
    _published(
        "Qwen3 32B",
        (5120, 64, 64, 8, 151_936, 25_600),
        32_762_123_264,
        128 * K,
        QWEN_3,
        **QWEN_3_OPTIONS,
    ),
    _published(
        "Qwen3 30B-A3B",
        (2048, 48, 32, 4, 151_936, 0),
        30_532_122_624,
        128 * K,
        QWEN_3,
        expert_width=768,
        **QWEN_3_EXPERTS,
    ),
    _published(
        "Qwen3 235B-A22B",
        (4096, 94, 64, 4, 151_936, 0),
        235_093_634_560,
        128 * K,
        QWEN_3,
        expert_width=1536,
        **QWEN_3_EXPERTS,
    ),
    _published(
        "Gemma 2B", (2048, 18, 8, 1, 256_128, 16_384), 2_506_434_560, 8 * K, GEMMA, **GEMMA_OPTIONS
    ),
    _published(
        "Gemma 7B", (3072, 28, 16, 0, 256_128, 24_576), 8_538_074_112, 8 * K, GEMMA, **GEMMA_OPTIONS
    ),
    _published(
        "Gemma 3 1B",
        (1152, 26, 4, 1, 262_144, 6912),
        999_885_952,
        32 * K,
        GEMMA_3,
        window=512,
        head_dim=256,
        **GEMMA_3_OPTIONS,
    ),
    _published(
        "Gemma 3 4B",
        (2560, 34, 8, 4, 262_208, 10_240),
        3_880_263_168,
        128 * K,
        GEMMA_3,
        window=1024,
        head_dim=256,
        **GEMMA_3_OPTIONS,
    ),
    _published(
        "Gemma 3 12B",
        (3840, 48, 16, 8, 262_208, 15_360),
        11_766_034_176,
        128 * K,
        GEMMA_3,
        window=1024,
        head_dim=256,
        **GEMMA_3_OPTIONS,
    ),
    _published(
        "Gemma 3 27B",
        (5376, 62, 32, 16, 262_208, 21_504),
        27_009_346_304,
        128 * K,
        GEMMA_3,
        window=1024,
        head_dim=128,
        **GEMMA_3_OPTIONS,
    ),
    _published("Phi-4", (5120, 40, 40, 10, 100_352, 17_920), 14_659_507_200, 16 * K, PHI_4),
    _published(
        "Mistral 7B", (4096, 32, 32, 8, 32_000, 14_336), 7_241_732_096, 32 * K, MISTRAL, window=4096
    ),
    _published(
        "gpt-oss-20b",
        (2880, 24, 64, 8, 201_088, 0),
        20_914_755_648,
        128 * K,
        GPT_OSS,
        experts=32,
        **GPT_OSS_OPTIONS,
    ),
    _published(
        "gpt-oss-120b",
        (2880, 36, 64, 8, 201_088, 0),
        116_829_154_368,
        128 * K,
        GPT_OSS,
        experts=128,
        **GPT_OSS_OPTIONS,
    ),
    _published(
        "DeepSeek-V3",
        (7168, 61, 128, 0, 129_280, 18_432),
        671_026_404_352,
        128 * K,
        DEEPSEEK_V3,
        **DEEPSEEK_V3_OPTIONS,
    ),
    _published("TinyLlama 1.1B", (2048, 22, 32, 4, 32_000, 5632), 1_100_048_384, 2 * K, TINY_LLAMA),
    _published("GPT-2", (768, 12, 12, 0, 50_257, 3072), 124_439_808, K, GPT_2, **GPT_2_OPTIONS),
)

SOURCE = "J. D. Baena, Efficient Attention Mechanisms for Tiny Language Models"
FORMULA = "2 × layers × kv_heads × head_dim × seq_len × bytes"
ARTICLE = DecoderSizes(name="The article's calculator", d_model=2048, layers=32, num_heads=32)
SEVEN_B = DecoderSizes(name="Its 7B model", d_model=4096, layers=32, num_heads=32)
LENGTH = 2048
MIB, MB, GB = 1 << 20, 10**6, 10**9
TOLERANCE = 0.02  # error of two printed digits that were cut, not rounded


@dataclass(frozen=True)
class Claim:
    """One figure of the article."""

    where: str
    says: str  # as printed
    printed: float  # the same in bytes
    computed: int  # bytes by the formula, for the sizes printed beside the figure
    note: str = ""  # what is wrong, or what the figure is for

    @property
    def agrees(self) -> bool:
        """Whether the figure is what the formula gives, within its digits."""
        return abs(self.printed - self.computed) <= TOLERANCE * self.computed

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"agrees": self.agrees}


def _layer(model: DecoderSizes, kv_heads: int = 32) -> int:
    return calculate(replace(model, num_kv_heads=kv_heads), LENGTH).layers[0].state


def _model(model: DecoderSizes, kv_heads: int = 32, length: int = LENGTH) -> int:
    return calculate(replace(model, num_kv_heads=kv_heads), length).state


@cache
def article_claims() -> tuple[Claim, ...]:
    """Return the article's figures in its order."""
    article, seven_b = _model(ARTICLE), _model(SEVEN_B)
    code, calculator = "get_cache_size of", "KV cache calculator,"
    mib = "of one layer, and MB are MiB (2^20 bytes)"
    cut = "33.55 MB, cut off"
    before = "from 1.05 GB for 32 heads, where the same model is counted at 1.07 GB before"
    double = "four times as much for twice the length, where the formula is linear; 8 KV heads"
    rows: list[tuple[str, str, float, int, str]] = []
    for name, heads, size in (
        ("MHA", 32, 16.0),
        ("MQA", 1, 0.5),
        ("GQA-4", 4, 2.0),
        ("GQA-8", 8, 4.0),
    ):
        where = f"pattern visualiser, {name}"
        rows.append((where, f"{size:g} MB", size * MIB, _layer(ARTICLE, heads), mib))
    rows += [
        (
            f"{code} MultiHeadAttention(2048, 32), 2048 tokens",
            "262.14 MB",
            262.14 * MB,
            _layer(ARTICLE),
            "what the code beside it returns, of one layer: neither that nor all 32 layers "
            f"({article / MB:,.0f} MB) is what is printed",
        ),
        (
            f"{code} MultiQueryAttention(2048, 32), 2048 tokens",
            "8.19 MB",
            8.19 * MB,
            _layer(ARTICLE, 1),
            "the ratio of 32 beside it is right",
        ),
        ("Llama-7B, one layer", "33,554,432 bytes", 33_554_432, _layer(SEVEN_B), ""),
        ("Llama-7B, 32 layers", "1.07 GB", 1.07 * GB, seven_b, ""),
        ("MQA against MHA, 7B", "33 MB", 33 * MB, _model(SEVEN_B, 1), cut),
        (
            f"{calculator} total at 2K",
            "512.00 MB",
            512 * MIB,
            article,
            "MB are MiB here, in the code above them 10^6 bytes",
        ),
        (f"{calculator} per layer", "16.00 MB", 16 * MIB, _layer(ARTICLE), "MB are MiB"),
        (
            f"{calculator} per token",
            "8192 B",
            8192,
            round(calculate(ARTICLE, LENGTH).per_token),
            "8192 B are one token in one layer; the 512 MB beside it are of 32 layers, so a "
            "token takes 32 times that",
        ),
    ]
    for heads, size in ((32, 1048.58), (8, 262.14), (1, 32.77)):
        where = f"get_cache_size, d_model 4096, {heads} KV heads"
        note = f"one layer; all 32 take {_model(SEVEN_B, heads) / MB:,.2f} MB"
        rows.append((where, f"{size:,.2f} MB", size * MB, _layer(SEVEN_B, heads), note))
    for heads, says, size in (
        (32, "1.05 GB", 1050.0),
        (16, "525 MB", 525.0),
        (8, "262 MB", 262.0),
        (4, "131 MB", 131.0),
        (1, "33 MB", 33.0),
    ):
        where, note = f"Llama-2 7B variants, {heads} KV heads", cut if heads == 1 else before
        rows.append((where, says, size * MB, _model(SEVEN_B, heads), note))
    for length, size in ((4096, 1.05), (8192, 4.19), (16_384, 16.78)):
        computed = _model(SEVEN_B, 8, length)
        rows.append(
            (f"Mistral-7B, full, {length} tokens", f"{size:g} GB", size * GB, computed, double)
        )
    rows.append(
        (
            "Mistral-7B, sliding window, any length from 4096",
            "1.05 GB",
            1.05 * GB,
            _model(replace(SEVEN_B, window=4096), 8, 16_384),
            "twice what 8 KV heads keep of 4096 tokens; that it stays the same is right",
        )
    )
    return tuple(Claim(*row) for row in rows)
