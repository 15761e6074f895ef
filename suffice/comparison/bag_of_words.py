"""A bag of words: what counts of words say about a table's rows, known before anything is trained.

Letters: N rows, V words, K classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.comparison.answers import Answers
from suffice.comparison.training import answers_of_logits
from suffice.data import Dataset
from suffice.data.reviews import words

STEPS = 100  # of L-BFGS, at most


@torch.sparse.check_sparse_tensor_invariants(enable=True)  # said, as torch warns otherwise
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
    train, test = ([Counter(words(t, rule)) for t in part] for part in (dataset.train_texts, texts))
    frequency = Counter(chain.from_iterable(train))
    idf = {word: 1.0 + math.log((1 + len(train)) / (1 + n)) for word, n in frequency.items()}
    weight, bias = _fit(_tf_idf(train, idf), dataset.train.labels, dataset.num_classes)
    return answers_of_logits(dataset, dataset.test, _tf_idf(test, idf) @ weight + bias)


def _tf_idf(rows: Sequence[Counter[str]], idf: Mapping[str, float]) -> Tensor:
    """Return rows of unit length, sparse float64 [N, V]."""
    columns = {word: number for number, word in enumerate(idf)}
    places, weights = list[tuple[int, int]](), list[float]()
    for row, counts in enumerate(rows):
        known = {w: (1.0 + math.log(c)) * idf[w] for w, c in counts.items() if w in idf}
        norm = math.hypot(*known.values())
        places += [(row, columns[word]) for word in known]
        weights += [value / norm for value in known.values()]
    numbers = torch.tensor(places, dtype=torch.int64).view(-1, 2).T
    values = torch.tensor(weights, dtype=torch.float64)
    return torch.sparse_coo_tensor(numbers, values, (len(rows), len(idf))).coalesce()


@torch.enable_grad()
def _fit(rows: Tensor, labels: Tensor, num_classes: int) -> list[Tensor]:
    shapes, options = ((rows.shape[1], num_classes), num_classes), {"dtype": torch.float64}
    learned = [torch.zeros(shape, requires_grad=True, **options) for shape in shapes]
    descent = torch.optim.LBFGS(learned, max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        total = F.cross_entropy(rows @ learned[0] + learned[1], labels, reduction="sum")
        total = total + learned[0].square().sum() / 2
        total.backward()
        return total

    descent.step(loss)
    return [tensor.detach() for tensor in learned]
