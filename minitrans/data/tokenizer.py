"""Text to entries of the vocabulary and back, on the ``tokenizers`` library.

All kinds share one idea: white space is first made plain (every run of it one space, none at the ends),
and a space then belongs to the piece that follows it, as itself. So a piece is exactly the text that it
stands for, and decoding is joining.

The special entries are named with a line feed in front (``"\\n<s>"``). No text can spell them: white space
has become spaces by then, so no piece holds a line feed. Text such as ``<s>`` stays text.

Kinds left out: Unigram and WordPiece. Their trainers write another file at each run.
"""

import gc
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from minitrans.config import TokenizerConfig
from minitrans.data.cache import cached
from minitrans.data.corpus import Corpus
from minitrans.errors import UserError, nearest

PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3
SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN_SIGN = "⁇"

_SPECIAL_ENTRIES = [f"\n{name}" for name in SPECIAL_NAMES]
_UNKNOWN_ENTRY = _SPECIAL_ENTRIES[UNKNOWN_ID]

# What str.split() takes for white space: Unicode's, and the four information separators.
_WHITE_SPACE = Regex(r"[\s\x1c-\x1f]+")
# Runs of letters, of digits and of anything else, each with the space before it.
_WORDS = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^ \p{L}\p{M}\p{N}]+")
_CHARACTERS = Regex(".")  # line feeds are spaces by then

# A merge or a word seen once teaches nothing; and words that stay unknown train the unknown entry.
_LEAST_COUNT = 2
_NO_LIMIT = 1 << 30


class Kind(Protocol):
    """A kind of tokenizer: an untrained one, and its trainer."""

    def untrained(self, lowercase: bool) -> tokenizers.Tokenizer:
        """The tokenizer before training."""

    def trainer(self, vocab_size: int) -> trainers.Trainer:
        """Its trainer, for so many entries with the special ones."""


class BytePairs:
    """Byte-pair encoding (Sennrich et al. 2016) over characters: frequent pairs of pieces are merged."""

    def untrained(self, lowercase: bool) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=_UNKNOWN_ENTRY, fuse_unk=True))
        tokenizer.normalizer = _normalizer(lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
        tokenizer.decoder = _joined(UNKNOWN_SIGN)
        return tokenizer

    def trainer(self, vocab_size: int) -> trainers.Trainer:
        return trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=_SPECIAL_ENTRIES,
            min_frequency=_LEAST_COUNT,
            show_progress=False,
        )


class ByteLevelBytePairs:
    """Byte-pair encoding over the bytes of UTF-8 (Radford et al. 2019): nothing is ever unknown."""

    def untrained(self, lowercase: bool) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.normalizer = _normalizer(lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(_WORDS, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(_UNKNOWN_ENTRY, UNKNOWN_SIGN), decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]
        )
        return tokenizer

    def trainer(self, vocab_size: int) -> trainers.Trainer:
        return trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=_SPECIAL_ENTRIES,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=_LEAST_COUNT,
            show_progress=False,
        )


class Words:
    """Whole words, numbers and runs of punctuation: the most frequent ones, the others are unknown."""

    def untrained(self, lowercase: bool) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=_UNKNOWN_ENTRY))
        tokenizer.normalizer = _normalizer(lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
        # An unknown word has taken its space with it; most words have one.
        tokenizer.decoder = _joined(f" {UNKNOWN_SIGN}")
        return tokenizer

    def trainer(self, vocab_size: int) -> trainers.Trainer:
        return trainers.WordLevelTrainer(
            vocab_size=vocab_size,
            special_tokens=_SPECIAL_ENTRIES,
            min_frequency=_LEAST_COUNT,
            show_progress=False,
        )


class Characters:
    """One entry a character, the space included."""

    def untrained(self, lowercase: bool) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=_UNKNOWN_ENTRY))
        tokenizer.normalizer = normalizers.Sequence(_plain_white_space(lowercase))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_CHARACTERS, "isolated")
        tokenizer.decoder = _joined(UNKNOWN_SIGN)
        return tokenizer

    def trainer(self, vocab_size: int) -> trainers.Trainer:
        # All characters: that they fit is checked afterwards, and said, where a limit here would drop some.
        return trainers.WordLevelTrainer(
            vocab_size=_NO_LIMIT, special_tokens=_SPECIAL_ENTRIES, show_progress=False
        )


KINDS: dict[str, type[Kind]] = {
    "bpe": BytePairs,
    "byte_bpe": ByteLevelBytePairs,
    "word": Words,
    "char": Characters,
}


def _plain_white_space(lowercase: bool) -> list[normalizers.Normalizer]:
    """Every run of white space one space, none at the ends; letters folded where wanted."""
    fold = [normalizers.Lowercase()] if lowercase else []
    return [*fold, normalizers.Replace(_WHITE_SPACE, " "), normalizers.Strip()]


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Plain white space and a space in front, so that a word is the same entry wherever it stands."""
    return normalizers.Sequence([*_plain_white_space(lowercase), normalizers.Prepend(" ")])


def _joined(unknown: str) -> decoders.Decoder:
    """Join the pieces and take the first space away again."""
    return decoders.Sequence(
        [decoders.Replace(_UNKNOWN_ENTRY, unknown), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python does not look for unreachable objects meanwhile.

    It does so whenever many objects were made, and thousands of encodings are many: a look through all that
    torch and datasets hold took a sixth of the time, and none of what is made here refers to itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Tokenizer:
    """One trained vocabulary.

    ``decode(encode(x))`` is x with every run of white space made one space: always for ``byte_bpe``; for the
    other kinds where every character (``word``: every word) is known. Else each run of unknown ones is one
    visible ``⁇``.
    """

    def __init__(self, trained: tokenizers.Tokenizer) -> None:
        self._tokenizer = trained

    @property
    def vocab_size(self) -> int:
        """Entries, the four special ones counted."""
        return self._tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without start and end. Blank text gives no ids."""
        return [one.ids for one in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """What :meth:`encode` gives, in two arrays: for a corpus, without a list that stays for each text.

        Returns
        -------
        ids, counts
            (all tokens,) int32, one text's after another's; (n,) int64, how many of them each text has.
        """
        with _without_collection():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            counts = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
            ids = itertools.chain.from_iterable(one.ids for one in encodings)
            return np.fromiter(ids, dtype=np.int32, count=counts.sum()), counts

    def word_numbers(self, text: str) -> list[int]:
        """For each id of the encoded text, the word of ``text.split()`` that it ends in, by number from 0."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [max(len(text[:end].split()) - 1, 0) for _, end in offsets]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Text of each row of ids. Start, end and padding give nothing."""
        kept = [list(_visible(row)) for row in rows]
        return self._tokenizer.decode_batch(kept, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id stands for, to be looked at: ``▁`` for a space, ``<s>`` and so on for special ids.

        Each piece is as it reads alone, so a part of a character (``byte_bpe``) shows as ``�``.
        """
        return [self._piece(id_) for id_ in ids]

    def _piece(self, id_: int) -> str:
        if id_ < len(SPECIAL_NAMES):
            return SPECIAL_NAMES[id_]
        # The decoder takes away a space at the very start, so something stands before the piece.
        return self._tokenizer.decoder.decode([".", self._tokenizer.id_to_token(id_)])[1:].replace(" ", "▁")

    def to_json(self) -> str:
        """The tokenizer as the ``tokenizers`` library writes it (``tokenizer.json``)."""
        return self._tokenizer.to_str()

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """The tokenizer that :meth:`to_json` wrote.

        Raises
        ------
        UserError
            The text is not a tokenizer's.
        """
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"the tokenizer's file cannot be read: {error}") from None


def _visible(row: Iterable[int]) -> Iterator[int]:
    """Without padding, start and end, and with each run of unknown ids made one."""
    previous = PAD_ID
    for id_ in row:
        if id_ in (PAD_ID, START_ID, END_ID):
            continue
        if not id_ == previous == UNKNOWN_ID:
            yield id_
        previous = id_


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train one vocabulary. The same texts give the same bytes, on any machine and number of cores.

    Raises
    ------
    UserError
        An unknown kind, or a vocabulary smaller than the alphabet of the texts.
    """
    if config.kind not in KINDS:
        raise UserError(f'tokenizer.kind cannot be "{config.kind}"{nearest(config.kind, KINDS)}')
    kind = KINDS[config.kind]()
    tokenizer = kind.untrained(config.lowercase)
    tokenizer.train_from_iterator(texts, kind.trainer(config.vocab_size))
    _check_size(tokenizer.get_vocab_size(), config)
    # As added tokens the special entries would be looked for in raw text, before white space is made plain.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    return Tokenizer.from_json(json.dumps(content, ensure_ascii=False))


def _check_size(num_entries: int, config: TokenizerConfig) -> None:
    num_special = len(SPECIAL_NAMES)
    if num_entries > config.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={config.vocab_size} is smaller than the alphabet of the training text "
            f"({num_entries - num_special} characters and {num_special} special entries); "
            f"set tokenizer.vocab_size to {num_entries} or more, or tokenizer.kind=byte_bpe"
        )
    if num_entries == num_special:
        raise UserError(
            f"the training text gives tokenizer.kind={config.kind} with "
            f"tokenizer.vocab_size={config.vocab_size} no entry; set a larger one, or tokenizer.kind=bpe"
        )


@dataclass(frozen=True)
class Tokenizers:
    """The two sides' tokenizers: one and the same object where the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.src is self.tgt

    @classmethod
    def train(cls, corpus: Corpus, config: TokenizerConfig) -> "Tokenizers":
        """Train on both sides of the training split, or take from the cache what was trained on this text.

        Raises
        ------
        UserError
            No pair has text on both sides, or what :func:`train_tokenizer` refuses.
        """
        corpus.require_text()

        def make(folder: Path) -> None:
            trained = cls._trained(corpus, config)
            (folder / "state.json").write_text(json.dumps(trained.state()), encoding="utf-8")

        ingredients = [corpus.fingerprint, config.kind, config.vocab_size, config.joint, config.lowercase]
        entry = cached("tokenizer", ingredients, make)
        return cls.from_state(json.loads((entry / "state.json").read_text(encoding="utf-8")))

    @classmethod
    def _trained(cls, corpus: Corpus, config: TokenizerConfig) -> "Tokenizers":
        if config.joint:
            both = train_tokenizer(itertools.chain(corpus.src, corpus.tgt), config)
            return cls(both, both)
        return cls(train_tokenizer(corpus.src, config), train_tokenizer(corpus.tgt, config))

    def state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        files = {"src": self.src.to_json(), "tgt": None if self.joint else self.tgt.to_json()}
        return {"joint": self.joint, **files}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Tokenizers":
        """The tokenizers that :meth:`state` told of."""
        src = Tokenizer.from_json(state["src"])
        return cls(src, src if state["joint"] else Tokenizer.from_json(state["tgt"]))

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``, or ``tokenizer.src.json`` and ``tokenizer.tgt.json``."""
        if self.joint:
            (folder / "tokenizer.json").write_text(self.src.to_json(), encoding="utf-8")
            return
        (folder / "tokenizer.src.json").write_text(self.src.to_json(), encoding="utf-8")
        (folder / "tokenizer.tgt.json").write_text(self.tgt.to_json(), encoding="utf-8")
