"""The seeded bugs: each changes one line so that results are wrong and nothing raises.

An entry finds its line by a short text that occurs in its file exactly once. After sources are
renamed or moved, `python -m tests.mutants` lists the stale entries: update `file`, `original`,
`replacement` and `tests`, and keep the bug.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One bug.

    Args:
        file: path of the source file, from the root of the project.
        original: text that occurs in the file exactly once.
        replacement: text with the bug.
        tests: paths of the tests that should fail, separated by spaces; the doctests of a Python
            file run as well.
        effect: what goes wrong.
    """

    file: str
    original: str
    replacement: str
    tests: str
    effect: str

    @property
    def native(self) -> bool:
        """Whether the file has to be compiled."""
        return not self.file.endswith(".py")

    @property
    def test_paths(self) -> tuple[str, ...]:
        """The arguments of pytest."""
        return (*self.tests.split(), *(() if self.native else (self.file,)))


BUGS = (
    Bug(
        "suffice/patterns/local.py",
        "Window((self.size - 1) // step + 1)",
        "Window(self.size // step + 1)",
        "tests/patterns tests/definitions/test_window.py",
        "a window that counts in steps reaches one step too far",
    ),
    Bug(
        "suffice/patterns/sparse.py",
        "(words >> by) & ((1 << (64 - by)) - 1)",
        "(words >> by) & ((1 << (63 - by)) - 1)",
        "tests/definitions/test_random.py tests/patterns",
        "random keys differ from those of the documented hash",
    ),
    Bug(
        "suffice/mixing/alignments.py",
        "(column >= 0) & (k <= q) & (k >= 0)",
        "(column >= 0) & (k >= 0)",
        "tests/definitions/test_sparse_alignments.py tests/mixing tests/layers/test_state.py",
        "a streamed Toeplitz map reads values that come later",
    ),
    Bug(
        "suffice/mixing/base.py",
        "(self.valid.long().cumsum(dim=1) - 1).clamp(min=0)",
        "self.valid.long().cumsum(dim=1).clamp(min=0)",
        "tests/mixing tests/definitions/test_alignment.py tests/product/test_conformance.py",
        "real tokens behind padding get the mixed value of their neighbour",
    ),
    Bug(
        "suffice/encoders/base.py",
        "m.outputs * spec.bias",
        "m.inputs * spec.bias",
        "tests/encoders tests/spec/test_cost.py tests/presets/test_parameter_counts.py",
        "biases are counted by a map's inputs instead of its outputs",
    ),
    Bug(
        "suffice/kernels/features.py",
        "keepdim=True) * (0.5 * self.scale)",
        "keepdim=True) * 0.5",
        "tests/kernels tests/definitions/test_favor.py",
        "the norm of a key is taken out without the scale",
    ),
    Bug(
        "suffice/positions/rope.py",
        "max(first, 0), min(last, features - 1)",
        "max(first, 0), min(last, features // 2 - 1)",
        "tests/positions",
        "YaRN's ramp ends too early for slow pairs",
    ),
    Bug(
        "suffice/memory/rolling.py",
        "return self.oldest <= remaining - min(self.window - 1, remaining)",
        "return self.oldest <= remaining",
        "tests/memory tests/layers/test_state.py",
        "a rolling memory drops tokens although the positions before their window are gone",
    ),
    Bug(
        "suffice/memory/quantised.py",
        "/ (2**bits - 1)",
        "/ 2**bits",
        "tests/memory tests/layers/test_state.py",
        "the largest number of a range gets the code of the least",
    ),
    Bug(
        "suffice/memory/past.py",
        "delta_reads = max(updates - 1, 0) * self.delta",
        "delta_reads = updates * self.delta",
        "tests/definitions/test_infini.py tests/spec/test_cost.py tests/product",
        "the delta rule is counted for the first segment too",
    ),
    Bug(
        "suffice/ops/running_sums.py",
        "steps = steps.masked_fill(~valid, -LIMIT)",
        "steps = steps.clamp(min=-LIMIT)",
        "tests/ops/test_scan.py tests/definitions/test_favor.py tests/product/test_cells.py "
        "tests/acceptance/test_hidden_values.py tests/acceptance/test_linear_attention.py",
        "masked keys raise the stabilizer of visible ones",
    ),
    Bug(
        "suffice/ops/running_sums.py",
        "of_state = of_state * decay[n, ..., None]",
        "of_state = of_state * decay[n - 1, ..., None]",
        "tests/ops/test_scan.py tests/ops/test_native_scan.py tests/definitions/test_favor.py "
        "tests/acceptance/test_linear_attention.py",
        "gradients of running sums decay by the factor of another chunk",
    ),
    Bug(
        "suffice/ops/call.py",
        "read = read.unflatten(1, (groups, -1)).any(dim=2)",
        "read = read.unflatten(1, (groups, -1)).all(dim=2)",
        "tests/ops/test_call.py tests/ops/test_attend.py tests/acceptance/test_masks.py",
        "a key that one head of a group may not see is zeroed for the others",
    ),
    Bug(
        "suffice/ops/sparse/plan.py",
        "first = (residue - shift) % step",
        "first = (residue + shift) % step",
        "tests/ops/sparse",
        "queries behind a cache are paired with the keys of another residue",
    ),
    Bug(
        "suffice/layers/positions.py",
        "first = 0 if remembered is None else -(self.length + remembered)",
        "first = 0 if remembered is None else -remembered",
        "tests/layers/test_state.py tests/models/test_streaming.py",
        "positions of padded rows are forgotten while a rolling memory still holds their keys",
    ),
    Bug(
        "suffice/layers/state.py",
        "type(self.sums.stabilizer)(*marks)",
        "self.sums.stabilizer",
        "tests/layers/test_state.py tests/models/test_streaming.py tests/generate/test_beams.py",
        "selected rows keep the stabilizers of other rows' sums",
    ),
    Bug(
        "suffice/layers/sinusoidal.py",
        "return _cached_table(length, d_model, device, dtype).clone()",
        "return _cached_table(length, d_model, device, dtype)",
        "tests/layers/test_block.py",
        "positions changed in place are changed for every later call",
    ),
    Bug(
        "suffice/models/lm.py",
        "divisor = math.sqrt(2 * self.config.depth)",
        "divisor = math.sqrt(self.config.depth)",
        "tests/models/test_lm.py",
        "the last maps of residual branches start too large",
    ),
    Bug(
        "suffice/models/translator.py",
        "x = block(x, source, source_valid=source_valid, valid=target_valid)",
        "x = block(x, source, valid=target_valid)",
        "tests/models/test_translator.py",
        "the decoder sees padding of the source",
    ),
    Bug(
        "suffice/generate/decoding.py",
        "attainable = self.sums.amax(dim=1) / new**self.length_penalty",
        "attainable = self.sums.amax(dim=1) / self.count**self.length_penalty",
        "tests/generate/test_beams.py",
        "a search ends while a longer continuation could still win",
    ),
    Bug(
        "suffice/generate/speculative.py",
        "drop_last(max(drafts - 1 - accepted_count, 0))",
        "drop_last(max(drafts - accepted_count, 0))",
        "tests/generate/test_speculative.py",
        "the draft model drops an accepted token after each rejection",
    ),
    Bug(
        "suffice/generate/sampling.py",
        'f"{seed} {row}".encode()',
        'f"{seed}{row}".encode()',
        "tests/generate/test_sampling.py tests/generate/test_generate.py",
        "row 11 of seed 1 draws what row 1 of seed 11 draws",
    ),
    Bug(
        "suffice/quantise/quantise.py",
        "ranges = [widest / (levels - 1), widest / -levels]",
        "ranges = [widest / (levels - 1), widest / levels]",
        "tests/quantise",
        "no scale of 4 bits is negative, so the lowest code is never reached",
    ),
    Bug(
        "suffice/quantise/report.py",
        "F.kl_div(new, old, reduction",
        "F.kl_div(old, new, reduction",
        "tests/quantise/test_quantise.py",
        "the divergence of packed weights is taken in the other direction",
    ),
    Bug(
        "suffice/ops/native/cache.py",
        "max(after - self.window - (queries - 1), 0)",
        "max(after - self.window, 0)",
        "tests/ops/test_native_decode.py tests/layers/test_read.py "
        "tests/models/test_native_decoder.py",
        "the first of several queries loses the start of its window",
    ),
    Bug(
        "suffice/train/loop.py",
        "start, self._processes.world_size / count)",
        "start, 1 / count)",
        "tests/train/test_batches.py tests/train/test_distributed.py",
        "several processes learn from a part of the gradient",
    ),
    Bug(
        "suffice/train/augment.py",
        "-side * sine * tall * height / width",
        "-side * sine * tall * width / height",
        "tests/train/test_augment.py",
        "pictures that are not square are sheared where they are turned",
    ),
    Bug(
        "suffice/train/optimiser.py",
        "to(parameter.device, copy=True)",
        "to(parameter.device)",
        "tests/train/test_optimiser.py tests/train/test_training_state.py",
        "an optimiser that goes on counts its steps in the checkpoint that it came from",
    ),
    Bug(
        "suffice/train/language/loss.py",
        "[spans[number * len(spans) // batches] for number in range(batches)]",
        "spans[:batches]",
        "tests/train/language",
        "a partial validation reads only the beginning of the text",
    ),
    Bug(
        "suffice/data/synthetic.py",
        "free = body - count * (digits + 1)",
        "free = body - count * digits",
        "tests/data/test_synthetic.py",
        "numbers may overlap the question and be overwritten",
    ),
    Bug(
        "suffice/text/load.py",
        "place = bisect_left(rooms, size)",
        "place = bisect_left(rooms, size + 1)",
        "tests/text/test_rows.py",
        "a row with exactly enough room is not used",
    ),
    Bug(
        "suffice/measure/verdict.py",
        "cost.value < cost_of(results, results.baseline",
        "cost.value <= cost_of(results, results.baseline",
        "tests/measure/test_verdict.py",
        "a mechanism that costs as much as the baseline counts as cheaper",
    ),
    Bug(
        "suffice/measure/compare.py",
        "plan.auto and max(key[2], FIRST - 1)",
        "0",
        "tests/measure/test_compare.py",
        "all seeds are trained before the first look at the verdict",
    ),
    Bug(
        "suffice/measure/pool.py",
        "0.0 < working.seconds < seconds",
        "0.0 < seconds < working.seconds",
        "tests/papers/test_jobs.py",
        "trainings side by side are called slower where they are faster",
    ),
    Bug(
        "suffice/measure/timing.py",
        "statistics.median(ratios(samples, baseline))",
        "statistics.median(samples) / statistics.median(baseline)",
        "tests/measure/test_timing.py",
        "a ratio of times compares rounds with other rounds",
    ),
    Bug(
        "suffice/measure/evaluation.py",
        "[-(lm.config.length + 1) :]",
        "[-lm.config.length :]",
        "tests/measure/test_evaluation.py",
        "a long text loses one token more than the model's length asks for",
    ),
    Bug(
        "suffice/convert/closed_form.py",
        "offset = offset + lost + v[head, -1] @ maps.o[head]",
        "offset = offset + lost",
        "tests/convert/test_closed_form.py tests/convert/test_convert.py",
        "the biases of values are lost where values become columns of the input",
    ),
    Bug(
        "suffice/memory/rolling.py",
        "min(tokens // unit, window + spare) + min(tokens // unit, sinks)",
        "min(tokens // unit, window + spare)",
        "tests/convert/search tests/memory tests/spec/test_cost.py tests/spec/test_spec.py",
        "the sinks of a window are not counted as state",
    ),
    Bug(
        "suffice/convert/heal/stages.py",
        "F.kl_div(student, teacher, reduction",
        "F.kl_div(teacher, student, reduction",
        "tests/convert/heal/test_stages.py",
        "the divergence from the teacher is taken in the other direction",
    ),
    Bug(
        "suffice/export/graph.py",
        "return max(reaches)",
        "return min(reaches)",
        "tests/export/test_graph.py tests/export/test_export.py",
        "an exported model forgets positions that its farthest layer still reads",
    ),
    Bug(
        "suffice/hf/attention.py",
        "(attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)",
        "attention_mask.long().cumsum(dim=1).clamp(min=0)",
        "tests/hf/test_pattern.py",
        "padded rows of a stock model count positions from 1",
    ),
    Bug(
        "suffice/measure/planning/plan.py",
        "return moved * (ranks - 1) / ranks / min",
        "return moved / min",
        "tests/measure/planning",
        "an exchange counts a rank's own part as sent",
    ),
    Bug(
        "suffice/memory/quantised.py",
        "encoded = max(tokens - self.recent, 0) // self.block * self.block",
        "encoded = -(-max(tokens - self.recent, 0) // self.block) * self.block",
        "tests/measure/advise/test_needs.py tests/memory",
        "positions that are not quantised yet are counted as codes",
    ),
    Bug(
        "suffice/measure/probe/recall.py",
        "back=noise - at + CUE + KEY - 1",
        "back=noise - at + CUE + KEY",
        "tests/measure/probe/test_checkpoint.py tests/measure/probe/test_receptive_field.py",
        "a passkey at the edge of the receptive field is called out of reach",
    ),
    Bug(
        "suffice/view/drawing.py",
        "computed_pairs(of_heads[same[0] - 1], queries, keys)",
        "computed_pairs(of_heads[0], queries, keys)",
        "tests/view/test_drawing.py tests/view/test_text.py",
        "every panel shows the pairs that the first head computes",
    ),
    Bug(
        "suffice/studio/attention_maps.py",
        "return str(path), tuple((name, s.st_mtime_ns, s.st_size, s.st_ino) for name, s in stats)",
        "return str(path), ()",
        "tests/studio/test_attention_maps.py",
        "a checkpoint that was written again is shown as it was before",
    ),
    Bug(
        "suffice/spec/cost.py",
        "(sums + kernel.stabilised)",
        "sums",
        "tests/spec/test_cost.py tests/kernels tests/layers/test_state.py",
        "the logarithm beside sums of features is not counted as state",
    ),
    Bug(
        "suffice/models/checkpoint.py",
        "tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)",
        "tensor.data_ptr(), tensor.shape, tensor.dtype)",
        "tests/models/test_checkpoint.py",
        "a square matrix and its transpose in the same memory are stored as one tensor",
    ),
    Bug(
        "suffice/utils/files.py",
        "if match and not _runs(int(match[1])):",
        "if match:",
        "tests/utils/test_files.py",
        "files that another process is still writing are removed",
    ),
    Bug(
        "suffice/measure/machine.py",
        "return total / 1e6",
        "return total / 1e3",
        "tests/measure/test_machine.py",
        "millijoules are reported as joules",
    ),
    Bug(
        "suffice/csrc/isa/cache_attention.h",
        "tile.first_index = r;",
        "tile.first_index = 0;",
        "tests/ops/test_native_decode.py tests/layers/test_read.py",
        "queries beyond the eighth of a group have the masks and biases of the first ones",
    ),
    Bug(
        "suffice/csrc/isa/quantised_rows.h",
        "int32_t high = (whole + 128) >> 8, low",
        "int32_t high = whole >> 8, low",
        "tests/layers/test_read.py",
        "the low code of a query overflows",
    ),
    Bug(
        "suffice/csrc/isa/features.h",
        "exp2f(STEP * (level - now))",
        "exp2f(level - now)",
        "tests/ops/test_native_scan.py",
        "sums of an earlier stabilizer decay too little",
    ),
    Bug(
        "suffice/csrc/isa/decode_attention.h",
        "if (sum(nan_sum) != 0.0f) nonfinite = 1;",
        "if (sum(nan_sum) > 0.0f) nonfinite = 1;",
        "tests/ops/test_native_decode.py tests/layers/test_read.py",
        "NaN in outputs is not reported",
    ),
    Bug(
        "suffice/csrc/isa/queries.h",
        "j > place + attention.after; --j",
        "j > place + attention.after + 1; --j",
        "tests/ops/test_native_decode.py tests/layers/test_read.py",
        "each of several queries sees one key beyond its window",
    ),
    Bug(
        "suffice/csrc/isa/quantised_attention.h",
        "if (begin / block != unit) scaled_queries.take",
        "if (unit < 0) scaled_queries.take",
        "tests/layers/test_read.py tests/models/test_native_decoder.py",
        "every block of codes is decoded with the ranges of the first one",
    ),
    Bug(
        "suffice/csrc/isa/rows.h",
        "if (n < LANE) d = first_lanes(d, n);",
        "if (n > LANE) d = first_lanes(d, n);",
        "tests/models/test_native_decoder.py tests/ops/native/test_fuzz.py",
        "the norm of a width that is no multiple of 16 counts unused lanes",
    ),
    Bug(
        "suffice/csrc/isa/linear.h",
        "accumulate_keys(l, task, nullptr, begin, end, scratch);",
        "accumulate_keys(l, task, nullptr, 0, end, scratch);",
        "tests/ops/test_native_scan.py",
        "a document sees the keys of those before it",
    ),
    Bug(
        "suffice/csrc/isa/linear_backward.h",
        "if (over == totals[i]) to.weights[i]",
        "to.weights[i]",
        "tests/ops/test_native_scan.py",
        "rows whose weights vanish get the gradient of a divisor that is clamped",
    ),
    Bug(
        "suffice/csrc/isa/decode_step.h",
        "mix.bias[group * mix.bias_map + mix.offset[row]]",
        "mix.bias[mix.offset[row]]",
        "tests/models/test_native_decoder.py",
        "every head is mixed with the bias of the first",
    ),
    Bug(
        "suffice/csrc/isa/sequence_attention_backward.h",
        "share < b.shares; ++share)",
        "share + 1 < b.shares; ++share)",
        "tests/ops/test_native.py tests/ops/native/test_fuzz.py",
        "the last of the tasks that share keys is left out of their gradients",
    ),
    Bug(
        "suffice/csrc/isa/matrix.h",
        "(p * apart * groups + g) * PANEL",
        "(p * groups + g) * PANEL",
        "tests/ops/native/test_codes.py tests/layers/test_packed.py",
        "panels that are read far apart take the scales of adjacent ones",
    ),
    Bug(
        "suffice/layers/experts.py",
        "weights = scores.gather(1, chosen)",
        "weights = ranks.gather(1, chosen)",
        "tests/layers/test_experts.py",
        "the correction of the choice of experts is in their weights, too",
    ),
    Bug(
        "suffice/layers/experts.py",
        "best = groups.topk(BEST_OF_GROUP, dim=-1).values.sum(dim=-1)",
        "best = groups.amax(dim=-1)",
        "tests/layers/test_experts.py",
        "groups of experts are ranked by their best alone",
    ),
    Bug(
        "suffice/layers/experts.py",
        "gate = self.gate(x).clamp(max=self.limit)",
        "gate = self.gate(x).clamp(min=-self.limit, max=self.limit)",
        "tests/layers/test_experts.py",
        "the gate of a clamped expert is clamped below, too",
    ),
    Bug(
        "suffice/models/architectures/deepseek.py",
        "* mscales[1] ** 2",
        "* mscales[0] ** 2",
        "tests/convert/sources/test_hugging_face.py",
        "DeepSeek's scores grow by the scale of rotated features, not by that of all",
    ),
    Bug(
        "suffice/models/architectures/experts.py",
        'reader.flag("norm_topk_prob"),',
        "True,",
        "tests/convert/sources/test_hugging_face.py",
        "weights of Qwen3's experts are always normalised",
    ),
    Bug(
        "suffice/ops/matmul.py",
        "if type(call.kernel) is Softmax:",
        'if call.kernel.lane == "pairs":',
        "tests/kernels/test_own.py",
        "matmul computes every kernel of pairs as a softmax",
    ),
    Bug(
        "suffice/kernels/base.py",
        "opened = (allowed | ~allowed.any(dim=-1, keepdim=True)).expand(scores.shape)",
        "opened = allowed.expand(scores.shape)",
        "tests/kernels/test_own.py",
        "a kernel is given queries that may attend to no key",
    ),
    Bug(
        "suffice/kernels/base.py",
        "**of_weights).masked_fill(~allowed, 0.0)",
        "**of_weights)",
        "tests/kernels/test_own.py",
        "a weight that a kernel gives a hidden key counts",
    ),
    Bug(
        "suffice/testing/conformance.py",
        "for where in case.data():\n        got",
        "for where in case.data()[:0]:\n        got",
        "tests/testing/test_conformance.py",
        "a formula is compared on no data",
    ),
)
