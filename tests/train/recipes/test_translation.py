from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.generate.translate import translate
from suffice.layers import Attention
from suffice.presets import PRESETS, is_always_causal
from suffice.train.recipes import recipe

# what looks at positions of one text cannot look at another one
ONE_TEXT = (
    "mla",
    "sliding_window",
    "mistral",
    "longformer",
    "etc",
    "bigbird",
    "star_transformer",
    "sparse_strided",
    "sparse_fixed",
    "xsa",
)
BOTH = [
    name
    for name in PRESETS
    if name not in (*ONE_TEXT, "linformer", "cla") and not is_always_causal(name)
]
LAYERS = {"standard": 4_198_400, "optimised": 3_148_800, "efficient": 2_099_200}


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_translation_is_that_of_version_2():
    paper = recipe("translation_es")
    with torch.device("meta"):
        model = paper.build("standard", 4)
    assert (len(model.encoder), len(model.decoder)) == (1, 2)
    for mechanism, parameters in LAYERS.items():
        specs = paper.specs(mechanism, 4)
        assert [spec.cost(paper.model.length).parameters for spec in specs] == [parameters] * 5
        assert [spec.pattern.causal for spec in specs] == [False, True, True, False, False]
        assert 93e6 < count(model) - 5 * (LAYERS["standard"] - parameters) < 105e6
    assert paper.training.epochs == 6


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_data_fit_the_model(scale):
    experiment = recipe("translation_es", scale=scale)
    options = dict(experiment.task_options)
    assert options["length"] == experiment.model.length
    assert options["vocabulary_size"] == experiment.model.source_vocabulary_size
    assert options["vocabulary_size"] == experiment.model.target_vocabulary_size


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_mechanism_translates_in_all_its_layers(mechanism):
    experiment = recipe("translation_es", scale="small")
    specs = experiment.specs(mechanism, 4)
    model = experiment.build(mechanism, 4).eval()
    built = [module.spec for module in model.modules() if isinstance(module, Attention)]
    assert sorted(map(repr, built)) == sorted(map(repr, specs))
    source = torch.randint(3, 50, (2, experiment.model.length))
    target = torch.randint(3, 50, (2, experiment.model.length))
    logits = model(source, target)
    assert logits.shape == (2, experiment.model.length, experiment.model.target_vocabulary_size)
    changed = target.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(model(source, changed)[:, :4], logits[:, :4], rtol=1e-4, atol=1e-4)
    message = translate(model, source, start=1, max_new_tokens=experiment.model.length)
    assert message.new.shape == (2, experiment.model.length)


@pytest.mark.parametrize("mechanism", ONE_TEXT)
def test_a_mechanism_of_one_text_is_refused(mechanism):
    with pytest.raises(ConfigError, match=rf"{mechanism} .* recipe translation_es: .*cross"):
        recipe("translation_es", scale="small").specs(mechanism, 4)


def test_layers_that_share_are_refused():
    with pytest.raises(ConfigError, match="shares=0"):
        recipe("translation_es", scale="small").specs("cla", 4)


def test_a_mechanism_that_sums_a_whole_text_is_refused():
    with pytest.raises(ConfigError, match="linformer .* recipe translation_es: LowRank sums"):
        recipe("translation_es", scale="small").specs("linformer", 4)
