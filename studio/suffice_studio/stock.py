"""Stock models of transformers that the studio shows without converting them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suffice.data.dataset import ImagePreparation
from suffice.errors import CheckpointError
from suffice.models.folder import PREPROCESSOR
from suffice.utils.files import read_json

SIZES = {"vocabulary_size": "vocab_size", "length": "max_position_embeddings"}
SIZES |= {"depth": "num_hidden_layers", "channels": "num_channels"}  # names here and there
INPUTS = ("input_ids", "pixel_values")  # of models that are shown
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # nothing is fetched or executed


@dataclass(frozen=True, kw_only=True, eq=False)
class StockModel:
    """A model of transformers in evaluation mode, in float32."""

    network: Any  # the model, whose config has the names in `SIZES`, too
    tokenizer: Any  # tokenizer of transformers; None where its folder holds none
    # preparation of pixels of 0 to 1; None where the folder does not tell
    preparation: ImagePreparation | None

    def generate(self, ids: list[int], count: int) -> list[int]:
        """Return ids with the most probable continuation of at most `count` tokens."""
        prompt, options = torch.tensor([ids]), {"do_sample": False, "num_beams": 1}
        options |= {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
        return self.network.generate(prompt, max_new_tokens=count, **options)[0].tolist()


def open_stock(path: Path, described: dict[str, Any]) -> StockModel:
    """Open the model of transformers that a config.json describes, from the folder's safetensors.

    Raises:
        CheckpointError: if transformers cannot open it, or it reads no text and no square image.
    """
    import transformers

    tokenizer, preparation = None, None
    try:
        kind: Any = getattr(transformers, str(described["architectures"][0]), None)
        if transformers.PreTrainedModel not in getattr(kind, "__mro__", ()):
            raise ValueError(f"transformers has no model {described['architectures']!r:.80}")
        network, loading = kind.from_pretrained(
            path, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **LOCAL
        )
        if any((path / name).is_file() for name in VOCABULARIES):
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, **LOCAL)
        if (path / PREPROCESSOR).is_file():
            pixels = read_json(path / PREPROCESSOR)
            mean, std = tuple(pixels["image_mean"]), tuple(pixels["image_std"])
            preparation = ImagePreparation(mean=mean, std=std, white=1.0)
    except (ValueError, OSError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise CheckpointError(f"{path.name} cannot be opened ({error!s:.300}).") from error
    if missing := loading["missing_keys"]:  # which would be drawn at random
        raise CheckpointError(f"{path.name} lacks the weights {min(missing)}; give it whole.")
    config, text = network.config, network.config.get_text_config()
    for ours, theirs in SIZES.items():
        setattr(config, ours, getattr(text, theirs, None))
    config.length = config.length or 1 << 20  # of a recurrence
    alone = text is config or network.can_generate()  # and not with an image, as CLIP reads it
    legal = alone and network.main_input_name in INPUTS and not config.is_encoder_decoder
    sizes = getattr(config, "image_size", config.vocabulary_size), getattr(config, "patch_size", 1)
    if not legal or any(type(size) is not int for size in sizes):
        raise CheckpointError(f"{path.name} reads neither a text nor a square image alone.")
    return StockModel(network=network, tokenizer=tokenizer, preparation=preparation)
