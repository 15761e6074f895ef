"""Training through transformers: losses, checkpointing, Trainer, adapters, other heads."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from suffice.errors import ConfigError
from suffice.hf import (
    SufficeForCausalLM,
    SufficeForImageClassification,
    SufficeForSequenceClassification,
    SufficeViTConfig,
    lora_targets,
)
from suffice.hf.cache import CACHE_NAME
from suffice.testing import assert_close
from tests.hf.small import MECHANISMS, config, left_padded, model, tokens

QUIET = "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"


def gradients(of, **options):
    of.zero_grad()
    of(tokens(), labels=tokens(), **options).loss.backward()
    return {name: p.grad.clone() for name, p in of.named_parameters() if p.grad is not None}


def test_the_loss_is_of_the_next_token():
    made, ids = model("gqa"), tokens()
    out = made(ids, labels=ids)
    want = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert_close(out.loss, want)
    assert_close(made(ids, labels=ids, num_items_in_batch=32).loss, want * 16 / 32)
    following = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    assert_close(made(ids, shift_labels=following).loss, want)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable", *QUIET)
def test_reentrant_checkpointing_cannot_reach_shared_keys():
    made = model("cla").train()
    made.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ConfigError, match="use_reentrant"):
        made(tokens(), labels=tokens())


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_checkpointing_changes_no_gradient(mechanism):
    made = model(mechanism).train()
    want = gradients(made)
    made.gradient_checkpointing_enable()
    calls = []
    made.model.blocks[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    got = gradients(made)
    assert len(calls) == 2
    assert want.keys() == got.keys()
    for name, gradient in want.items():
        assert_close(got[name], gradient)
    assert made(tokens()).get(CACHE_NAME) is None
    with pytest.raises(ConfigError, match="use_cache with gradient checkpointing"):
        made(tokens(), use_cache=True)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        ids = (torch.arange(12) * (1 + number % 3) + number) % 50
        return {"input_ids": ids, "labels": ids}


def trained(of, folder, data=None, *, evaluated=None, batch=8, compute_metrics=None, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=options.pop("max_steps", 12),
        per_device_train_batch_size=batch,
        learning_rate=3e-3,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy=options.pop("save_strategy", "no"),
        logging_strategy="no",
        **options,
    )
    trainer = Trainer(
        model=of,
        args=arguments,
        train_dataset=data or Rows(),
        eval_dataset=evaluated,
        compute_metrics=compute_metrics,
    )
    return trainer, trainer.train().training_loss


@pytest.mark.filterwarnings(*QUIET)
def test_trainer(tmp_path):
    made = SufficeForCausalLM(config("efficient"))
    first = made(Rows()[0]["input_ids"][None], labels=Rows()[0]["input_ids"][None]).loss.item()
    trainer, _ = trained(made, tmp_path, gradient_accumulation_steps=2, gradient_checkpointing=True)
    ids = Rows()[0]["input_ids"][None]
    assert made.eval()(ids, labels=ids).loss.item() < first - 0.2
    trainer.save_model(tmp_path / "kept")
    read = SufficeForCausalLM.from_pretrained(tmp_path / "kept")
    assert torch.equal(read(ids).logits, made(ids).logits)


class Classes(torch.utils.data.Dataset):
    """Texts of two classes, told apart by their last token, 1 or 2."""

    def __len__(self):
        return 16

    def __getitem__(self, number):
        ids = torch.randint(3, 50, (8,), generator=torch.Generator().manual_seed(number))
        ids[-1] = 1 + number % 2
        return {"input_ids": ids, "labels": number % 2}


class Pictures(torch.utils.data.Dataset):
    """Images of two classes, dark and bright."""

    def __len__(self):
        return 16

    def __getitem__(self, number):
        noise = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(number))
        return {"pixel_values": noise + 2 * (number % 2), "labels": number % 2}


def classifier(kind):
    if kind == "text":
        return SufficeForSequenceClassification(config("gqa", num_labels=2, pad_token_id=0))
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_channels": 3}
    return SufficeForImageClassification(
        SufficeViTConfig(**sizes, num_labels=2, num_attention_heads=2)
    )


@pytest.mark.filterwarnings(*QUIET)
@pytest.mark.parametrize(("kind", "data"), [("text", Classes()), ("image", Pictures())])
def test_trainer_of_classifiers(kind, data, tmp_path):
    """Accumulated halves of a batch train as the batch does, and evaluating counts the classes."""
    kept = []
    for batch, halves in ((8, 1), (4, 2)):
        torch.manual_seed(0)
        made = classifier(kind)
        trainer, loss = trained(
            made, tmp_path, data, evaluated=data, max_steps=20, batch=batch,
            gradient_accumulation_steps=halves,
            compute_metrics=lambda p: {"right": (p.predictions.argmax(-1) == p.label_ids).mean()},
        )  # fmt: skip
        assert trainer.evaluate()["eval_right"] == 1.0
        kept.append(loss)
    assert kept[0] == pytest.approx(kept[1], abs=1e-4)


@pytest.mark.filterwarnings(*QUIET)
@pytest.mark.parametrize("mechanism", ["standard", "optimised", "efficient"])
def test_lora_on_every_projection(mechanism, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    made, ids = model(mechanism), tokens()
    want = made(ids).logits
    targets = lora_targets(made)
    assert len(targets) == 2 * {"standard": 4, "optimised": 3, "efficient": 2}[mechanism]
    made = peft.get_peft_model(made, peft.LoraConfig(r=2, target_modules=targets))
    assert_close(made(ids).logits, want)
    trainable = [p for p in made.parameters() if p.requires_grad]
    assert len(trainable) == 2 * len(targets)
    optimiser = torch.optim.SGD(trainable, lr=1.0)
    for _ in range(3):
        made(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
    got = made(ids).logits
    assert (got - want).abs().max() > 1e-3
    made.save_pretrained(tmp_path)
    read = peft.PeftModel.from_pretrained(model(mechanism), tmp_path)
    assert_close(read(ids).logits, got)
    merged = read.merge_and_unload()
    assert_close(merged(ids).logits, got, n=32)
    assert_close(merged.to_suffice()(ids), got, n=32)


def test_texts_are_classified_at_their_last_real_token():
    torch.manual_seed(0)
    made = SufficeForSequenceClassification(config("gqa", num_labels=3, pad_token_id=0)).eval()
    ids, mask = left_padded()
    ids = ids.clamp(min=1) * mask
    got = made(ids, attention_mask=mask, labels=torch.tensor([0, 2]))
    assert got.logits.shape == (2, 3)
    assert_close(got.logits[1:], made(ids[1:, 4:]).logits)
    right = torch.cat([ids[1:, 4:], torch.zeros(1, 3, dtype=torch.long)], dim=1)
    assert_close(made(right, attention_mask=(right != 0).long()).logits, got.logits[1:])
    got.loss.backward()
    assert made.score.weight.grad.abs().max() > 0
    assert AutoModelForSequenceClassification.from_config(made.config).num_labels == 3


@pytest.mark.parametrize("mechanism", ["standard", "super_attention", "performer"])
def test_images_are_classified(mechanism):
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_channels": 3}
    made = SufficeForImageClassification(
        SufficeViTConfig(**sizes, mechanism=mechanism, num_labels=4, num_attention_heads=2)
    ).eval()
    images = torch.randn(2, 3, 8, 8)
    out = made(pixel_values=images, labels=torch.tensor([1, 3]))
    assert_close(out.logits, made.vit(images), "exact")
    assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits, torch.tensor([1, 3])))
    assert made(images).loss is None
    assert made.config.attention_specs()[0].pattern.causal is False


def test_dropout_is_part_of_the_configuration():
    made, ids = model(hidden_dropout=0.5), tokens()
    assert torch.equal(made(ids).logits, made(ids).logits)
    made.train()
    assert not torch.equal(made(ids).logits, made(ids).logits)


def test_a_cache_while_training_is_returned_on_request():
    made = model().train()
    assert made(tokens()).get(CACHE_NAME) is None
    assert made(tokens(), use_cache=True)[CACHE_NAME].get_seq_length() == 9
    with pytest.raises(ConfigError, match="does not accept surprise"):
        made(tokens(), surprise=1)
