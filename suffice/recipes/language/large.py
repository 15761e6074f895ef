"""Language models for GPUs; their definitions build and start anywhere with smaller sizes."""

from __future__ import annotations

from suffice.recipes.language.recipe import LMRecipe
from suffice.train.language import LMTraining

# of a small twin's training
MINUTES = {
    "batch_size": 8,
    "accumulate": 1,
    "length": 256,
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "evaluate_every": 50,
    "evaluation_batches": 8,
    "dtype": "float32",
}


def nanogpt_124m(scale: str = "paper") -> LMRecipe:
    """GPT-2 of 124M parameters on OpenWebText as nanoGPT trains it, half a million tokens a step.

    The corpus is the user's folder or file of text; without --data a sample of a thousand pages
    stands in for it, which shows that it runs and no more.

    Small: 15M parameters, three blocks of 256 features and four heads, of which 12.9M are the
    tokenizer's 50,257 tokens; 100 steps of 8 rows of 256 tokens.

    Source: nanoGPT, config/train_gpt2.py and train.py. Differs: the corpus.
    """
    return LMRecipe(
        name="nanogpt_124m",
        title="GPT-2 124M, 12 blocks, d_model 768, 1024 tokens",
        corpus="openwebtext_sample",
        tokenizer="gpt2",
        configuration="gpt2_124m",
        rounded=64,
        training=LMTraining(
            steps=600_000,
            batch_size=480,
            accumulate=40,
            length=1024,
            learning_rate=6e-4,
            min_learning_rate=6e-5,
            warmup=2000,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            clip=1.0,
            evaluate_every=1000,
            evaluation_batches=200,
            dtype="bfloat16",
        ),
    ).at(
        scale,
        title="GPT-2 in small, 15M parameters, 3 blocks, d_model 256, 256 tokens",
        options=(("d_model", 256), ("depth", 3), ("num_heads", 4)),
        training={**MINUTES, "steps": 100, "warmup": 10},
    )


def llama_1b_efficient(scale: str = "paper") -> LMRecipe:
    """The Efficient Attention model of 1.14B parameters, trained as TinyLlama is.

    TinyLlama reads SlimPajama and Starcoder; here the corpus is the user's, and a sample of C4
    stands in for it. Its tokenizer is Llama 2's, which the user has: --tokenizer FILE.

    Small: 15M parameters, eight blocks of 384 features, 4,096 byte pairs learned from the corpus;
    200 steps of 8 rows of 256 tokens.

    Source: the published configuration of the authors of arXiv:2403.01643; TinyLlama,
        pretrain/tinyllama.py, arXiv:2401.02385. Differs: the corpus.
    """
    return LMRecipe(
        name="llama_1b_efficient",
        title="Efficient Attention 1.14B, 10 blocks, d_model 3072, 2048 tokens",
        corpus="c4_sample",
        tokenizer="llama",
        configuration="efficient_1b",
        training=LMTraining(
            steps=1_430_512,
            batch_size=512,
            accumulate=64,
            length=2048,
            learning_rate=4e-4,
            min_learning_rate=4e-5,
            warmup=2000,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            clip=1.0,
            evaluate_every=1000,
            evaluation_batches=100,
            dtype="bfloat16",
            checkpointing=True,
            documents="joined",
        ),
    ).at(
        scale,
        title="Efficient Attention in small, 15M parameters, 8 blocks, d_model 384, 256 tokens",
        tokenizer="bpe",
        options=(("d_model", 384), ("depth", 8), ("mlp_width", 1024), ("vocabulary_size", 4096)),
        training={**MINUTES, "steps": 200, "warmup": 20, "checkpointing": False},
    )
