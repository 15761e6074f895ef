"""A tiny model and tiny learnable data, shared by the tests of training."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor, nn

from suffice import preset
from suffice.data.dataset import IGNORE_INDEX, Dataset, Split
from suffice.layers.basic import Dropout
from suffice.models import Translator, TranslatorConfig
from suffice.train import EvaluationScore, Training, TrainingRun


class Tiny(nn.Module):
    """A perceptron over images or, with a vocabulary, over the mean of valid tokens."""

    def __init__(
        self,
        *,
        seed: int = 0,
        dropout: float = 0.0,
        words: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(words, 16) if words else nn.Flatten()
        self.hidden = nn.Linear(16, 12)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(12, 6)
        self.to(dtype)

    def forward(self, inputs: Tensor, valid: Tensor | None = None) -> Tensor:
        x = self.embed(inputs)
        if valid is not None:
            x = (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        x = self.hidden(x.to(self.hidden.weight.dtype)).relu()
        return self.head(self.dropout(x))


class Each(Tiny):
    """The same perceptron over each token by itself."""

    def forward(self, inputs: Tensor, valid: Tensor | None = None) -> Tensor:
        x = self.hidden(self.embed(inputs).to(self.hidden.weight.dtype)).relu()
        return self.head(self.dropout(x))


def images(train: int = 23, validation: int = 9, test: int = 7, *, seed: int = 0) -> Dataset:
    """Six classes of uint8 4x4 images: the label is a bright pixel."""
    generator = torch.Generator().manual_seed(seed)

    def split(rows: int) -> Split:
        labels = torch.randint(0, 6, (rows,), generator=generator)
        inputs = torch.randint(0, 60, (rows, 16), generator=generator)
        inputs[torch.arange(rows), 2 * labels + 2] += 150
        return Split(inputs.to(torch.uint8).view(rows, 1, 4, 4), labels)

    return _dataset("images", split, train, validation, test, mean=40.0, std=50.0)


def tokens(train: int = 23, validation: int = 9, test: int = 7, *, seed: int = 0) -> Dataset:
    """Six classes of 5 tokens out of 10, the first of which is the label."""
    generator = torch.Generator().manual_seed(seed)

    def split(rows: int) -> Split:
        labels = torch.randint(0, 6, (rows,), generator=generator)
        inputs = torch.randint(6, 10, (rows, 5), generator=generator)
        inputs[:, 0] = labels
        lengths = torch.randint(1, 6, (rows, 1), generator=generator)
        return Split(inputs, labels, torch.arange(5) < lengths)

    return _dataset("tokens", split, train, validation, test)


def asking(train: int = 23, validation: int = 9, test: int = 7, *, seed: int = 0) -> Dataset:
    """Rows of 5 tokens out of 10 that ask at 1 to 5 of them: what the token is modulo 6."""
    generator = torch.Generator().manual_seed(seed)

    def split(rows: int) -> Split:
        inputs = torch.randint(0, 10, (rows, 5), generator=generator)
        labelled = torch.rand(rows, 5, generator=generator) < 0.4
        labelled[:, 2] |= ~labelled.any(dim=1)
        return Split(inputs, torch.where(labelled, inputs % 6, IGNORE_INDEX))

    return _dataset("asking", split, train, validation, test)


def pairs(train: int = 23, validation: int = 9, test: int = 7, *, seed: int = 0) -> Dataset:
    """Sources of 1 to 4 tokens from 3 to 8; a target is the source itself and an end, 1."""
    generator = torch.Generator().manual_seed(seed)

    def split(rows: int) -> Split:
        lengths = torch.randint(1, 5, (rows, 1), generator=generator)
        place = torch.arange(5)
        source = torch.randint(3, 9, (rows, 5), generator=generator)
        source = torch.where(place < lengths, source, 0)
        inputs = torch.cat([torch.full((rows, 1), 2), source[:, :-1]], dim=1)
        labels = torch.where(place < lengths, source, 1)
        labels = torch.where(place <= lengths, labels, IGNORE_INDEX)
        return Split(inputs, labels, place <= lengths, source, place < lengths)

    return _dataset("pairs", split, train, validation, test, classes=9)


def translator(
    *, seed: int = 0, dropout: float = 0.0, dtype: torch.dtype = torch.float32
) -> Translator:
    torch.manual_seed(seed)
    config = TranslatorConfig(
        source_vocabulary_size=9,
        target_vocabulary_size=9,
        length=5,
        d_model=8,
        mlp_width=16,
        decoder_depth=1,
        dropout=dropout,
    )
    causal = preset("super_attention", 8, 2, length=5, causal=True)
    both = preset("super_attention", 8, 2, length=5)
    return config.build(both, causal, both, dtype=dtype)


def _dataset(name, split, train, validation, test, classes=6, **numbers) -> Dataset:
    return Dataset(
        name=name,
        title=name,
        source="made up",
        train=split(train),
        validation=split(validation),
        test=split(test),
        num_classes=classes,
        **numbers,
    )


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def full(augment: str | None) -> Training:
    """Settings that use everything, on batches of 11, 11 and 1 of 23 rows."""
    return Training(
        epochs=4,
        batch_size=11,
        learning_rate=0.02,
        weight_decay=0.05,
        warmup=0.2,
        schedule="cosine",
        clip=0.8,
        label_smoothing=0.1,
        augment=augment,
    )


def record(run: TrainingRun, score: EvaluationScore) -> dict:
    """What a run and its score say, without the seconds, in flat lists of numbers."""
    epochs = [list(asdict(epoch).values())[:-2] for epoch in run.epochs]  # the last are seconds
    return {
        "epochs": [number for epoch in epochs for number in epoch],
        "best_epoch": run.best_epoch,
        "score": [score.loss, score.accuracy, score.top5, score.count],
    }
