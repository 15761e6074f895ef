"""What the publications of the mechanisms say of their quality, in our words, with their scale."""

from __future__ import annotations

LITERATURE = {
    "optimised": "on par with standard, 0.1M to 10M (Hosseini 2024)",
    "efficient": "on par with standard, 0.1M to 10M (Hosseini 2024)",
    "super_attention": "better than standard on images and reviews (Hosseini 2024)",
    "gqa": "near full heads after uptraining, T5 XXL (Ainslie 2023)",
    "mqa": "slightly worse, translation and one billion words (Shazeer 2019)",
    "cla": "half the cache of mqa for nearly its perplexity, 1B and 3B (Brandon 2024)",
    "qk_norm": "0.9 BLEU better on small translation sets (Henry 2020)",
    "forgetting": "better language models and length extrapolation, 760M (Lin 2025)",
    "mla": "better than full heads with a small cache, 16B and 250B (DeepSeek-AI 2024)",
    "differential": "on par at two thirds of the parameters, 0.8B to 13B (Ye 2024)",
    "sliding_window": "enough for characters if the blocks reach, text8 (Beltagy 2020)",
    "mistral": "above Llama 2 13B with windows of 4,096, 7B (Jiang 2023)",
    "longformer": "better than RoBERTa on long documents (Beltagy 2020)",
    "etc": "better on long answers and structure, 4,096 tokens (Ainslie 2020)",
    "bigbird": "better on long answers, 4,096 tokens (Zaheer 2020)",
    "star_transformer": "better on 22 modest data sets (Guo 2019)",
    "sparse_strided": "on par or better on images and audio (Child 2019)",
    "sparse_fixed": "on par or better on text, enwik8 (Child 2019)",
    "infini": "passkeys in a million tokens after tuning, 1B (Munkhdalai 2024)",
    "linformer": "on par as an encoder of 512 tokens (Wang 2020)",
    "linear": "on par on images, worse on speech (Katharopoulos 2020); fails at recall, up to 355M "
    "(Arora 2023)",
    "performer": "on par on proteins and small images (Choromanski 2020)",
    "rfa": "on par in translation and language models with its gate (Peng 2021)",
    "retnet": "better perplexity from 2B on (Sun 2023); recalls less at equal size (Arora 2023)",
    "lightning": "on par as hybrids with softmax, 456B (MiniMax 2025)",
    "mamba2": "on par or better on the Pile, 2.7B; recalls with a large state (Dao and Gu 2024)",
    "gla": "near standard, 1.3B; recalls less (Yang 2023)",
    "deltanet": "above gla and Mamba, 1.3B; solves recall (Yang 2024)",
    "gated_deltanet": "above Mamba-2 and deltanet, 1.3B (Yang 2024)",
    "gated_deltanet+softmax:2": "hybrids of three to one match standard, 48B (Kimi Team 2025)",
}
"""By row of the atlas; rows that are missing have no published comparison that we know."""
