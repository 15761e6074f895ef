"""Training a language model: what is refused, what is put back, and the run between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers.dropout import Dropout
from suffice.text import TokenFile
from suffice.train import moment, sharded, shards
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.interrupt import noticing
from suffice.train.language.amount import Amount
from suffice.train.language.batch import Source, Windows, facts
from suffice.train.language.history import LMRun, Measured
from suffice.train.language.log import Log
from suffice.train.language.loss import CrossEntropy, Objective
from suffice.train.language.recompute import recomputing
from suffice.train.language.settings import LMTraining
from suffice.train.language.state import start
from suffice.train.language.steps import Steps
from suffice.train.progress import Progress, Silent
from suffice.train.resumable import check_place
from suffice.train.seeds import derive


def fit_lm(
    model: nn.Module,
    train: TokenFile | Source,
    validation: TokenFile,
    training: LMTraining,
    *,
    seed: int,
    device: str = "cpu",
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    save_every: float = 60.0,
    log: Path | None = None,
    tensorboard: Path | None = None,
    amount: Amount | None = None,
    keep: Callable[[Measured], None] | None = None,
    objective: Objective | None = None,
) -> LMRun:
    """Train a language model; it holds the weights of the lowest validation loss afterwards.

    The loss is the mean over the targets of the global batch: cross-entropy, unless an objective
    is given. Weights are chosen by cross-entropy on the validation text in either case. The rows
    are pure functions of (seed, step); the global random state of torch, behind dropout, is seeded
    from `seed` here. Initialising the model is the caller's. Micro-batches and several processes
    give the result of one within rounding (dropout draws anew for each micro-batch). Where
    `training.shard` cuts the weights between processes, that is done to a copy: the model stays
    where it is, whole, and is filled with the best weights whenever there are better ones.

    Ctrl-C lets the step in progress finish, writes the checkpoint and raises Interrupted; a second
    one interrupts at once. A resumed run ends with the very weights and history (but for seconds)
    of one that was never interrupted.

    Args:
        model: called as model(tokens, valid=..., segments=...) -> logits [B, T, V], with the marks
            that the rows have; moved to the device, its training flags are the same afterwards.
        train: what to learn from.
        validation: what the weights are chosen by.
        training: the settings.
        seed: of the rows and of dropout.
        device: "cpu" or "cuda".
        checkpoint: file for the state of the training, visible to every process; it is replaced
            unless `resume`. Sharded weights lie in a folder beside it, and any number of processes
            goes on from either, sharded or not. None writes nothing.
        resume: go on from the checkpoint.
        progress: told of every step; None is silent. Only the first process uses it.
        save_every: seconds between two checkpoints at least; written after a step, on Ctrl-C, and
            when the training ends.
        log: file for lines of JSON; only the first process writes.
        tensorboard: folder for TensorBoard's events; needs tensorboard.
        amount: of the validation text, for losses in bits.
        keep: called by the first process whenever the model's weights are the best so far.
        objective: what is lowered; None = cross-entropy.

    Raises:
        ConfigError: if the device is absent, resume is given without a checkpoint, nothing in the
            model learns, the rows of a micro-batch do not go round the processes, or the weights
            cannot be sharded.
        ShapeError: if the model's tables hold fewer tokens than the text, or shorter rows.
        CheckpointError: if the checkpoint cannot be written or read, or is of another run.
        StateError: if the loss is no longer finite; the last checkpoint is kept.
        Interrupted: on Ctrl-C.
    """
    check_place(checkpoint, resume=resume)
    processes, place = current(), resolve_device(device)
    source, lowered = _source(train, training, seed), objective or CrossEntropy()
    _refuse(model, validation, training, processes)
    torch.manual_seed(derive("dropout", seed))
    given, model = model, _trained(model, training, processes, place, checkpoint)
    data = {"train": source.facts, "validation": facts(validation)}
    if lowered.facts:  # a checkpoint of cross-entropy says nothing of it
        data["objective"] = dict(lowered.facts)
    state = start(model, training, data=data, seed=seed, device=place)
    if checkpoint is not None and resume:
        moment.read(checkpoint, state)
        if not processes.is_main:
            state.totals.zero_()  # the file holds the sums of all processes
    main = processes.is_main
    flags = [(module, module.training) for module in model.modules()]
    dropouts = [m for m in model.modules() if isinstance(m, Dropout)]
    lines = Log(log if main else None, tensorboard if main else None, step=state.step)
    try:
        with noticing() as interrupts, recomputing(model, training.checkpointing):
            return Steps(
                given=given,
                model=model,
                replica=processes.wrap(model, place),
                learned=[p for p in model.parameters() if p.requires_grad],
                dropouts=dropouts if processes.world_size > 1 else [],
                source=source,
                objective=lowered,
                validation=validation,
                training=training,
                state=state,
                processes=processes,
                device=place,
                checkpoint=checkpoint,
                save_every=save_every,
                progress=progress if progress is not None and main else Silent(),
                interrupts=interrupts,
                log=lines,
                amount=amount,
                keep=keep if main else None,
            ).run()
    finally:
        lines.close()
        for dropout in dropouts:
            dropout.rows = None
        for module, flag in flags:
            module.training = flag


def _trained(
    model: nn.Module,
    training: LMTraining,
    processes: Processes,
    place: torch.device,
    checkpoint: Path | None,
) -> nn.Module:
    """Return what the optimiser changes: the model, or a copy cut between the processes."""
    if not training.shard or processes.world_size == 1:
        return model.to(place)
    if checkpoint is not None:
        shards.check_torch()
    return sharded.shard(model, processes, place)


def _source(train: TokenFile | Source, training: LMTraining, seed: int) -> Source:
    if not isinstance(train, TokenFile):
        return train
    return Windows(
        train,
        training.batch_size,
        training.length,
        derive("windows", seed),
        separate=training.documents == "separate",
    )


def _refuse(
    model: nn.Module, validation: TokenFile, training: LMTraining, processes: Processes
) -> None:
    config = getattr(model, "config", None)
    known = getattr(config, "vocabulary_size", validation.header.vocabulary_size)
    if validation.header.vocabulary_size > known:
        raise ShapeError(
            f"the text has {validation.header.vocabulary_size:,} tokens and the model {known:,}; "
            "build the model for the tokenizer."
        )
    if training.batch_size // training.accumulate < processes.world_size:
        raise ConfigError(
            f"batch_size={training.batch_size} in accumulate={training.accumulate} micro-batches "
            f"leaves a process of {processes.world_size} without a row; give at least "
            f"{training.accumulate * processes.world_size} rows."
        )
