"""A bag of words: what counts of words say about a table's rows, known before anything is trained.

Letters: N rows, V words, K classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data import Dataset
from suffice.data.reviews import words
from suffice.measure.answers import Answers
from suffice.measure.training import answers_of_logits

STEPS = 100  # of L-BFGS, at most

Bags = tuple[Tensor, Tensor, Tensor]
"""Word ids of all rows in turn, their weights, and where each row begins."""


def bag_of_words(dataset: Dataset) -> Answers:
    """Return the answers of a logistic regression on TF-IDF of words to the test rows.

    Texts are read whole. A word of c occurrences in a text, which n of N training texts have,
    weighs (1 + log c) (1 + log((1 + N) / (1 + n))), rows have unit length, and the summed
    cross-entropy is minimised with half the squared weights, as by scikit-learn's TfidfVectorizer
    with sublinear_tf and LogisticRegression.
    """
    texts, rule = dataset.test_texts, dataset.word_rule
    if dataset.test_rows is not None:
        texts = [texts[row] for row in dataset.test_rows.tolist()]
    train, test = (
        [Counter(words(text, rule)) for text in part] for part in (dataset.train_texts, texts)
    )
    frequency = Counter(chain.from_iterable(train))
    ids = {word: number for number, word in enumerate(frequency)}
    idf = [1.0 + math.log((1 + len(train)) / (1 + count)) for count in frequency.values()]
    bags, tested = (_bags(rows, ids, idf) for rows in (train, test))
    weight, bias = _fit(bags, dataset.train.labels, len(ids), dataset.num_classes)
    return answers_of_logits(dataset, dataset.test, _summed(tested, weight) + bias)


def _bags(rows: Sequence[Counter[str]], ids: dict[str, int], idf: Sequence[float]) -> Bags:
    numbers, weights, lengths = [], [], [0]
    for counts in rows:
        known = {ids[word]: count for word, count in counts.items() if word in ids}
        own = [(1.0 + math.log(count)) * idf[number] for number, count in known.items()]
        norm = math.hypot(*own)
        numbers += known
        weights += [value / norm for value in own]
        lengths.append(len(known))
    starts = torch.tensor([*accumulate(lengths)][:-1])
    return torch.tensor(numbers), torch.tensor(weights, dtype=torch.float64), starts


def _summed(bags: Bags, weight: Tensor) -> Tensor:
    """Return the sums [N, K] of the weights [V, K] of each row's words."""
    numbers, weights, starts = bags
    return F.embedding_bag(numbers, weight, starts, mode="sum", per_sample_weights=weights)


@torch.enable_grad()
def _fit(bags: Bags, labels: Tensor, vocabulary_size: int, num_classes: int) -> list[Tensor]:
    weight = torch.zeros(vocabulary_size, num_classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        logits = _summed(bags, weight) + bias
        total = F.cross_entropy(logits, labels, reduction="sum") + weight.square().sum() / 2
        total.backward()
        return total

    descent.step(loss)
    return [weight.detach(), bias.detach()]
