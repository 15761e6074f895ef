"""`quantise`: pack a model's weights into fewer bits, in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers.packed import DEFAULT, Packed, PackedEmbedding, PackedLinear, Scheme
from suffice.models import LM
from suffice.models.embedding import check_rows
from suffice.models.packed import replace_module
from suffice.ops.linear import Linear
from suffice.ops.native.matrix import Codes, in_panels, numbers_of
from suffice.quantise.report import Layer, Report, measure_change
from suffice.quantise.rounding import calibrate, gptq, round_to_nearest

Step = Callable[[str, int, int], None]
GPTQ_BITS = 4  # in 8 bits errors are too small for GPTQ to matter


@torch.no_grad()
def quantise(
    model: nn.Module,
    bits: int = 8,
    group: int | None = None,
    *,
    calibration: Tensor | None = None,
    judged: Tensor | None = None,
    skip: Sequence[str] = (),
    step: Step = lambda _stage, _done, _total: None,
) -> Report:
    """Quantise the weights of a model in place, and return what that changed.

    Linear maps and embeddings become `PackedLinear` and `PackedEmbedding`; all other parameters
    become float32. If this raises, the model is unchanged.

    Args:
        model: a language model, or another one of `suffice.models`.
        bits: of a weight: 16, 8 or 4.
        group: inputs with one scale; None = up to 128 in 8 bits, up to 32 in 4 bits.
        calibration: int [B, T], tokens of text like that which the model will read. In 4 bits
            weights are rounded so that outputs on it change little; without it, so that weights
            change little.
        judged: int [B, T], tokens on which the change of predictions is measured; None = the
            calibration.
        skip: names of modules to leave alone; * stands for any part of a name.
        step: called with the name of the stage, the items done and their number.

    Raises:
        ConfigError: if bits or group are not legal, the model is packed already or no map fits, an
            entry of skip matches none, weights are not finite, or text is given for a model that
            is no language model.
        ShapeError: if calibration or judged are no rows of tokens.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=32, depth=1, mlp_width=64)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 32, 2, causal=True))
        >>> report = quantise(lm, bits=4)
        >>> report.layers[0].scheme, lm(torch.tensor([[1, 2]])).shape
        ('int4/32', torch.Size([1, 2, 9]))
    """
    _check_text(model, calibration, judged)
    schemes, skipped = _schemes_of(model, bits, group, skip)
    training = model.training
    model.eval()
    try:
        stats, text = None, calibration if judged is None else judged
        reader = model if text is None else _in_float32(model)
        if calibration is not None:
            rows = calibration[:, : model.config.length]
            stats = calibrate(reader, schemes, rows, lambda *n: step("reading text", *n))
        packed: dict[str, Packed] = {}
        errors: dict[str, float] = {}
        for number, (name, scheme) in enumerate(schemes.items()):
            step("rounding", number, len(schemes))
            module, gram = model.get_submodule(name), None if stats is None else stats[name]
            matrix = _quantised(name, module, scheme, gram)
            if isinstance(matrix, str):
                skipped[name] = matrix
                continue
            kind = PackedEmbedding if isinstance(module, nn.Embedding) else PackedLinear
            packed[name] = kind.of(matrix, getattr(module, "bias", None))
            errors[name] = _output_error(module.weight.detach().float(), matrix, gram)
        step("rounding", len(schemes), len(schemes))
        change = None
        if text is not None:
            change = measure_change(reader, packed, text, lambda *n: step("comparing", *n))
    finally:
        model.train(training)
    layers = _layers(model, packed, skipped, errors)
    before = _nbytes(model)
    for name, module in packed.items():
        replace_module(model, name, module)
    model.float()
    return Report(
        bits=bits,
        layers=layers,
        bytes_before=before,
        bytes_after=_nbytes(model),
        calibration_tokens=0 if calibration is None else calibration.numel(),
        change=change,
    )


def _check_text(model: nn.Module, calibration: Tensor | None, judged: Tensor | None) -> None:
    for name, text in (("calibration", calibration), ("judged", judged)):
        if text is None:
            continue
        if not isinstance(model, LM):
            raise ConfigError(
                f"{name} is text, and {type(model).__name__} is no language model; leave it out."
            )
        check_rows(name, text, None, None)
        if text.shape[1] < 2 or not len(text):  # noqa: PLR2004
            raise ConfigError(f"{name} has shape {list(text.shape)}; give rows of two tokens.")


def _schemes_of(
    model: nn.Module, bits: int, group: int | None, skip: Sequence[str]
) -> tuple[dict[str, Scheme], dict[str, str]]:
    """Return the scheme of each module with a matrix, and why others cannot be packed."""
    # once for all modules; below, group=None depends on the module
    Scheme(bits=bits, group=DEFAULT.get(bits) if group is None else group)
    modules = {}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            raise ConfigError(f"the model is packed already ({name}); give the one it came from.")
        if any(p.dim() > 1 for p in module.parameters(recurse=False)):
            modules[name] = module
    unused = [s for s in skip if not any(fnmatchcase(name, s) for name in modules)]
    if unused:
        raise ConfigError(f"skip={unused[0]!r} fits none of {', '.join(modules)}.")
    schemes: dict[str, Scheme] = {}
    skipped: dict[str, str] = {}
    for name, module in modules.items():
        asked = any(fnmatchcase(name, s) for s in skip)
        try:
            if reason := "as asked" if asked else _unpackable(name, module):
                skipped[name] = reason
            else:
                schemes[name] = Scheme.of(module.weight.shape[1], bits, group)
        except ConfigError as error:
            skipped[name] = str(error).rstrip(".")
    if not schemes:
        first_of: dict[str, str] = {}  # the first module of each reason
        for name, reason in skipped.items():
            first_of.setdefault(reason, name)
        reasons = "; ".join(f"{name}: {reason}" for reason, name in first_of.items())
        raise ConfigError(f"no map of this model can be packed ({reasons or 'it has none'}).")
    return schemes, skipped


def _unpackable(name: str, module: nn.Module) -> str | None:
    if name.rpartition(".")[2] == "positions":
        return "positions are added to tokens; a few rows"
    if type(module) not in (Linear, nn.Linear, nn.Embedding):
        return f"{type(module).__name__} is no linear map of features"
    return None


def _in_float32(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in the precision that packed maps compute in."""
    if all(parameter.dtype is torch.float32 for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).float()


def _quantised(
    name: str, module: nn.Module, scheme: Scheme, gram: Tensor | None
) -> Codes | Tensor | str:
    """Return the matrix of a module in its scheme, or why there is none.

    GPTQ keeps products with the matrix at the cost of single weights, so it does not suit
    embeddings, whose rows are also read one by one.
    """
    weight = module.weight.detach().float()
    if not bool(weight.isfinite().all()):
        raise ConfigError(f"{name} holds weights that are no finite numbers; train the model anew.")
    bits, group = scheme.bits, scheme.group
    if group is None:
        matrix = halves = weight.half()
    else:
        if gram is not None and bits == GPTQ_BITS and isinstance(module, nn.Linear):
            codes, scales = gptq(weight, bits, group, gram)
        else:
            importance = None if gram is None else gram.diagonal()
            codes, scales = round_to_nearest(weight, bits, group, importance)
        matrix = in_panels(codes, scales, bits)
        halves = matrix.scales
    if not bool(halves.isfinite().all()):
        return f"weights up to {float(weight.abs().max()):.3g} exceed half precision"
    return matrix


def _output_error(weight: Tensor, matrix: Codes | Tensor, gram: Tensor | None) -> float:
    """Return the root mean square of the change of outputs over that of outputs."""
    rounded = numbers_of(matrix) if isinstance(matrix, Codes) else matrix.float()
    if gram is None:
        change, total = (rounded - weight).square().sum(), weight.square().sum()
    else:
        gram = (gram / gram.diagonal().max().clamp(min=1e-300)).to(weight.dtype)
        change, total = (((w @ gram) * w).sum() for w in (rounded - weight, weight))
    return float((change / total.clamp(min=1e-30)).clamp(min=0.0).sqrt())


def _layers(
    model: nn.Module, packed: dict[str, Packed], skipped: dict[str, str], errors: dict[str, float]
) -> tuple[Layer, ...]:
    layers = []
    for name, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        before = sum(p.nbytes for p in parameters)
        if name in packed:
            layers.append(
                Layer(
                    name=name,
                    scheme=str(packed[name].scheme),
                    kernel=packed[name].kernel,
                    bytes_before=before,
                    bytes_after=packed[name].nbytes,
                    error=errors[name],
                )
            )
        elif name in skipped:
            layers.append(
                Layer(
                    name=name,
                    scheme=str(parameters[0].dtype).removeprefix("torch."),
                    kernel="",
                    bytes_before=before,
                    bytes_after=4 * sum(p.numel() for p in parameters),
                    error=None,
                    skipped=skipped[name],
                )
            )
    return tuple(layers)


def _nbytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
