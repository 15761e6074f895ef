"""A model of transformers with its Trainer, compared: which module of Python is a line from?"""

import inspect
import tempfile
from importlib import import_module

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import suffice

MODULES = ("argparse", "decimal", "email.message", "turtle")
LENGTH = 48


def rows():
    """Return lines of source as bytes, with the number of their module."""
    found = []
    for label, name in enumerate(MODULES):
        module = import_module("_pydecimal" if name == "decimal" else name)
        lines = {line.strip() for line in inspect.getsource(module).splitlines()}
        for line in sorted(line for line in lines if len(line) > 20)[:400]:
            ids = [2 + byte for byte in line.encode()[:LENGTH]]
            ids += [0] * (LENGTH - len(ids))
            mask = [int(id_ > 0) for id_ in ids]
            found.append({"input_ids": ids, "attention_mask": mask, "labels": label})
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    return [found[row] for row in order]


class Attention(nn.Module):
    """BERT's attention with its norm and residual, around a layer of this library."""

    def __init__(self, layer, norm):
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, hidden_states, attention_mask=None, **_):
        valid = None if attention_mask is None else attention_mask[:, 0, 0] >= 0  # [B, 1, 1, T]
        return self.norm(hidden_states + self.layer(hidden_states, valid=valid)), None


data = rows()
cut = len(data) * 3 // 4
config = BertConfig(
    vocab_size=258,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
    num_labels=len(MODULES),
    attn_implementation="eager",
)


def train(attention, seed):
    """Lines of Python by module, a small BERT and the Trainer of transformers"""
    model = BertForSequenceClassification(config)
    for block in model.bert.encoder.layer:
        block.attention = Attention(
            attention(32, 4, length=LENGTH), block.attention.output.LayerNorm
        )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            seed=seed,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data[:cut])
        trainer.train()
        answers = trainer.predict(data[cut:])
    right = answers.predictions.argmax(axis=1) == answers.label_ids
    return {"accuracy": right.mean(), "loss": answers.metrics["test_loss"]}


with tempfile.TemporaryDirectory() as out:
    print(suffice.compare(train, ["standard", "optimised"], seeds=3, margin=0.05, out=out))
