"""Translation by memory: the rival that a corpus of repetitions could not tell from a model."""

from collections import Counter, defaultdict
from collections.abc import Sequence

_CANDIDATES = 50
_COMMON = 0.1  # words in more than this share of the lines say little about which line is near


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions of words that turn one line into the other."""
    row = list(range(len(second) + 1))
    for i, word in enumerate(first, start=1):
        corner, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (word != other))
    return row[-1]


class Memory:
    """Answers a sentence with the translation of the nearest known sentence.

    Nearest is by :func:`edit_distance` over words, among the 50 known lines that share the most of the
    sentence's uncommon words; the earliest line wins a tie.
    """

    def __init__(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        self._src = [line.split() for line in src]
        self._tgt = tgt
        lines: dict[str, list[int]] = defaultdict(list)
        for number, words in enumerate(self._src):
            for word in dict.fromkeys(words):
                lines[word].append(number)
        most = max(1, int(_COMMON * len(src)))
        self._lines = {word: numbers for word, numbers in lines.items() if len(numbers) <= most}

    def translate(self, line: str) -> str:
        """The remembered translation of the nearest line."""
        words = line.split()
        shared: Counter[int] = Counter()
        for word in dict.fromkeys(words):
            shared.update(self._lines.get(word, ()))
        candidates = sorted(shared, key=lambda number: (-shared[number], number))[:_CANDIDATES] or [0]
        best = min(candidates, key=lambda number: (edit_distance(words, self._src[number]), number))
        return self._tgt[best]
