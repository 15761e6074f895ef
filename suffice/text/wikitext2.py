"""WikiText-2: articles of Wikipedia, cut into words, for measuring perplexity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from suffice.data.find import DataFile, cache, locate, read
from suffice.errors import DataError
from suffice.text.documents import Corpus, Documents
from suffice.text.plain import decoded, read_text

PLACE = "lm/wikitext2"
VALIDATION = DataFile(
    path=f"{PLACE}/wiki.valid.txt.xz",
    sha256="f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
)
TEST = DataFile(
    path=f"{PLACE}/wiki.test.txt.xz",
    sha256="d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
)
TRAIN = (f"{PLACE}/wiki.train.txt.xz", f"{PLACE}/wiki.train.txt")

# Of an article, between blank lines; of a section it has more signs.
HEADING = re.compile(r"(?:\A \n|(?<=\n \n)) = (?!=).* = \n(?= \n)")


def wikitext2() -> Corpus:
    """Return the official parts, a document for each article; nothing of the text is left out.

    The validation and test parts are needed; the training part is read where the user has it.

    Raises:
        DataError: if a part that is needed is absent, truncated or altered; and by a pass over the
            training part where it is absent.

    Source: Merity et al. 2016, arXiv:1609.07843.
    """
    validation = articles(decoded(read(VALIDATION), VALIDATION.path))
    test = articles(decoded(read(TEST), TEST.path))
    return Corpus(
        name="wikitext2",
        source="Merity et al. 2016 (Wikipedia, CC BY-SA 3.0)",
        train=Documents(name="wikitext2, training", read=_training),
        validation=Documents(
            name="wikitext2, validation", read=partial(iter, validation), count=len(validation)
        ),
        test=Documents(name="wikitext2, test", read=partial(iter, test), count=len(test)),
    )


def articles(text: str) -> list[str]:
    r"""Cut a part at the headings of its articles; joined again they are the part.

    Example:
        >>> articles(" \n = One = \n \n text \n = 1 = \n more \n \n = Two = \n \n text \n")
        [' \n = One = \n \n text \n = 1 = \n more \n \n', ' = Two = \n \n text \n']
    """
    starts = sorted({0, *(found.start() for found in HEADING.finditer(text)), len(text)})
    return [text[start:end] for start, end in pairwise(starts)]


def _training() -> Iterator[str]:
    found = next((at for at in map(locate, TRAIN) if at is not None), None)
    if found is None:
        raise DataError(
            f"wikitext2 has no training part on this machine; put it at {cache() / TRAIN[1]}, or "
            "train on another corpus and use this one's validation and test parts to evaluate."
        )
    yield from articles(read_text(found))
