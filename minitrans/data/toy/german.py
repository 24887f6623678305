"""Writing a tree in German: verb second or final, the verbal bracket, case, agreement, commas.

The middle field has one fixed order: subject, pronoun objects, time, frequency, dative, accusative,
*nicht*, manner, then what belongs closest to the verb (prepositional object, place, predicate). A relative
clause stays right after its noun, so that the end of the bracket can be far from its beginning.
"""

from minitrans.data.toy import morphology
from minitrans.data.toy.lexicon import Preposition
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

_QUESTIONS = {"polar": [], "why": ["warum"], "when": ["wann"]}
_DER_WORDS = {"this": "dies", "every": "jed", "all": "all", "many": "viel", "some": "einig"}
_WEAK_AFTER = ("the", "this", "every", "all")
_MIXED_AFTER = ("a", "no", "possessive")
_OBJECT_CASES = {"accusative": "acc", "dative": "dat", "ditransitive": "acc"}


def write(sentence: Sentence) -> str:
    """The German line of a sentence."""
    main = sentence.main
    if sentence.question:
        words = _QUESTIONS[sentence.question] + _verb_first(main)
    elif sentence.first == "time" and main.time:
        words = _time(main.time) + _verb_first(main, without="time")
    elif sentence.first == "place" and main.place:
        words = _place(main.place) + _verb_first(main, without="place")
    elif sentence.first == "adverbial":
        words = [*_adverbial(sentence), ",", *_verb_first(main)]
    else:
        words = _verb_second(main)
    if sentence.adverbial and sentence.first != "adverbial":
        words += [",", *_adverbial(sentence)]
    if sentence.partner and sentence.coordinator:
        comma = [","] if sentence.coordinator.en == "but" else []
        words = [*words, *comma, sentence.coordinator.de, *_verb_second(sentence.partner)]
    return _finish(words, "?" if sentence.question else ".")


def _finish(words: list[str], mark: str) -> str:
    """Join the words: one comma where several meet and none before the mark, a capital, the mark."""
    kept: list[str] = []
    for word in words:
        if word != "," or kept[-1] != ",":
            kept.append(word)
    text = " ".join(kept).replace(" ,", ",").rstrip(",")
    return text[0].upper() + text[1:] + mark


def _agreement(subject: NounPhrase) -> tuple[int, str]:
    """Person and number that the verb takes from its subject."""
    if isinstance(subject, Personal):
        return subject.entry.person, subject.entry.number
    if isinstance(subject, Both):
        return 3, "pl"
    return 3, "sg" if isinstance(subject, Named) else subject.number


def _finite(clause: Clause) -> str:
    """The finite verb, without its separable prefix."""
    person, number = _agreement(clause.subject)
    verb = clause.verb
    if clause.tense == "modal" and clause.modal:
        return morphology.modal_form(clause.modal, person, number)
    if clause.tense == "perfect":
        return morphology.auxiliary_form(verb.auxiliary, person, number)
    return morphology.finite_form(verb, clause.tense, person, number)


def _infinite(clause: Clause) -> str:
    """The infinitive or participle that closes the bracket, the prefix joined; empty for a plain tense."""
    verb = clause.verb
    return {"modal": verb.particle + verb.infinitive, "perfect": verb.particle + verb.participle}.get(
        clause.tense, ""
    )


def _verb_first(clause: Clause, without: str = "") -> list[str]:
    """Finite verb, middle field with the subject, right bracket: what follows the first position."""
    bracket = _filled(_infinite(clause) or clause.verb.particle)
    words = [_finite(clause), *_subject(clause), *_middle(clause, without), *bracket]
    return words + _complement(clause)


def _verb_second(clause: Clause) -> list[str]:
    """A main clause that its subject opens."""
    bracket = _filled(_infinite(clause) or clause.verb.particle)
    return [*_subject(clause), _finite(clause), *_middle(clause), *bracket, *_complement(clause)]


def _verb_final(clause: Clause) -> list[str]:
    """A subordinate clause without its opening word: the finite verb last, its prefix joined."""
    infinite = _infinite(clause)
    verbs = [infinite, _finite(clause)] if infinite else [clause.verb.particle + _finite(clause)]
    subject = [] if clause.relativised == "subject" else _subject(clause)
    return [*subject, *_middle(clause), *verbs, *_complement(clause)]


def _adverbial(sentence: Sentence) -> list[str]:
    """The subordinate clause beside the main one: *when* is *als* in the past, else *wenn*."""
    if sentence.adverbial is None or sentence.conjunction is None:
        return []
    past = sentence.adverbial.tense == "past"
    conjunction = sentence.conjunction.past if past else sentence.conjunction.present
    return [conjunction, *_verb_final(sentence.adverbial)]


def _complement(clause: Clause) -> list[str]:
    """A *dass* or *ob* clause, after the bracket."""
    if clause.complement is None:
        return []
    conjunction = "dass" if clause.verb.frame == "that" else "ob"
    return [",", conjunction, *_verb_final(clause.complement), ","]


def _subject(clause: Clause) -> list[str]:
    return noun_phrase(clause.subject, "nom")


def _middle(clause: Clause, without: str = "") -> list[str]:
    """The middle field after the subject, without the part that stands first already."""
    object_ = None if clause.relativised == "object" else clause.object
    place = None if "place" in (clause.relativised, without) else clause.place
    noun_objects = _filled_phrase(clause.recipient, "dat", pronoun=False)
    pronoun_objects = _filled_phrase(clause.recipient, "dat", pronoun=True)
    last = _place(place) if place else []
    if object_ and clause.verb.preposition:
        last = _prepositional(clause.verb.preposition, object_)
    elif object_:
        case = _OBJECT_CASES[clause.verb.frame]
        if clause.negation == "kein" and isinstance(object_, Phrase):
            noun_objects += _full_phrase(object_, case, Determiner("no"))
        else:
            pronoun_objects += _filled_phrase(object_, case, pronoun=True)
            noun_objects += _filled_phrase(object_, case, pronoun=False)
    if clause.predicate:
        last = [clause.predicate.de]
    time = _time(clause.time) if clause.time and without != "time" else []
    frequency = _filled(clause.frequency.de if clause.frequency else "")
    negation = ["nicht"] if clause.negation == "nicht" else []
    manner = _filled(clause.manner.de if clause.manner else "")
    return pronoun_objects + time + frequency + noun_objects + negation + manner + last


def _filled(word: str) -> list[str]:
    return word.split()


def _filled_phrase(phrase: NounPhrase | None, case: str, *, pronoun: bool) -> list[str]:
    """A phrase if there is one and it is a pronoun or not, as asked."""
    if phrase is None or isinstance(phrase, Personal) != pronoun:
        return []
    return noun_phrase(phrase, case)


def noun_phrase(phrase: NounPhrase, case: str) -> list[str]:
    """A noun phrase in a case, relative clause and its commas included."""
    if isinstance(phrase, Personal):
        return [morphology.pronoun_form(phrase.entry, case)]
    if isinstance(phrase, Named):
        return [phrase.word.de]
    if isinstance(phrase, Both):
        return [*noun_phrase(phrase.first, case), "und", *noun_phrase(phrase.second, case)]
    if isinstance(phrase, Gap):
        return [morphology.RELATIVE[case, morphology.slot(phrase.noun, phrase.number)]]
    return _full_phrase(phrase, case, phrase.determiner)


def _full_phrase(phrase: Phrase, case: str, determiner: Determiner) -> list[str]:
    """Determiner, number, adjectives, noun, attribute, relative clause."""
    where = morphology.slot(phrase.noun, phrase.number)
    pattern = "weak" if determiner.kind in _WEAK_AFTER else "strong"
    pattern = "mixed" if determiner.kind in _MIXED_AFTER else pattern
    words = _filled(_determiner(determiner, case, where))
    words += [phrase.count.de] if phrase.count else []
    words += [morphology.adjective_form(word, pattern, case, where) for word in phrase.adjectives]
    words.append(morphology.noun_form(phrase.noun, case, phrase.number))
    words += _attribute(phrase.attribute) if phrase.attribute else []
    return words + ([",", *_relative(phrase.relative), ","] if phrase.relative else [])


def _determiner(determiner: Determiner, case: str, where: str) -> str:
    """The declined determiner; empty for a bare noun."""
    kind = determiner.kind
    if kind == "the":
        return morphology.ARTICLE[case, where]
    if kind in _DER_WORDS:
        return _DER_WORDS[kind] + morphology.DER_WORD[case, where]
    if kind == "whose" and determiner.owner:
        owner = morphology.slot(determiner.owner.noun, determiner.owner.number)
        return morphology.RELATIVE["gen", owner]
    if kind == "name" and determiner.word:
        return determiner.word.de + "s"
    if kind == "bare":
        return ""
    stem = determiner.word.de if determiner.word else {"a": "ein", "no": "kein"}[kind]
    return stem + morphology.EIN_WORD[case, where]


def _attribute(attribute: Attribute) -> list[str]:
    if attribute.preposition is None:
        return noun_phrase(attribute.phrase, "gen")
    return _prepositional(attribute.preposition, attribute.phrase)


def _place(place: Place) -> list[str]:
    return _prepositional(place.preposition, place.phrase)


def _prepositional(preposition: Preposition, phrase: NounPhrase) -> list[str]:
    """Preposition and phrase, contracted with a definite article (*im*, *zur*)."""
    words = noun_phrase(phrase, preposition.case)
    if isinstance(phrase, Phrase) and phrase.determiner.kind == "the":
        return [*morphology.contracted(preposition, words[0]).split(), *words[1:]]
    return [preposition.de, *words]


def _relative(clause: Clause) -> list[str]:
    """A relative clause without its commas: the pronoun (with its preposition or noun), then verb-final."""
    if clause.relativised == "subject":
        return [*_subject(clause), *_verb_final(clause)]
    if clause.relativised == "place" and clause.place:
        return [*_place(clause.place), *_verb_final(clause)]
    if clause.object is None:
        raise ValueError("a relative clause needs the part that it puts first")
    if clause.verb.preposition:
        return [*_prepositional(clause.verb.preposition, clause.object), *_verb_final(clause)]
    return [*noun_phrase(clause.object, _OBJECT_CASES[clause.verb.frame]), *_verb_final(clause)]


def _time(time: Time) -> list[str]:
    if time.hour:
        return ["um", time.hour.de, "Uhr"]
    return time.adverb.de.split() if time.adverb else []
