"""`quantise`: a model's maps packed into fewer bits, in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
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
from suffice.quantise.report import Layer, Report, change
from suffice.quantise.rounding import Moments, carried, gather, rounded

MATRIX = 2  # dimensions


def maps_of(
    model: nn.Module, bits: int, group: int | None, skip: Sequence[str]
) -> tuple[dict[str, Scheme], dict[str, str]]:
    """Return the scheme of each map that can be packed, and why each other one cannot.

    Looked at are all modules with a matrix of their own.

    Args:
        model: not packed yet.
        bits: 16, 8 or 4.
        group: inputs with one scale; None = chosen for each map.
        skip: names of modules to leave alone; * stands for any part of a name.

    Raises:
        ConfigError: if bits or group are not legal, the model is packed already, an entry of skip
            fits no map, or none is left.
    """
    Scheme(bits=bits, group=DEFAULT.get(bits) if group is None else group)  # told once, not by map
    found = dict(_with_matrix(model))
    unused = [s for s in skip if not any(fnmatchcase(name, s) for name in found)]
    if unused:
        raise ConfigError(f"skip={unused[0]!r} fits none of {', '.join(found)}.")
    schemes: dict[str, Scheme] = {}
    skipped: dict[str, str] = {}
    for name, module in found.items():
        reason = "as asked" if any(fnmatchcase(name, s) for s in skip) else _why_not(name, module)
        try:
            if not reason:
                schemes[name] = Scheme.of(module.weight.shape[1], bits, group)
        except ConfigError as error:
            reason = str(error).rstrip(".")
        if reason:
            skipped[name] = reason
    if not schemes:
        firsts: dict[str, str] = {}  # each reason is told once, of the first it holds for
        for name, reason in skipped.items():
            firsts.setdefault(reason, name)
        reasons = "; ".join(f"{name}: {reason}" for reason, name in firsts.items())
        raise ConfigError(f"no map of this model can be packed ({reasons or 'it has none'}).")
    return schemes, skipped


def _with_matrix(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            raise ConfigError(f"the model is packed already ({name}); give the one it came from.")
        if any(p.dim() >= MATRIX for p in module.parameters(recurse=False)):
            yield name, module


def _why_not(name: str, module: nn.Module) -> str:
    if name.rpartition(".")[2] == "positions":
        return "positions are added to tokens; a few rows"
    if type(module) not in (Linear, nn.Linear, nn.Embedding):
        return f"{type(module).__name__} is no linear map of features"
    return ""


Step = Callable[[str, int, int], None]
CARRIES = 4  # bits in which errors are carried on; in 8 they are too small to matter


@torch.no_grad()
def quantise(
    model: nn.Module,
    bits: int = 8,
    group: int | None = None,
    *,
    calibration: Tensor | None = None,
    judged: Tensor | None = None,
    skip: Sequence[str] = (),
    step: Step = lambda _what, _done, _total: None,
) -> Report:
    """Pack the maps of a model into fewer bits, in place, and return what that changed.

    Linear maps and embeddings become `PackedLinear` and `PackedEmbedding`; what else the model
    has becomes float32. If this raises, the model is as it was.

    Args:
        model: a language model, or another one of `suffice.models`.
        bits: of a weight: 16, 8 or 4.
        group: inputs with one scale; None = up to 128 in 8 bits, up to 32 in 4 bits.
        calibration: int [B, T], tokens of text like that which the model will read. In 4 bits
            weights are rounded so that what maps make of it changes little; without it, so that
            weights change little.
        judged: int [B, T], tokens on which the change of the answers is measured; None = the
            calibration.
        skip: names of modules that stay as they are; * stands for any part of a name.
        step: told what is done, and how much of it.

    Raises:
        ConfigError: if bits or group are not legal, the model is packed already or no map fits, an
            entry of skip names none, weights are not finite, or text is given for a model that is
            no language model.
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
    schemes, skipped = maps_of(model, bits, group, skip)
    training = model.training
    model.eval()
    try:
        moments, text = None, calibration if judged is None else judged
        reads = model if text is None else _in_float32(model)
        if calibration is not None:
            taken = calibration[:, : model.config.length]
            moments = gather(reads, schemes, taken, lambda *n: step("reading text", *n))
        packed: dict[str, Packed] = {}
        errors: dict[str, float] = {}
        for number, (name, scheme) in enumerate(schemes.items()):
            step("rounding", number, len(schemes))
            one, errors[name], reason = _packed(name, model.get_submodule(name), scheme, moments)
            if reason:
                skipped[name] = reason
            else:
                packed[name] = one
        step("rounding", len(schemes), len(schemes))
        answers = None
        if text is not None:
            answers = change(reads, packed, text, lambda *n: step("comparing", *n))
    finally:
        model.train(training)
    layers = _layers(model, packed, skipped, errors)
    before = _bytes(model)
    for name, module in packed.items():
        replace_module(model, name, module)
    model.float()
    return Report(
        bits=bits,
        layers=layers,
        bytes_before=before,
        bytes_after=_bytes(model),
        calibration_tokens=0 if calibration is None else calibration.numel(),
        change=answers,
    )


def _in_float32(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in the precision that packed maps compute in."""
    if all(parameter.dtype is torch.float32 for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).float()


def _packed(
    name: str, module: nn.Module, scheme: Scheme, moments: Moments | None
) -> tuple[Packed | None, float, str]:
    """Return a packed module and its error, or why there is none."""
    weight = module.weight.detach().float()
    if not bool(weight.isfinite().all()):
        raise ConfigError(f"{name} holds weights that are no finite numbers; train the model anew.")
    looks = None if moments is None else moments[name]
    matrix = _matrix(weight, scheme, looks, carries=isinstance(module, nn.Linear))
    finite = matrix.scales if isinstance(matrix, Codes) else matrix
    if not bool(finite.isfinite().all()):
        return None, 0.0, f"weights up to {float(weight.abs().max()):.3g} exceed half precision"
    numbers = numbers_of(matrix) if isinstance(matrix, Codes) else matrix.float()
    kind = PackedEmbedding if isinstance(module, nn.Embedding) else PackedLinear
    return kind.of(matrix, getattr(module, "bias", None)), _error(weight, numbers, looks), ""


def _matrix(
    weight: Tensor, scheme: Scheme, looks: Tensor | None, *, carries: bool
) -> Codes | Tensor:
    """Return the matrix in its scheme.

    Rows of an embedding are also read one by one, so errors are not carried from input to input
    there: that keeps sums of products and gives up the numbers.
    """
    bits, group = scheme.bits, scheme.group
    if group is None:
        return weight.half()
    if looks is not None and carries and bits == CARRIES:
        codes, scales = carried(weight, bits, group, looks)
    else:
        codes, scales = rounded(weight, bits, group, None if looks is None else looks.diagonal())
    return in_panels(codes, scales, bits)


def _error(weight: Tensor, numbers: Tensor, looks: Tensor | None) -> float:
    """Return the root mean square of the change of outputs over that of outputs."""
    wrong = numbers - weight
    if looks is None:
        lost, whole = wrong.square().sum(), weight.square().sum()
    else:
        moments = (looks / looks.diagonal().max().clamp(min=1e-300)).to(weight.dtype)
        lost, whole = (((w @ moments) * w).sum() for w in (wrong, weight))
    return float((lost / whole.clamp(min=1e-30)).clamp(min=0.0).sqrt())


def _layers(
    model: nn.Module, packed: dict[str, Packed], skipped: dict[str, str], errors: dict[str, float]
) -> tuple[Layer, ...]:
    layers = []
    for name, module in model.named_modules():
        held = sum(p.nbytes for p in module.parameters(recurse=False))
        if name in packed:
            one = packed[name]
            layers.append(
                Layer(
                    name=name,
                    scheme=str(one.scheme),
                    kernel=one.kernel,
                    bytes_before=held,
                    bytes_after=one.nbytes,
                    error=errors[name],
                )
            )
        elif name in skipped:
            own = list(module.parameters(recurse=False))
            layers.append(
                Layer(
                    name=name,
                    scheme=str(own[0].dtype).removeprefix("torch."),
                    kernel="",
                    bytes_before=held,
                    bytes_after=4 * sum(p.numel() for p in own),
                    error=None,
                    skipped=skipped[name],
                )
            )
    return tuple(layers)


def _bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _check_text(model: nn.Module, *texts: Tensor | None) -> None:
    for name, text in zip(("calibration", "judged"), texts, strict=True):
        if text is None:
            continue
        if not isinstance(model, LM):
            raise ConfigError(
                f"{name} is text, and {type(model).__name__} is no language model; leave it out."
            )
        check_rows(name, text, None, None)
        if text.shape[1] < 2 or not len(text):  # noqa: PLR2004
            raise ConfigError(f"{name} has shape {list(text.shape)}; give rows of two tokens.")
