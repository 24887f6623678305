"""The toy grammar against sentences translated by hand, a phenomenon a group."""

from collections.abc import Callable
from typing import Any

import pytest

from minitrans.data.toy import english, german, lexicon
from minitrans.data.toy.lexicon import Adverb, Verb, Word
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
    depth,
)

SINGULAR = {noun.en: noun for noun in lexicon.NOUNS}
PLURAL = {noun.en_plural: noun for noun in lexicon.NOUNS if noun not in lexicon.SUBSTANCES}
ADJECTIVES = {word.en: word for word in lexicon.ADJECTIVES}
NUMBERS = {word.en: word for word in lexicon.NUMBERS}
NAMES = {word.en: word for word in lexicon.NAMES}
POSSESSIVES = {word.en: word for word in lexicon.POSSESSIVES}
PRONOUNS = {form: word for word in lexicon.PRONOUNS for form in (word.en_object, word.en_subject)}
ADVERBS = {word.en: word for word in lexicon.TIMES + lexicon.FREQUENCIES + lexicon.MANNERS}
MODALS = {word.en: word for word in lexicon.MODALS}
CONJUNCTIONS = {word.en: word for word in lexicon.CONJUNCTIONS}
PREPOSITIONS = {word.en: word for word in lexicon.LOCATIONS + lexicon.DIRECTIONS}
PREPOSITIONS |= {word.en: word for words in lexicon.ATTRIBUTES.values() for word in words}


def determiner_of(word: str) -> Determiner:
    if word in POSSESSIVES:
        return Determiner("possessive", POSSESSIVES[word])
    if word.endswith("'s"):
        return Determiner("name", NAMES[word.removesuffix("'s")])
    return Determiner({"an": "a", "these": "this"}.get(word, word))


def noun_phrase(text: str, relative: Callable[[Gap], Clause] | None = None, of: Any = None) -> NounPhrase:
    """The tree of a simple English phrase, with a relative clause built from its gap, or an attribute."""
    if text in PRONOUNS or text in NAMES:
        return Personal(PRONOUNS[text]) if text in PRONOUNS else Named(NAMES[text])
    *before, head = text.split()
    number = "sg" if head in SINGULAR else "pl"
    noun = SINGULAR[head] if number == "sg" else PLURAL[head]
    adjectives = tuple(ADJECTIVES[word] for word in before if word in ADJECTIVES)
    count = next((NUMBERS[word] for word in before if word in NUMBERS), None)
    opening = [word for word in before if word not in ADJECTIVES and word not in NUMBERS]
    determiner = determiner_of(opening[0]) if opening else Determiner("bare")
    clause = relative(Gap(noun, number)) if relative else None
    return Phrase(noun, number, determiner, count, adjectives, of, clause)


def verb_of(frame: str, name: str) -> Verb:
    if frame == "copula":
        return lexicon.BE
    found = [verb for verb in lexicon.VERBS[frame] if f"{verb.en[0]} {verb.en_particle}".strip() == name]
    assert len(found) == 1, name
    return found[0]


def filled(part: Any) -> Any:
    return noun_phrase(part) if isinstance(part, str) else part


def clause(
    frame: str,
    verb: str,
    subject: Any,
    object_: Any = None,
    *,
    tense: str = "present",
    to: Any = None,
    place: tuple[str, Any] | None = None,
    adverb: str = "",
    **more: Any,
) -> Clause:
    """A clause from English words; ``tense`` also takes the name of a modal verb."""
    modal = MODALS.get(tense)
    time = Time(ADVERBS[more.pop("time")]) if isinstance(more.get("time"), str) else more.pop("time", None)
    found: Adverb | None = ADVERBS.get(adverb)
    return Clause(
        verb=verb_of(frame, verb),
        tense="modal" if modal else tense,
        subject=filled(subject),
        object=filled(object_),
        recipient=filled(to),
        place=Place(PREPOSITIONS[place[0]], filled(place[1])) if place else None,
        modal=modal,
        time=time,
        frequency=found if found in lexicon.FREQUENCIES else None,
        manner=found if found in lexicon.MANNERS else None,
        **more,
    )


def be(subject: Any, adjective: str, **more: Any) -> Clause:
    return clause("copula", "be", subject, predicate=ADJECTIVES[adjective], **more)


def acc(verb: str, subject: Any, object_: Any, **more: Any) -> Clause:
    return clause("accusative", verb, subject, object_, **more)


def dat(verb: str, subject: Any, object_: Any, **more: Any) -> Clause:
    return clause("dative", verb, subject, object_, **more)


def prep(verb: str, subject: Any, object_: Any, **more: Any) -> Clause:
    return clause("prepositional", verb, subject, object_, **more)


def does(verb: str, subject: Any, **more: Any) -> Clause:
    return clause("intransitive", verb, subject, **more)


def moves(verb: str, subject: Any, **more: Any) -> Clause:
    return clause("motion", verb, subject, **more)


def gives(verb: str, subject: Any, to: Any, object_: Any, **more: Any) -> Clause:
    return clause("ditransitive", verb, subject, object_, to=to, **more)


def whose(gap: Gap, text: str) -> Phrase:
    phrase = noun_phrase(text)
    assert isinstance(phrase, Phrase)
    return Phrase(phrase.noun, phrase.number, Determiner("whose", None, gap), None, phrase.adjectives)


def sub(conjunction: str, adverbial: Clause, main: Clause, *, first: bool) -> Sentence:
    return Sentence(main, "adverbial" if first else "subject", CONJUNCTIONS[conjunction], adverbial)


def attribute(preposition: str, text: str) -> Attribute:
    phrase = noun_phrase(text)
    assert isinstance(phrase, Phrase)
    return Attribute(PREPOSITIONS.get(preposition), phrase)


def the_dog_that_chases_the_cat(inner: Callable[[Gap], Clause] | None = None) -> NounPhrase:
    return noun_phrase(
        "the dog", lambda dog: acc("chase", dog, noun_phrase("the cat", inner), relativised="subject")
    )


def sees_the_dog(boy: Gap, inner: Callable[[Gap], Clause] | None = None) -> Clause:
    return acc("see", boy, the_dog_that_chases_the_cat(inner), relativised="subject")


EIGHT = Time(None, Word("eight", "acht"))
SUBJECT, OBJECT, PLACE = ({"relativised": part} for part in ("subject", "object", "place"))

AGREEMENT = [
    (
        acc("see", "the old teacher", "the dog"),
        "The old teacher sees the dog.",
        "Der alte Lehrer sieht den Hund.",
    ),
    (acc("know", "I", "this doctor"), "I know this doctor.", "Ich kenne diesen Arzt."),
    (does("dance", "three young girls"), "Three young girls dance.", "Drei junge Mädchen tanzen."),
    (
        does("dance", "the three young girls"),
        "The three young girls dance.",
        "Die drei jungen Mädchen tanzen.",
    ),
    (dat("thank", "she", "five children"), "She thanks five children.", "Sie dankt fünf Kindern."),
    (
        acc("like", "every child", "some small rabbits"),
        "Every child likes some small rabbits.",
        "Jedes Kind mag einige kleine Kaninchen.",
    ),
    (
        acc("love", "all old men", "many beautiful cities"),
        "All old men love many beautiful cities.",
        "Alle alten Männer lieben viele schöne Städte.",
    ),
    (
        acc("drink", "the king", "cold water"),
        "The king drinks cold water.",
        "Der König trinkt kaltes Wasser.",
    ),
    (
        acc("bite", "Anna's small dog", "the boy", tense="past"),
        "Anna's small dog bit the boy.",
        "Annas kleiner Hund biss den Jungen.",
    ),
    (
        be(noun_phrase("the horse", of=attribute("", "the old king")), "tired"),
        "The horse of the old king is tired.",
        "Das Pferd des alten Königs ist müde.",
    ),
    (
        acc(
            "forget", "the painter", noun_phrase("the book", of=attribute("about", "the witch")), tense="past"
        ),
        "The painter forgot the book about the witch.",
        "Der Maler vergaß das Buch über die Hexe.",
    ),
    (
        does("wait", noun_phrase("the man", of=attribute("without", "a hat"))),
        "The man without a hat waits.",
        "Der Mann ohne einen Hut wartet.",
    ),
    (
        acc("feed", Both(Named(NAMES["Anna"]), noun_phrase("the old woman")), "the ducks"),
        "Anna and the old woman feed the ducks.",
        "Anna und die alte Frau füttern die Enten.",
    ),
]

ORDER = [
    (
        Sentence(acc("call", "the old teacher", "his sister", time="today"), "time"),
        "Today the old teacher calls his sister.",
        "Heute ruft der alte Lehrer seine Schwester an.",
    ),
    (acc("call", "she", "him", tense="perfect"), "She has called him.", "Sie hat ihn angerufen."),
    (
        acc("invite", "we", "the guests", tense="must"),
        "We must invite the guests.",
        "Wir müssen die Gäste einladen.",
    ),
    (does("arrive", "the guests", tense="perfect"), "The guests have arrived.", "Die Gäste sind angekommen."),
    (
        Sentence(be("I", "sick", tense="past", time="yesterday"), "time"),
        "Yesterday I was sick.",
        "Gestern war ich krank.",
    ),
    (
        Sentence(moves("go", "I", place=("to", "the station"), time=EIGHT), "time"),
        "At eight o'clock I go to the station.",
        "Um acht Uhr gehe ich zum Bahnhof.",
    ),
    (
        Sentence(does("sing", "the girl", place=("in front of", "the old church"), adverb="loudly"), "place"),
        "In front of the old church the girl sings loudly.",
        "Vor der alten Kirche singt das Mädchen laut.",
    ),
    (
        does("sleep", "the lazy dog", adverb="often"),
        "The lazy dog often sleeps.",
        "Der faule Hund schläft oft.",
    ),
    (
        acc("love", "he", "her", tense="perfect", adverb="always"),
        "He has always loved her.",
        "Er hat sie immer geliebt.",
    ),
    (acc("look for", "they", "us"), "They look for us.", "Sie suchen uns."),
    (acc("wake up", "I", "them", tense="past"), "I woke them up.", "Ich weckte sie auf."),
    (acc("wake up", "I", "the boys"), "I wake up the boys.", "Ich wecke die Jungen auf."),
    (dat("listen to", "he", "his mother"), "He listens to his mother.", "Er hört seiner Mutter zu."),
    (
        does("sleep", "the cat", place=("in", "the garden")),
        "The cat sleeps in the garden.",
        "Die Katze schläft im Garten.",
    ),
    (
        moves("run", "the cat", place=("into", "the house")),
        "The cat runs into the house.",
        "Die Katze rennt ins Haus.",
    ),
    (
        moves("go", "the queen", place=("to", "the doctor")),
        "The queen goes to the doctor.",
        "Die Königin geht zum Arzt.",
    ),
    (
        moves("go", "the student", tense="past", place=("to", "the school")),
        "The student went to the school.",
        "Der Student ging zur Schule.",
    ),
    (
        gives("give", "our father", "the child", "a red ball"),
        "Our father gives the child a red ball.",
        "Unser Vater gibt dem Kind einen roten Ball.",
    ),
    (
        Sentence(acc("open", "the baker", "the window"), question="polar"),
        "Does the baker open the window?",
        "Macht der Bäcker das Fenster auf?",
    ),
    (
        Sentence(does("cry", "the guests", tense="past"), question="why"),
        "Why did the guests cry?",
        "Warum weinten die Gäste?",
    ),
    (
        Sentence(acc("wake up", "the nurse", "him", tense="will"), question="when"),
        "When will the nurse wake him up?",
        "Wann wird die Krankenschwester ihn aufwecken?",
    ),
    (
        Sentence(does("sleep", "I"), coordinator=Word("but", "aber"), partner=does("work", "he")),
        "I sleep, but he works.",
        "Ich schlafe, aber er arbeitet.",
    ),
    (
        Sentence(acc("call", "I", "Otto"), coordinator=Word("and", "und"), partner=does("stop", "he")),
        "I call Otto and he stops.",
        "Ich rufe Otto an und er hört auf.",
    ),
]

NEGATION = [
    (
        acc("see", "the woman", "the cat", negation="nicht"),
        "The woman does not see the cat.",
        "Die Frau sieht die Katze nicht.",
    ),
    (
        prep("wait", "he", "the boy", negation="nicht"),
        "He does not wait for the boy.",
        "Er wartet nicht auf den Jungen.",
    ),
    (be("the house", "dark", negation="nicht"), "The house is not dark.", "Das Haus ist nicht dunkel."),
    (
        gives("give", "I", "her", "the key", tense="past", negation="nicht"),
        "I did not give her the key.",
        "Ich gab ihr den Schlüssel nicht.",
    ),
    (
        acc("visit", "she", "her uncle", tense="want to", negation="nicht"),
        "She does not want to visit her uncle.",
        "Sie will ihren Onkel nicht besuchen.",
    ),
    (
        acc("buy", "the girl", "an expensive hat", negation="kein"),
        "The girl does not buy an expensive hat.",
        "Das Mädchen kauft keinen teuren Hut.",
    ),
    (
        acc("have", "they", "old books", negation="kein"),
        "They do not have old books.",
        "Sie haben keine alten Bücher.",
    ),
    (
        acc("drink", "my brother", "milk", tense="can", negation="kein"),
        "My brother cannot drink milk.",
        "Mein Bruder kann keine Milch trinken.",
    ),
    (dat("help", "he", "a thief", negation="kein"), "He does not help a thief.", "Er hilft keinem Dieb."),
    (does("sleep", "no farmer"), "No farmer sleeps.", "Kein Bauer schläft."),
]

SUBORDINATE = [
    (
        sub("because", acc("call", "the child", "the aunt"), does("sleep", "the doctor"), first=False),
        "The doctor sleeps because the child calls the aunt.",
        "Der Arzt schläft, weil das Kind die Tante anruft.",
    ),
    (
        sub(
            "because",
            does("fall asleep", "the boy", tense="can", negation="nicht"),
            does("sing", "the mother"),
            first=False,
        ),
        "The mother sings because the boy cannot fall asleep.",
        "Die Mutter singt, weil der Junge nicht einschlafen kann.",
    ),
    (
        sub("when", does("sleep", "the baby", tense="past"), does("work", "she", tense="past"), first=True),
        "When the baby slept, she worked.",
        "Als das Baby schlief, arbeitete sie.",
    ),
    (
        sub("when", does("sleep", "the baby"), does("work", "the mother"), first=True),
        "When the baby sleeps, the mother works.",
        "Wenn das Baby schläft, arbeitet die Mutter.",
    ),
    (
        sub("if", be("the teacher", "angry"), acc("close", "the student", "the door"), first=True),
        "If the teacher is angry, the student closes the door.",
        "Wenn der Lehrer wütend ist, macht der Student die Tür zu.",
    ),
    (
        clause("that", "know", "the teacher", complement=acc("call", "she", "him", tense="perfect")),
        "The teacher knows that she has called him.",
        "Der Lehrer weiß, dass sie ihn angerufen hat.",
    ),
    (
        clause(
            "whether", "ask", "the judge", complement=acc("steal", "the thief", "the rings", tense="past")
        ),
        "The judge asks whether the thief stole the rings.",
        "Der Richter fragt, ob der Dieb die Ringe stahl.",
    ),
]

RELATIVE = [
    (
        acc(
            "call",
            noun_phrase("the teacher", lambda gap: acc("see", gap, "the children", **SUBJECT)),
            "his sister",
            time="today",
        ),
        "The teacher who sees the children calls his sister today.",
        "Der Lehrer, der die Kinder sieht, ruft heute seine Schwester an.",
    ),
    (
        does("laugh", noun_phrase("the woman", lambda gap: dat("help", "the boy", gap, **OBJECT))),
        "The woman whom the boy helps laughs.",
        "Die Frau, der der Junge hilft, lacht.",
    ),
    (
        does("sleep", noun_phrase("the dog", lambda gap: acc("hate", "the girl", gap, **OBJECT))),
        "The dog that the girl hates sleeps.",
        "Der Hund, den das Mädchen hasst, schläft.",
    ),
    (
        does(
            "play",
            noun_phrase("the children", lambda gap: dat("trust", "I", gap, **OBJECT)),
            place=("in", "the park"),
        ),
        "The children whom I trust play in the park.",
        "Die Kinder, denen ich vertraue, spielen im Park.",
    ),
    (
        be(noun_phrase("the man", lambda gap: prep("wait", "she", gap, **OBJECT)), "sick"),
        "The man for whom she waits is sick.",
        "Der Mann, auf den sie wartet, ist krank.",
    ),
    (
        be(noun_phrase("the house", lambda gap: prep("dream", "he", gap, **OBJECT)), "big"),
        "The house of which he dreams is big.",
        "Das Haus, von dem er träumt, ist groß.",
    ),
    (
        be(noun_phrase("the key", lambda gap: prep("think", "he", gap, **OBJECT)), "old"),
        "The key of which he thinks is old.",
        "Der Schlüssel, an den er denkt, ist alt.",
    ),
    (
        be(noun_phrase("the room", lambda gap: does("work", "we", place=("in", gap), **PLACE)), "dark"),
        "The room in which we work is dark.",
        "Das Zimmer, in dem wir arbeiten, ist dunkel.",
    ),
    (
        does("sing", noun_phrase("the queen", lambda gap: does("sleep", whose(gap, "horse"), **SUBJECT))),
        "The queen whose horse sleeps sings.",
        "Die Königin, deren Pferd schläft, singt.",
    ),
    (
        does(
            "work", noun_phrase("the king", lambda gap: acc("feed", "I", whose(gap, "small dog"), **OBJECT))
        ),
        "The king whose small dog I feed works.",
        "Der König, dessen kleinen Hund ich füttere, arbeitet.",
    ),
    (
        acc(
            "open", "I", noun_phrase("the door", lambda gap: acc("close", "he", gap, tense="past", **OBJECT))
        ),
        "I open the door that he closed.",
        "Ich mache die Tür, die er zumachte, auf.",
    ),
    (
        does("laugh", noun_phrase("the boy", sees_the_dog)),
        "The boy who sees the dog that chases the cat laughs.",
        "Der Junge, der den Hund, der die Katze jagt, sieht, lacht.",
    ),
    (
        does(
            "laugh",
            noun_phrase(
                "the boy",
                lambda boy: sees_the_dog(boy, lambda cat: acc("feed", "the girl", cat, **OBJECT)),
            ),
        ),
        "The boy who sees the dog that chases the cat that the girl feeds laughs.",
        "Der Junge, der den Hund, der die Katze, die das Mädchen füttert, jagt, sieht, lacht.",
    ),
]


@pytest.mark.parametrize(
    ("tree", "en", "de"),
    [*AGREEMENT, *ORDER, *NEGATION, *SUBORDINATE, *RELATIVE],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_both_sides_are_as_translated_by_hand(tree: Clause | Sentence, en: str, de: str) -> None:
    sentence = tree if isinstance(tree, Sentence) else Sentence(tree)
    assert (english.write(sentence), german.write(sentence)) == (en, de)


def test_depth_counts_relative_clauses_inside_one_another() -> None:
    depths = [depth(Sentence(tree)) for tree, _, _ in RELATIVE]
    assert depths == [1] * 11 + [2, 3]
    assert depth(Sentence(AGREEMENT[0][0])) == 0


def test_an_attribute_and_a_clause_cannot_describe_the_same_noun() -> None:
    with pytest.raises(ValueError, match='"horse" has an attribute'):
        noun_phrase("the horse", lambda gap: does("sleep", gap, **SUBJECT), of=attribute("", "the old king"))
