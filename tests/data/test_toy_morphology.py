"""German word forms against paradigms written out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data.toy import german, lexicon, morphology
from minitrans.data.toy.lexicon import Noun, Verb, Word
from minitrans.data.toy.tree import Clause, Determiner, Gap, Personal, Phrase, Sentence, Time

NOUNS = {noun.en: noun for noun in lexicon.NOUNS}
VERBS = {verb.infinitive: verb for verbs in lexicon.VERBS.values() for verb in verbs if not verb.particle}
OLD = next(word for word in lexicon.ADJECTIVES if word.en == "old")
CASES = ("nom", "acc", "dat", "gen")


def decline(determiner: Determiner, noun: Noun, number: str) -> list[str]:
    """Nominative, accusative, dative, genitive of determiner + *alt* + noun."""
    phrase = Phrase(noun, number, determiner, adjectives=(OLD,))
    return [" ".join(german.noun_phrase(phrase, case)) for case in CASES]


PARADIGMS = {
    ("the", "dog", "sg"): ["der alte Hund", "den alten Hund", "dem alten Hund", "des alten Hundes"],
    ("the", "cat", "sg"): ["die alte Katze", "die alte Katze", "der alten Katze", "der alten Katze"],
    ("the", "horse", "sg"): ["das alte Pferd", "das alte Pferd", "dem alten Pferd", "des alten Pferdes"],
    ("the", "dog", "pl"): ["die alten Hunde", "die alten Hunde", "den alten Hunden", "der alten Hunde"],
    ("a", "dog", "sg"): ["ein alter Hund", "einen alten Hund", "einem alten Hund", "eines alten Hundes"],
    ("a", "cat", "sg"): ["eine alte Katze", "eine alte Katze", "einer alten Katze", "einer alten Katze"],
    ("a", "horse", "sg"): ["ein altes Pferd", "ein altes Pferd", "einem alten Pferd", "eines alten Pferdes"],
    ("no", "dog", "sg"): ["kein alter Hund", "keinen alten Hund", "keinem alten Hund", "keines alten Hundes"],
    ("no", "cat", "sg"): ["keine alte Katze", "keine alte Katze", "keiner alten Katze", "keiner alten Katze"],
    ("no", "horse", "sg"): [
        "kein altes Pferd",
        "kein altes Pferd",
        "keinem alten Pferd",
        "keines alten Pferdes",
    ],
    ("no", "dog", "pl"): [
        "keine alten Hunde",
        "keine alten Hunde",
        "keinen alten Hunden",
        "keiner alten Hunde",
    ],
    ("bare", "wine", "sg"): ["alter Wein", "alten Wein", "altem Wein", "alten Weins"],
    ("bare", "milk", "sg"): ["alte Milch", "alte Milch", "alter Milch", "alter Milch"],
    ("bare", "bread", "sg"): ["altes Brot", "altes Brot", "altem Brot", "alten Brotes"],
    ("bare", "dog", "pl"): ["alte Hunde", "alte Hunde", "alten Hunden", "alter Hunde"],
    ("this", "dog", "sg"): [
        "dieser alte Hund",
        "diesen alten Hund",
        "diesem alten Hund",
        "dieses alten Hundes",
    ],
    ("this", "cat", "sg"): [
        "diese alte Katze",
        "diese alte Katze",
        "dieser alten Katze",
        "dieser alten Katze",
    ],
    ("every", "horse", "sg"): [
        "jedes alte Pferd",
        "jedes alte Pferd",
        "jedem alten Pferd",
        "jedes alten Pferdes",
    ],
    ("all", "cat", "pl"): [
        "alle alten Katzen",
        "alle alten Katzen",
        "allen alten Katzen",
        "aller alten Katzen",
    ],
    ("many", "cat", "pl"): [
        "viele alte Katzen",
        "viele alte Katzen",
        "vielen alten Katzen",
        "vieler alter Katzen",
    ],
    ("some", "car", "pl"): [
        "einige alte Autos",
        "einige alte Autos",
        "einigen alten Autos",
        "einiger alter Autos",
    ],
}


@pytest.mark.parametrize(("kind", "noun", "number"), PARADIGMS)
def test_determiner_adjective_and_noun_decline_together(kind: str, noun: str, number: str) -> None:
    assert decline(Determiner(kind), NOUNS[noun], number) == PARADIGMS[kind, noun, number]


def test_possessives_decline_like_ein_and_a_name_leaves_strong_endings() -> None:
    ours = Determiner("possessive", Word("our", "unser"))
    assert decline(ours, NOUNS["dog"], "sg") == [
        "unser alter Hund",
        "unseren alten Hund",
        "unserem alten Hund",
        "unseres alten Hundes",
    ]
    named = Determiner("name", Word("Anna", "Anna"))
    assert decline(named, NOUNS["dog"], "sg")[:3] == [
        "Annas alter Hund",
        "Annas alten Hund",
        "Annas altem Hund",
    ]


@pytest.mark.parametrize(
    ("noun", "forms"),
    [
        ("boy", "Junge Jungen Jungen Jungen Jungen Jungen Jungen Jungen"),
        ("bear", "Bär Bären Bären Bären Bären Bären Bären Bären"),
        ("child", "Kind Kind Kind Kindes Kinder Kinder Kindern Kinder"),
        ("uncle", "Onkel Onkel Onkel Onkels Onkel Onkel Onkeln Onkel"),
        ("baby", "Baby Baby Baby Babys Babys Babys Babys Babys"),
        ("queen", "Königin Königin Königin Königin Königinnen Königinnen Königinnen Königinnen"),
        ("garden", "Garten Garten Garten Gartens Gärten Gärten Gärten Gärten"),
    ],
)
def test_noun_forms(noun: str, forms: str) -> None:
    declined = [morphology.noun_form(NOUNS[noun], case, number) for number in ("sg", "pl") for case in CASES]
    assert declined == forms.split()


@pytest.mark.parametrize(
    ("infinitive", "forms"),
    [
        # I, he, they: present; the same: past
        ("sehen", "sehe sieht sehen sah sah sahen"),
        ("arbeiten", "arbeite arbeitet arbeiten arbeitete arbeitete arbeiteten"),
        ("füttern", "füttere füttert füttern fütterte fütterte fütterten"),
        ("wissen", "weiß weiß wissen wusste wusste wussten"),
        ("mögen", "mag mag mögen mochte mochte mochten"),
        ("haben", "habe hat haben hatte hatte hatten"),
        ("essen", "esse isst essen aß aß aßen"),
        ("gehen", "gehe geht gehen ging ging gingen"),
    ],
)
def test_verb_forms(infinitive: str, forms: str) -> None:
    assert conjugate(VERBS[infinitive]) == forms.split()


def conjugate(verb: Verb) -> list[str]:
    people = [(1, "sg"), (3, "sg"), (3, "pl")]
    return [morphology.finite_form(verb, tense, *who) for tense in ("present", "past") for who in people]


def test_to_be_is_irregular() -> None:
    assert conjugate(lexicon.BE) == ["bin", "ist", "sind", "war", "war", "waren"]


@pytest.mark.parametrize(
    ("gender", "forms"),
    [
        ("dog", "der den dem dessen"),
        ("cat", "die die der deren"),
        ("horse", "das das dem dessen"),
        ("plural", "die die denen deren"),
    ],
)
def test_relative_pronouns(gender: str, forms: str) -> None:
    gap = Gap(NOUNS["dog"], "pl") if gender == "plural" else Gap(NOUNS[gender], "sg")
    assert [" ".join(german.noun_phrase(gap, case)) for case in CASES] == forms.split()


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("in dem", "im"),
        ("in das", "ins"),
        ("in die", "in die"),
        ("zu dem", "zum"),
        ("zu der", "zur"),
        ("von dem", "vom"),
        ("an das", "ans"),
        ("auf das", "auf das"),
        ("hinter dem", "hinter dem"),
    ],
)
def test_contractions(pair: str, expected: str) -> None:
    preposition, article = pair.split()
    word = lexicon.Preposition("", preposition, "dat", frozenset())
    assert morphology.contracted(word, article) == expected


def test_the_stem_of_an_adjective_can_differ_from_its_predicative_form() -> None:
    words = {word.en: word for word in lexicon.ADJECTIVES}
    forms = [
        morphology.adjective_form(words[word], "weak", "nom", "m") for word in ("tired", "expensive", "dark")
    ]
    assert forms == ["müde", "teure", "dunkle"]


SEPARABLE = [verb for verb in lexicon.VERBS["accusative"] if verb.particle]


@given(
    verb=st.sampled_from(SEPARABLE),
    pronoun=st.sampled_from(lexicon.PRONOUNS),
    tense=st.sampled_from(["present", "past"]),
)
def test_a_separable_verb_splits_in_a_main_clause_alone(
    verb: Verb, pronoun: lexicon.Pronoun, tense: str
) -> None:
    him = Personal(lexicon.PRONOUNS[1])
    clause = Clause(verb, tense, Personal(pronoun), him)
    finite = morphology.finite_form(verb, tense, pronoun.person, pronoun.number)
    main = german.write(Sentence(clause)).rstrip(".").split()
    assert (main[1], main[-1]) == (finite, verb.particle)
    because = next(word for word in lexicon.CONJUNCTIONS if word.en == "because")
    both = Sentence(clause, conjunction=because, adverbial=clause)
    assert german.write(both).endswith(f", weil {pronoun.nominative} ihn {verb.particle}{finite}.")


@given(verb=st.sampled_from(SEPARABLE), adverb=st.sampled_from(lexicon.TIMES))
def test_the_verb_stays_second_behind_a_fronted_adverb(verb: Verb, adverb: lexicon.Adverb) -> None:
    teacher = Phrase(NOUNS["teacher"], "sg", Determiner("the"))
    clause = Clause(verb, "present", teacher, Personal(lexicon.PRONOUNS[1]))
    fronted = Sentence(Clause(verb, "present", teacher, clause.object, time=Time(adverb)), first="time")
    start = adverb.de[0].upper() + adverb.de[1:]
    assert german.write(fronted) == f"{start} {verb.third} der Lehrer ihn {verb.particle}."
