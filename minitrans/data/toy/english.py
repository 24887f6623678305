"""Writing a tree in English: subject - verb - object, *do*-support, *who* for persons, no inner commas."""

from minitrans.data.toy.lexicon import Adverb
from minitrans.data.toy.tree import (
    Attribute,
    Both,
    Clause,
    Determiner,
    Gap,
    Named,
    NounPhrase,
    Personal,
    Place,
    Sentence,
    Time,
)

_DETERMINERS = {"a": "a", "no": "no", "every": "every", "many": "many", "all": "all", "some": "some"}

_FIXED_PARTICLES = ("for", "at", "to")  # "looks for him", but "picks him up"


def write(sentence: Sentence) -> str:
    """The English line of a sentence."""
    main = sentence.main
    if sentence.question:
        words = ([] if sentence.question == "polar" else [sentence.question]) + _question(main)
    elif sentence.first == "time" and main.time:
        words = _time(main.time) + _statement(main, without="time")
    elif sentence.first == "place" and main.place:
        words = _place(main.place) + _statement(main, without="place")
    else:
        words = _statement(main)
    if sentence.adverbial and sentence.conjunction:
        clause = [sentence.conjunction.en, *_statement(sentence.adverbial)]
        words = [*clause, ",", *words] if sentence.first == "adverbial" else words + clause
    if sentence.partner and sentence.coordinator:
        comma = [","] if sentence.coordinator.en == "but" else []
        words = [*words, *comma, sentence.coordinator.en, *_statement(sentence.partner)]
    return _finish(words, "?" if sentence.question else ".")


def _finish(words: list[str], mark: str) -> str:
    """Join the words: *an* before a vowel, no space before a comma, a capital and a final mark."""
    flat = " ".join(words).split()
    for i, word in enumerate(flat[:-1]):
        if word == "a" and flat[i + 1][0].lower() in "aeiou":
            flat[i] = "an"
    text = " ".join(flat).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _agreement(subject: NounPhrase) -> tuple[int, str]:
    """Person and number that the verb takes from its subject."""
    if isinstance(subject, Personal):
        return subject.entry.person, subject.entry.number
    if isinstance(subject, Both):
        return 3, "pl"
    return 3, "sg" if isinstance(subject, Named) else subject.number


def _verb(clause: Clause) -> tuple[list[str], list[str]]:
    """The verb in two parts: what stands before *not* (empty for a plain form), and what follows."""
    person, number = _agreement(clause.subject)
    singular = person == 3 and number == "sg"
    base, third, past, participle = clause.verb.en
    plain = third if singular else base
    if clause.tense == "modal" and clause.modal:
        if clause.modal.en != "want to":
            return [clause.modal.en], [base]
        return [], ["wants" if singular else "want", "to", base]
    if clause.tense == "perfect":
        return ["has" if singular else "have"], [participle]
    if base == "be":
        return [_be(clause.tense, person, number)], []
    return [], [past if clause.tense == "past" else plain]


def _be(tense: str, person: int, number: str) -> str:
    if number == "pl":
        return "are" if tense == "present" else "were"
    if tense == "past":
        return "was"
    return "am" if person == 1 else "is"


def _with_do(clause: Clause) -> tuple[list[str], list[str]]:
    """As :func:`_verb`, with *do* where a question or *not* needs an auxiliary."""
    auxiliary, rest = _verb(clause)
    if auxiliary:
        return auxiliary, rest
    person, number = _agreement(clause.subject)
    do = "did" if clause.tense == "past" else "does" if (person, number) == (3, "sg") else "do"
    base = clause.verb.en[0]
    return [do], ["want", "to", base] if clause.tense == "modal" else [base]


def _predicate(clause: Clause, verb: list[str], without: str = "") -> list[str]:
    """The verb's last part and all that follows it."""
    particle = clause.verb.en_particle
    moves = isinstance(clause.object, Personal) and particle not in _FIXED_PARTICLES
    words = _adverb(clause.frequency) + verb + ([] if moves else [particle])
    if clause.predicate:
        words.append(clause.predicate.en)
    if clause.recipient:
        words += _phrase(clause.recipient, "object")
    if clause.object and clause.relativised != "object":
        words += [clause.verb.preposition.en] if clause.verb.preposition else []
        words += _phrase(clause.object, "object")
    words += ([particle] if moves else []) + _adverb(clause.manner)
    if clause.place and without != "place" and clause.relativised != "place":
        words += _place(clause.place)
    if clause.time and without != "time":
        words += _time(clause.time)
    if clause.complement:
        conjunction = "that" if clause.verb.frame == "that" else "whether"
        words += [conjunction, *_statement(clause.complement)]
    return words


def _statement(clause: Clause, without: str = "") -> list[str]:
    """Subject, verb, and the rest, without the part that stands first already."""
    auxiliary, verb = _with_do(clause) if clause.negation else _verb(clause)
    if clause.negation:
        auxiliary = ["cannot"] if auxiliary == ["can"] else [*auxiliary, "not"]
    words = auxiliary + _predicate(clause, verb, without)
    return words if clause.relativised == "subject" else _phrase(clause.subject, "subject") + words


def _question(clause: Clause) -> list[str]:
    """Auxiliary, subject, and the rest."""
    auxiliary, verb = _with_do(clause)
    return auxiliary + _phrase(clause.subject, "subject") + _predicate(clause, verb)


def _relative(clause: Clause) -> list[str]:
    """A relative clause: the pronoun (with its preposition or noun), then the statement without it."""
    place = clause.place if clause.relativised == "place" else None
    part = place.phrase if place else clause.subject if clause.relativised == "subject" else clause.object
    if part is None:
        raise ValueError("a relative clause needs the part that it puts first")
    preposition = place.preposition if place else None
    if clause.relativised == "object":
        preposition = clause.verb.preposition
    if preposition:
        return [preposition.en, *_phrase(part, "preposition"), *_statement(clause)]
    return _phrase(part, clause.relativised) + _statement(clause)


def _phrase(phrase: NounPhrase, role: str) -> list[str]:
    """A noun phrase; ``role`` (subject, object, preposition) matters to pronouns alone."""
    if isinstance(phrase, Personal):
        return [phrase.entry.en_subject if role == "subject" else phrase.entry.en_object]
    if isinstance(phrase, Named):
        return [phrase.word.en]
    if isinstance(phrase, Both):
        return [*_phrase(phrase.first, role), "and", *_phrase(phrase.second, role)]
    if isinstance(phrase, Gap):
        if "person" in phrase.noun.kinds:
            return ["who" if role == "subject" else "whom"]
        return ["which" if role == "preposition" else "that"]
    words = _determiner(phrase.determiner, phrase.number)
    words += [phrase.count.en] if phrase.count else []
    words += [adjective.en for adjective in phrase.adjectives]
    words.append(phrase.noun.en if phrase.number == "sg" else phrase.noun.en_plural)
    words += _attribute(phrase.attribute) if phrase.attribute else []
    return words + (_relative(phrase.relative) if phrase.relative else [])


def _determiner(determiner: Determiner, number: str) -> list[str]:
    if determiner.kind == "this":
        return ["this" if number == "sg" else "these"]
    if determiner.kind == "name" and determiner.word:
        return [determiner.word.en + "'s"]
    if determiner.word:
        return [determiner.word.en]
    return [] if determiner.kind == "bare" else [_DETERMINERS.get(determiner.kind, determiner.kind)]


def _attribute(attribute: Attribute) -> list[str]:
    preposition = attribute.preposition.en if attribute.preposition else "of"
    return [preposition, *_phrase(attribute.phrase, "preposition")]


def _place(place: Place) -> list[str]:
    return [place.preposition.en, *_phrase(place.phrase, "preposition")]


def _time(time: Time) -> list[str]:
    if time.hour:
        return ["at", time.hour.en, "o'clock"]
    return _adverb(time.adverb)


def _adverb(adverb: Adverb | None) -> list[str]:
    return [adverb.en] if adverb else []
