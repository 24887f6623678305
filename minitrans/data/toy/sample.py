"""Drawing trees at random: which words go together, and what keeps an English sentence unambiguous.

English order leaves some attachments open, so the grammar never draws the second reading:

- a time or manner adverb ends its clause, hence belongs to the clause of the nearest verb: a clause that
  ends in a relative clause or a complement has neither (it may put the time first);
- adverbs of frequency stand before the verb, all others never do;
- a relative clause belongs to the nearest noun; a prepositional phrase after an object belongs to that noun;
- subordinate clauses other than relative ones belong to the main clause;
- *and* joins phrases or main clauses, never both in one sentence.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import TypeVar

from minitrans.data.toy import lexicon
from minitrans.data.toy.lexicon import Adjective, Noun, Preposition, Verb, Word
from minitrans.data.toy.tree import (
    Attribute,
    Both,
    Clause,
    Determiner,
    Gap,
    Named,
    NounPhrase,
    Personal,
    Phrase,
    Place,
    Sentence,
    Time,
)

T = TypeVar("T")

# How often each frame heads a clause.
_FRAMES = {
    "intransitive": 13,
    "motion": 9,
    "accusative": 38,
    "dative": 9,
    "prepositional": 11,
    "ditransitive": 7,
    "copula": 8,
    "that": 9,
    "whether": 3,
}
_COMPLEMENTS = ("that", "whether")
_DEPTHS = {0: 85, 1: 12, 2: 2, 3: 1}
_SENTENCES = {
    "subject": 56,
    "time": 15,
    "place": 4,
    "adverbial": 4,
    "adverbial last": 4,
    "question": 7,
    "coordination": 4,
}
_SINGULAR = {"the": 50, "a": 21, "this": 9, "possessive": 14, "every": 4, "name": 5}
_PLURAL = {"the": 40, "bare": 16, "this": 9, "possessive": 12, "count": 12, "many": 5, "all": 5, "some": 5}
_SUBSTANCE = {"bare": 60, "the": 25, "possessive": 15}
_COORDINATORS = [Word("and", "und"), Word("but", "aber")]
_DEFINITE = ("the", "this", "possessive", "name", "whose")


class _DeadEndError(Exception):
    """The choices made so far leave nothing to draw: start the clause again."""


class Draws:
    """Choices from a seed that any Python makes alike: all of them rest on ``random()`` alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def one(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely."""
        if not choices:
            raise _DeadEndError
        return choices[int(self._random() * len(choices))]

    def weighted(self, weights: dict[T, int]) -> T:
        """One of the keys, as likely as its weight says."""
        left = self._random() * sum(weights.values())
        for key, weight in weights.items():
            left -= weight
            if left < 0:
                return key
        return next(reversed(weights))


class Sampler:
    """Draws sentences; the same seed gives the same sentences in the same order."""

    def __init__(self, seed: int) -> None:
        self._draw = Draws(seed)
        self._used: list[Noun] = []
        self._joins_phrases = True

    def sentence(self, depth: int | None = None) -> Sentence:
        """A sentence whose relative clauses nest to ``depth`` (drawn when None)."""
        while True:
            levels = self._draw.weighted(_DEPTHS) if depth is None else depth
            self._used, self._joins_phrases = [], True
            try:
                return self._sentence(levels)
            except _DeadEndError:
                continue

    def _sentence(self, levels: int) -> Sentence:
        kind = self._draw.weighted(_SENTENCES)
        past = self._draw.chance(0.3)
        if kind in ("adverbial", "adverbial last"):
            return self._with_adverbial(levels, past, first=kind == "adverbial")
        if kind == "coordination":
            self._joins_phrases = False
            other = self._draw.chance(0.5)
            main = self._clause("main", past, 0 if other else levels)
            partner = self._clause("main", past, levels if other else 0)
            return Sentence(main, coordinator=self._draw.one(_COORDINATORS), partner=partner)
        if kind == "question":
            question = self._draw.weighted({"polar": 3, "why": 4, "when": 3})
            return Sentence(self._clause("question", past, levels), question=question)
        main = self._clause(kind, past, levels)
        return Sentence(main, first=kind if kind in ("time", "place") else "subject")

    def _with_adverbial(self, levels: int, past: bool, *, first: bool) -> Sentence:
        conjunction = self._draw.one([word for word in lexicon.CONJUNCTIONS if word.past or not past])
        inside = self._draw.chance(0.5)
        main = self._clause("main" if conjunction.any_tense else "plain tense", past, 0 if inside else levels)
        context = "any tense" if conjunction.any_tense else "plain tense"
        adverbial = self._clause(context, past, levels if inside else 0)
        return Sentence(main, "adverbial" if first else "subject", conjunction, adverbial)

    # Clauses -------------------------------------------------------------------------------------------

    def _clause(self, context: str, past: bool, levels: int, gap: Gap | None = None) -> Clause:
        """A clause; ``context`` says where, ``levels`` how deep relative clauses nest in it.

        Contexts: ``main``, ``time`` and ``place`` (that part stands first), ``question``, ``any tense``
        and ``plain tense`` (adverbial clauses), ``complement``, ``relative`` (with its ``gap``).
        """
        for _ in range(50):
            used = list(self._used)
            try:
                return self._attempt(context, past, levels, gap)
            except _DeadEndError:
                self._used = used
        raise _DeadEndError

    def _attempt(self, context: str, past: bool, levels: int, gap: Gap | None) -> Clause:
        frame = self._draw.weighted(_FRAMES)
        if frame in _COMPLEMENTS and context not in ("main", "time"):
            raise _DeadEndError
        role = self._role(frame, gap)
        whose = gap is not None and "person" in gap.noun.kinds and self._draw.chance(0.28)
        if whose and role == "place":
            raise _DeadEndError
        verb = self._verb(frame, role if gap and not whose else "", gap)
        place = self._place_preposition(verb, context, gap if role == "place" else None)
        bearer = self._bearer(verb, role, place is not None, context, levels)
        below = {part: levels if part == bearer else 0 for part in ("subject", "object", "place")}
        if levels == 1 and context == "main" and self._draw.chance(0.1):
            below["subject"] = 1  # now and then two relative clauses side by side
        filled = self._whose(gap, verb, role) if gap and whose else gap
        subject = filled if role == "subject" and filled else self._subject(verb, below["subject"])
        recipient = self._recipient(subject) if frame == "ditransitive" else None
        object_ = filled if role == "object" else self._object(verb, subject, recipient, below["object"])
        where = self._place(place, gap if role == "place" else None, below["place"])
        complement = self._clause("complement", past, below["object"]) if frame in _COMPLEMENTS else None
        tense, modal = self._tense(context, past, verb)
        clause = Clause(verb, tense, subject, object_, recipient, where, complement=complement, modal=modal)
        return self._finished(clause, context, role, heavy=bearer in ("object", "place"))

    def _role(self, frame: str, gap: Gap | None) -> str:
        """Which part of its clause a relative pronoun is; empty without one."""
        if gap is None:
            return ""
        roles = {"accusative": "object", "dative": "object", "prepositional": "object"}
        roles |= {"intransitive": "place", "motion": "place"}
        if "place" in gap.noun.kinds and frame in ("intransitive", "motion"):
            return "place"
        other = roles.get(frame, "subject")
        return other if other == "object" and self._draw.chance(0.5) else "subject"

    def _verb(self, frame: str, role: str, gap: Gap | None) -> Verb:
        """A verb of the frame; its selection must suit the noun that a relative clause describes."""
        verbs = [lexicon.BE] if frame == "copula" else lexicon.VERBS[frame]
        if gap and role in ("subject", "object"):
            kinds = gap.noun.kinds
            verbs = [verb for verb in verbs if kinds & (verb.subjects if role == "subject" else verb.objects)]
        if role == "place":
            verbs = [verb for verb in verbs if verb.takes_place or verb.frame == "motion"]
        return self._draw.one(verbs)

    def _place_preposition(self, verb: Verb, context: str, gap: Gap | None) -> Preposition | None:
        """The preposition of a place or direction, if the clause is to have one."""
        wanted = verb.frame == "motion" or gap or context == "place" or self._draw.chance(0.5)
        if not wanted or not (verb.takes_place or verb.frame == "motion"):
            if context == "place":
                raise _DeadEndError
            return None
        prepositions = lexicon.DIRECTIONS if verb.frame == "motion" else lexicon.LOCATIONS
        fitting = [word for word in prepositions if not gap or word.kinds & gap.noun.kinds]
        return self._draw.one(fitting)

    def _bearer(self, verb: Verb, role: str, has_place: bool, context: str, levels: int) -> str:
        """The part that the deepest relative clause hangs on; empty when there is none."""
        if levels == 0:
            return ""
        parts = [] if role == "subject" else ["subject"]
        if role != "object" and (verb.objects or verb.frame in _COMPLEMENTS):
            parts.append("object")
        if has_place and role != "place" and context != "place":
            parts.append("place")
        return self._draw.one(parts)

    def _finished(self, clause: Clause, context: str, role: str, *, heavy: bool) -> Clause:
        """The clause with its adverbs, predicate and negation."""
        open_end = not heavy and clause.complement is None
        predicate = self._predicate(clause.subject) if clause.verb.frame == "copula" else None
        negation = self._negation(clause) if context != "question" else ""
        negative = bool(negation) or _has_determiner(clause.subject, "no")
        time = self._time(clause.tense, context, open_end, negative)
        frequency = None
        if not negative and self._draw.chance(0.07):
            frequency = self._draw.one(lexicon.FREQUENCIES)
        manner = None
        if open_end and negation != "kein" and clause.verb.manners and self._draw.chance(0.3):
            manner = self._draw.one([word for word in lexicon.MANNERS if word.uses & clause.verb.manners])
        return dataclasses.replace(
            clause,
            predicate=predicate,
            negation=negation,
            time=time,
            frequency=frequency,
            manner=manner,
            relativised=role,
        )

    def _tense(self, context: str, past: bool, verb: Verb) -> tuple[str, lexicon.Modal | None]:
        if past:
            return "past", None
        if context == "plain tense":
            return "present", None
        tense = self._draw.weighted({"present": 63, "perfect": 14, "modal": 23})
        if tense == "perfect" and verb is lexicon.BE:
            return "present", None
        return tense, self._draw.one(lexicon.MODALS) if tense == "modal" else None

    def _time(self, tense: str, context: str, open_end: bool, negative: bool) -> Time | None:
        """A time, where the clause has room for one (at its beginning or at its open end)."""
        wanted = context == "time" or (open_end and context != "question" and self._draw.chance(0.1))
        if not wanted:
            return None
        if self._draw.chance(0.15) and tense != "perfect":
            return Time(None, self._draw.one(lexicon.HOURS))
        # "does not sleep every day" is "schläft nicht jeden Tag": the order would tell what is denied.
        fitting = [word for word in lexicon.TIMES if tense in word.uses]
        return Time(self._draw.one([word for word in fitting if not negative or word.en != "every day"]))

    def _negation(self, clause: Clause) -> str:
        """*nicht* beside definite phrases, *kein* for an indefinite object; else none."""
        if not _definite(clause.subject) or (clause.recipient and not _definite(clause.recipient)):
            return ""
        if clause.modal and not clause.modal.negatable:
            return ""
        if clause.place and not _definite(clause.place.phrase):
            return ""
        if clause.object is None or _definite(clause.object):
            return "nicht" if self._draw.chance(0.12) else ""
        indefinite = _has_determiner(clause.object, "a") or _has_determiner(clause.object, "bare")
        counted = isinstance(clause.object, Phrase) and clause.object.count is not None
        if indefinite and not counted and not clause.verb.preposition and self._draw.chance(0.3):
            return "kein"
        return ""

    # Noun phrases --------------------------------------------------------------------------------------

    def _subject(self, verb: Verb, levels: int) -> NounPhrase:
        if levels == 0 and "person" in verb.subjects:
            both = 4 if self._joins_phrases else 0
            shape = self._draw.weighted({"pronoun": 20, "name": 8, "both": both, "phrase": 67})
            if shape == "pronoun":
                # "I" three times as often as the others: it alone has verb forms of its own.
                return Personal(self._draw.one([*lexicon.PRONOUNS, *lexicon.PRONOUNS[:1] * 2]))
            if shape == "name":
                return Named(self._draw.one(lexicon.NAMES))
            if shape == "both":
                return self._both(verb.subjects - {"thing", "place"})
        if levels == 0 and self._draw.chance(0.04):
            noun = self._noun(verb.subjects)
            return Phrase(noun, "sg", Determiner("no"), None, self._adjectives(noun))
        return self._phrase(verb.subjects, levels)

    def _object(
        self, verb: Verb, subject: NounPhrase, recipient: NounPhrase | None, levels: int
    ) -> NounPhrase | None:
        if not verb.objects or verb.frame in ("intransitive", "motion"):
            return None
        if levels == 0 and recipient is None and "person" in verb.objects:
            both = 3 if self._joins_phrases and verb.preposition is None else 0
            shape = self._draw.weighted({"pronoun": 12, "name": 6, "both": both, "phrase": 82})
            if shape == "pronoun":
                return self._other_pronoun(subject)
            if shape == "name":
                return Named(self._draw.one(lexicon.NAMES))
            if shape == "both":
                return self._both(verb.objects - {"substance", "place"})
        # "gives her milk" could be read with "her" as the owner: a pronoun asks for a determiner.
        return self._phrase(verb.objects, levels, bare=not isinstance(recipient, Personal))

    def _recipient(self, subject: NounPhrase) -> NounPhrase:
        """Who is given something: short, for English puts it before the object."""
        shape = self._draw.weighted({"pronoun": 25, "name": 15, "phrase": 60})
        if shape == "pronoun":
            return self._other_pronoun(subject)
        if shape == "name":
            return Named(self._draw.one(lexicon.NAMES))
        return self._phrase(frozenset({"person"}), 0, attribute=False)

    def _other_pronoun(self, subject: NounPhrase) -> Personal:
        """A pronoun that is not the subject's own person (there are no reflexives)."""
        taken = subject.entry if isinstance(subject, Personal) else None
        choices = [
            entry
            for entry in lexicon.PRONOUNS
            if taken is None or (entry is not taken and not entry.person == taken.person == 1)
        ]
        return Personal(self._draw.one(choices))

    def _both(self, kinds: frozenset[str]) -> Both:
        first: NounPhrase = self._phrase(kinds, 0, attribute=False)
        if "person" in kinds and self._draw.chance(0.3):
            first = Named(self._draw.one(lexicon.NAMES))
        return Both(first, self._phrase(kinds, 0, attribute=False))

    def _whose(self, gap: Gap, verb: Verb, role: str) -> Phrase:
        """*whose dog*: a phrase whose determiner is the relative pronoun."""
        kinds = verb.subjects if role == "subject" else verb.objects
        noun = self._noun(kinds & {"person", "animal", "thing"})
        number = "sg" if self._draw.chance(0.7) else "pl"
        return Phrase(noun, number, Determiner("whose", None, gap), None, self._adjectives(noun))

    def _place(self, preposition: Preposition | None, gap: Gap | None, levels: int) -> Place | None:
        if preposition is None:
            return None
        return Place(preposition, gap or self._phrase(preposition.kinds, levels, bare=False))

    def _noun(self, kinds: frozenset[str]) -> Noun:
        """A noun of one of the kinds that the sentence doesn't have yet: first the kind, then the noun."""
        kind = self._draw.one(sorted(kinds))
        noun = self._draw.one(
            [noun for noun in lexicon.NOUNS if kind in noun.kinds and noun not in self._used]
        )
        self._used.append(noun)
        return noun

    def _phrase(
        self, kinds: frozenset[str], levels: int, *, attribute: bool = True, bare: bool = True
    ) -> Phrase:
        """A phrase headed by a noun of one of the kinds, with a relative clause of ``levels`` levels."""
        noun = self._noun(kinds)
        number, determiner, count = self._opening(noun)
        if not bare and determiner.kind == "bare":
            determiner, count = Determiner("the"), None
        adjectives = self._adjectives(noun)
        described = None
        attributable = determiner.kind in ("the", "a", "this") and "substance" not in noun.kinds
        wanted = self._draw.chance(0.5 if "text" in noun.kinds else 0.09)
        if attribute and attributable and count is None and wanted:
            described = self._attribute(noun, levels)
        relative = None
        if levels and described is None:
            if determiner.kind in ("name", "possessive"):
                determiner = Determiner("the")
            relative = self._clause("relative", self._draw.chance(0.3), levels - 1, Gap(noun, number))
        return Phrase(noun, number, determiner, count, adjectives, described, relative)

    def _opening(self, noun: Noun) -> tuple[str, Determiner, Word | None]:
        """Number, determiner and count of a phrase."""
        count = None
        if "substance" in noun.kinds:
            number, kind = "sg", self._draw.weighted(_SUBSTANCE)
        elif self._draw.chance(0.82 if "place" in noun.kinds else 0.62):
            number, kind = "sg", self._draw.weighted(_SINGULAR)
        else:
            number, kind = "pl", self._draw.weighted(_PLURAL)
            if kind == "count" or (kind in ("the", "possessive") and self._draw.chance(0.15)):
                count = self._draw.one(lexicon.NUMBERS)
                kind = "bare" if kind == "count" else kind
        words = {"possessive": lexicon.POSSESSIVES, "name": lexicon.NAMES}.get(kind)
        return number, Determiner(kind, self._draw.one(words) if words else None), count

    def _adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        fitting = _fitting(noun)
        many = self._draw.weighted({0: 76, 1: 22, 2: 2})
        chosen: list[Adjective] = []
        for _ in range(many):
            chosen.append(self._draw.one([word for word in fitting if word not in chosen]))
        return tuple(chosen)

    def _predicate(self, subject: NounPhrase) -> Adjective:
        """An adjective that suits the subject, after *be*."""
        kinds = frozenset({"person"})
        if isinstance(subject, Phrase | Gap):
            return self._draw.one(_fitting(subject.noun))
        if isinstance(subject, Both):
            kinds = frozenset({"person", "animal"})
        return self._draw.one([word for word in lexicon.ADJECTIVES if kinds <= word.kinds])

    def _attribute(self, noun: Noun, levels: int) -> Attribute | None:
        """A genitive, a place, or what such a noun is with, about or for."""
        special = next((words for kind, words in lexicon.ATTRIBUTES.items() if kind in noun.kinds), [])
        shape = self._draw.weighted({"genitive": 5, "location": 4, "special": 6 if special else 0})
        if shape == "genitive":
            owner = self._phrase(frozenset({"person"}), levels, attribute=False, bare=False)
            if not _definite(owner) or owner.determiner.kind == "name" or owner.count:
                raise _DeadEndError
            return Attribute(None, owner)
        preposition = self._draw.one(special if shape == "special" else lexicon.LOCATIONS)
        return Attribute(preposition, self._phrase(preposition.kinds, levels, attribute=False, bare=False))


def _fitting(noun: Noun) -> list[Adjective]:
    return [word for word in lexicon.ADJECTIVES if word.kinds & noun.kinds]


def _has_determiner(phrase: NounPhrase, kind: str) -> bool:
    return isinstance(phrase, Phrase) and phrase.determiner.kind == kind


def _definite(phrase: NounPhrase) -> bool:
    """Whether *nicht* may follow the phrase: pronouns, names, and nouns after a definite determiner."""
    if isinstance(phrase, Phrase):
        return phrase.determiner.kind in _DEFINITE
    return not isinstance(phrase, Both)
