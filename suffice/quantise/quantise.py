"""`quantise`: pack a model's weights into fewer bits, in place.

Weights are rounded to codes with a scale for each group of inputs: to the nearest code, or by GPTQ.
Letters: N outputs, K inputs, C groups of inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers.inputs import check_rows
from suffice.layers.packed import DEFAULT, Packed, PackedEmbedding, PackedLinear, Scheme
from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.ops.linear import Linear
from suffice.ops.native.matrix import Codes, in_panels, numbers_of
from suffice.quantise.report import QuantisationReport, QuantisedLayer, measure_change

SCALES = {8: (1.0,), 4: (0.68, 0.76, 0.82, 0.88, 0.92, 0.96, 1.0)}  # tried, of the full range
ROUNDING_BATCH = 1 << 20  # weights rounded at once, so that they stay in the CPU's cache
DAMPING = 0.01  # of the mean square of the inputs, added to each, as inputs may be collinear
ROWS = 16  # of text, computed at once
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
) -> QuantisationReport:
    """Quantise the weights of a model in place, and return a report of the changes.

    Linear maps and embeddings become `PackedLinear` and `PackedEmbedding`; all other parameters
    become float32. If this raises, the model is unchanged.

    Args:
        model: a language model, or another one of `suffice.models`.
        bits: bits per weight: 16, 8 or 4.
        group: inputs with one scale; None: up to 128 in 8 bits, up to 32 in 4 bits.
        calibration: int [B, T], tokens of text like that which the model will read. In 4 bits
            weights are rounded so that outputs on it change little; without it, so that weights
            change little.
        judged: int [B, T], tokens on which the change of predictions is measured; None uses the
            calibration.
        skip: names of modules to leave alone; * stands for any part of a name.
        step: function called with the name of the stage, the items done and their number.

    Raises:
        ConfigError: if bits or group are not legal, the model is packed already or no map fits, an
            entry of skip matches none, weights are not finite, or text is given for a model that
            is not a language model.
        ShapeError: if calibration or judged are not rows of tokens.

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
            calibration = calibration[:, : model.config.length]
            stats = calibrate(reader, schemes, calibration, lambda *n: step("reading text", *n))
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
    return QuantisationReport(
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
                f"{name} is text, and {type(model).__name__} is not a language model; leave it out."
            )
        check_rows(name, text)
        if text.shape[1] < 2 or not len(text):  # noqa: PLR2004
            raise ConfigError(f"{name} has shape {list(text.shape)}; give rows of two tokens.")


def _schemes_of(
    model: nn.Module, bits: int, group: int | None, skip: Sequence[str]
) -> tuple[dict[str, Scheme], dict[str, str]]:
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
        excluded = any(fnmatchcase(name, s) for s in skip)
        try:
            if reason := "as asked" if excluded else _unpackable(name, module):
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
    if name.rpartition(".")[2] == "router":
        return "a router chooses experts, and rounding would change its choice; a few rows"
    if type(module) not in (Linear, nn.Linear, nn.Embedding):
        return f"{type(module).__name__} is not a linear map of features"
    return None


def _in_float32(model: nn.Module) -> nn.Module:
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
        raise ConfigError(f"{name} holds non-finite weights; train the model again.")
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
    rounded = numbers_of(matrix) if isinstance(matrix, Codes) else matrix.float()
    if gram is None:
        change, total = (rounded - weight).square().sum(), weight.square().sum()
    else:
        gram = (gram / gram.diagonal().max().clamp(min=1e-300)).to(weight.dtype)
        change, total = (((w @ gram) * w).sum() for w in (rounded - weight, weight))
    return float((change / total.clamp(min=1e-30)).clamp(min=0.0).sqrt())


def _layers(
    model: nn.Module, packed: dict[str, Packed], skipped: dict[str, str], errors: dict[str, float]
) -> tuple[QuantisedLayer, ...]:
    layers = []
    for name, module in model.named_modules():
        if name not in packed and name not in skipped:
            continue
        parameters = list(module.parameters(recurse=False))
        if name in packed:
            scheme, kernel = str(packed[name].scheme), packed[name].kernel
            after = packed[name].nbytes
        else:
            scheme, kernel = str(parameters[0].dtype).removeprefix("torch."), ""
            after = 4 * sum(p.numel() for p in parameters)
        layer = QuantisedLayer(
            name=name,
            scheme=scheme,
            kernel=kernel,
            bytes_before=sum(p.nbytes for p in parameters),
            bytes_after=after,
            error=errors.get(name),
            skipped=skipped.get(name, ""),
        )
        layers.append(layer)
    return tuple(layers)


def _nbytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


@torch.no_grad()
def calibrate(
    lm: LM, names: Iterable[str], tokens: Tensor, step: Callable[[int, int], None]
) -> CalibrationStats:
    """Return the statistics of the inputs of the named maps on tokens int [B, T].

    "embedding.tokens" stands for a tied head; step is called with the rows done and all rows.
    """
    stats, hooks = CalibrationStats(), []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: stats.add(name, inputs[0])

    head = "embedding.tokens" if lm.head is None else "head"
    names = list(names)
    try:
        for name in names:
            if name not in ("head", "embedding.tokens"):
                hooks.append(lm.get_submodule(name).register_forward_pre_hook(hook(name)))
        for done, rows in enumerate(tokens.split(ROWS)):
            features = lm.features(rows.to(lm.device))
            if head in names:
                stats.add(head, features)
            step(min((done + 1) * ROWS, len(tokens)), len(tokens))
    finally:
        for handle in hooks:
            handle.remove()
    stats.last = None
    return stats


class CalibrationStats:
    """The Gram matrix, [K, K] in float64, of each map's inputs; maps of one tensor share it."""

    def __init__(self) -> None:
        self.grams: dict[str, Tensor] = {}
        self.shared: dict[str, str] = {}  # for each map, the first one with the same inputs
        self.last: tuple[Tensor, str] | None = None

    def __getitem__(self, name: str) -> Tensor | None:
        """Return the matrix of a map, None if it read nothing."""
        return self.grams.get(self.shared.get(name, name))

    def add(self, name: str, x: Tensor) -> None:
        """Add the inputs [..., K] of a map."""
        if name not in self.shared:
            same = self.last is not None and self.last[0] is x
            self.shared[name] = self.last[1] if same else name
        if self.shared[name] == name:
            rows = x.detach().flatten(0, -2).double()
            self.grams[name] = self.grams.get(name, 0.0) + rows.t() @ rows
            self.last = x, name


def round_to_nearest(
    weight: Tensor, bits: int, group: int, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the codes of a matrix and their scales, each weight rounded to the nearest code.

    Codes are int32 [N, K], 0 to 2^bits - 1, scales float16 [N, C]. Of several scales, each group
    takes the one with the least squared error, weighted by `importance` [K]. In 4 bits, where one
    more level matters, a scale may be negative: codes reach one step further down than up.
    """
    inputs = weight.shape[1]
    if importance is not None:
        importance = importance.view(-1, group).to(weight.dtype)
    codes, scales = [], []
    for rows in weight.split(max(ROUNDING_BATCH // inputs, 1)):
        groups = rows.view(len(rows), -1, group)
        scale = best_scales(groups, bits, importance)
        codes.append(codes_of(groups, scale[..., None], bits).flatten(1))
        scales.append(scale)
    return torch.cat(codes), torch.cat(scales)


def best_scales(groups: Tensor, bits: int, importance: Tensor | None = None) -> Tensor:
    """Return a scale for each group [..., group]; importance broadcasts to the groups."""
    levels = 1 << (bits - 1)
    widest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))[..., 0]
    if bits == 8:  # noqa: PLR2004
        ranges = [widest.abs() / (levels - 1)]
    else:
        ranges = [widest / (levels - 1), widest / -levels]
    best = least = None
    for scale in (full * fraction for full in ranges for fraction in SCALES[bits]):
        scale = scale.half()
        exact = scale.to(groups.dtype)[..., None]  # products in half precision hide the error
        rounded = (codes_of(groups, exact, bits) - levels) * exact
        error = (rounded - groups).square()
        error = (error if importance is None else error * importance).sum(dim=-1)
        if best is None:
            best, least = scale, error
        else:
            best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best


def codes_of(weights: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return the codes nearest to weights, int32; the middle one where the scale is 0."""
    levels = 1 << (bits - 1)
    scales = scales.to(weights.dtype)
    codes = (weights / torch.where(scales == 0, torch.inf, scales)).round()
    return (codes.clamp(-levels, levels - 1) + levels).to(torch.int32)


def gptq(weight: Tensor, bits: int, group: int, gram: Tensor) -> tuple[Tensor, Tensor]:
    """GPTQ: round columns in order and spread each error over the rest.

    This keeps the outputs of the map rather than its weights. `gram` [K, K] is the sum of x x^T
    over inputs x. Codes and scales are as of `round_to_nearest`.

    Source: Frantar et al. 2023, arXiv:2210.17323, section 3, in the order of the inputs. Differs:
        the scale of a group is chosen for the least error after the inputs before it are rounded.
    """
    factor = _inverse_factor(gram)
    remaining = weight.double()
    codes, scales = [], []
    for begin in range(0, weight.shape[1], group):
        columns = slice(begin, begin + group)
        inner = factor[columns, columns]
        part = remaining[:, columns].clone()
        scale = best_scales(part, bits, inner.diagonal() ** -2)
        errors = torch.zeros_like(part)
        for i in range(group):
            code = codes_of(part[:, i], scale, bits)
            codes.append(code)
            rounded = (code - (1 << (bits - 1))) * scale.double()
            errors[:, i] = (part[:, i] - rounded) / inner[i, i]
            part[:, i + 1 :] -= errors[:, i, None] * inner[i, i + 1 :]
        remaining[:, begin + group :] -= errors @ factor[columns, begin + group :]
        scales.append(scale)
    return torch.stack(codes, dim=1), torch.stack(scales, dim=1)


def _inverse_factor(gram: Tensor) -> Tensor:
    """Return the upper Cholesky factor [K, K] of the inverse of the damped Gram matrix."""
    gram = gram.double()
    mean = gram.diagonal().mean()
    identity = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    damped = gram / torch.where(mean > 0, mean, 1.0) + identity * (DAMPING if mean > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
