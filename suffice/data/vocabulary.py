"""Words of a text, and the numbers that stand for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from suffice.errors import ConfigError

PAD, START, UNKNOWN = 0, 1, 2
SPECIAL = ("<pad>", "<start>", "<unknown>")

PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'  # the apostrophe belongs to words
_SPACES = str.maketrans(PUNCTUATION, " " * len(PUNCTUATION))


def words(text: str) -> list[str]:
    """Return the words of a text: lower case, cut at white space and punctuation.

    Example:
        >>> words("It's GOOD.<br />(Really!)")
        ["it's", 'good', 'br', 'really']
    """
    return text.lower().translate(_SPACES).split()


def check_size(size: int) -> None:
    """Refuse a size of vocabulary that leaves no room for a word.

    Raises:
        ConfigError: if size is not an integer above 3.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size <= len(SPECIAL):
        raise ConfigError(
            f"vocabulary_size={size!r} is not legal; give an integer above {len(SPECIAL)}, for "
            "three ids are special."
        )


@dataclass(frozen=True)
class Vocabulary:
    """The word of each id: 0 pads, 1 starts a text, 2 is any unknown word, words from 3.

    Args:
        words: the word of each id, the three special ones first.

    Example:
        >>> vocabulary = Vocabulary.build([["b", "a", "b"], ["c", "a", "d"]], size=6)
        >>> vocabulary.words
        ('<pad>', '<start>', '<unknown>', 'a', 'b', 'c')
        >>> vocabulary.encode(["b", "d"])
        [4, 2]
    """

    words: tuple[str, ...]

    @classmethod
    def build(cls, texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """Keep the most frequent words of some texts.

        The more frequent word has the smaller id; of equally frequent words, the one that comes
        first by code points. So the order of the texts does not matter.

        Args:
            texts: the words of each text.
            size: the most ids there may be, the three special ones included.

        Raises:
            ConfigError: if size leaves no room for a word.
        """
        check_size(size)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(SPECIAL + tuple(ranked[: size - len(SPECIAL)]))

    @cached_property
    def _ids(self) -> dict[str, int]:
        ordinary = self.words[len(SPECIAL) :]
        return {word: number for number, word in enumerate(ordinary, len(SPECIAL))}

    def encode(self, text: Sequence[str]) -> list[int]:
        """Return the id of each word of a text, `UNKNOWN` for a word that was not kept."""
        ids = self._ids
        return [ids.get(word, UNKNOWN) for word in text]
