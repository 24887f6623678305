"""German word forms: declension and conjugation by table.

Cases are ``nom acc dat gen``, genders ``m f n``, numbers ``sg pl``. A *slot* is gender and number as
one letter: ``m f n`` in the singular, ``p`` in the plural, which knows no gender.
"""

from minitrans.data.toy.lexicon import Adjective, Modal, Noun, Preposition, Pronoun, Verb

SLOTS = "mfnp"
CASES = ("nom", "acc", "dat", "gen")


def _paradigm(*rows: str) -> dict[tuple[str, str], str]:
    """Four rows (nom, acc, dat, gen) of four cells (m f n plural); ``-`` is no ending."""
    return {
        (case, slot): "" if cell == "-" else cell
        for case, row in zip(CASES, rows, strict=True)
        for slot, cell in zip(SLOTS, row.split(), strict=True)
    }


ARTICLE = _paradigm("der die das die", "den die das die", "dem der dem den", "des der des der")
RELATIVE = _paradigm("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")

# Endings of dieser, jeder, alle, viele, einige; of ein, kein and the possessives.
DER_WORD = _paradigm("er e es e", "en e es e", "em er em en", "es er es er")
EIN_WORD = _paradigm("- e - e", "en e - e", "em er em en", "es er es er")

# Adjective endings after a der-word, after an ein-word, and with neither.
ADJECTIVE = {
    "weak": _paradigm("e e e en", "en e e en", "en en en en", "en en en en"),
    "mixed": _paradigm("er e es en", "en e es en", "en en en en", "en en en en"),
    "strong": _paradigm("er e es e", "en e es e", "em er em en", "en er en er"),
}

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("in", "das"): "ins",
    ("an", "das"): "ans",
}

_IRREGULAR = {
    ("sein", "present", 1, "pl"): "sind",
    ("sein", "present", 3, "pl"): "sind",
}


def slot(noun: Noun, number: str) -> str:
    """The column of a paradigm that a noun needs: its gender, or ``p`` in the plural."""
    return "p" if number == "pl" else noun.gender


def noun_form(noun: Noun, case: str, number: str) -> str:
    """Decline a noun: weak nouns, the genitive singular, and the *-n* of the dative plural."""
    if number == "pl":
        add = case == "dat" and not noun.de_plural.endswith(("n", "s"))
        return noun.de_plural + "n" * add
    if case == "gen" or (noun.weak and case != "nom"):
        return noun.de_genitive
    return noun.de


def adjective_form(adjective: Adjective, pattern: str, case: str, where: str) -> str:
    """An adjective before its noun. ``pattern`` is weak, mixed or strong; ``where`` is the slot."""
    return adjective.stem + ADJECTIVE[pattern][case, where]


def pronoun_form(pronoun: Pronoun, case: str) -> str:
    """A personal pronoun in the nominative, accusative or dative."""
    return {"nom": pronoun.nominative, "acc": pronoun.accusative, "dat": pronoun.dative}[case]


def finite_form(verb: Verb, tense: str, person: int, number: str) -> str:
    """Conjugate a verb (without its separable prefix) in the present or past, first or third person."""
    if (verb.infinitive, tense, person, number) in _IRREGULAR:
        return _IRREGULAR[verb.infinitive, tense, person, number]
    if tense == "past":
        return verb.past + ("" if number == "sg" else "n" if verb.past.endswith("e") else "en")
    if number == "pl":
        return verb.infinitive
    return verb.first if person == 1 else verb.third


def auxiliary_form(auxiliary: str, person: int, number: str) -> str:
    """*haben* or *sein* in the present, for the perfect."""
    forms = {"haben": ("habe", "hat", "haben"), "sein": ("bin", "ist", "sind")}[auxiliary]
    return forms[2] if number == "pl" else forms[0 if person == 1 else 1]


def modal_form(modal: Modal, person: int, number: str) -> str:
    """A modal verb in the present."""
    if number == "pl":
        return modal.plural
    return modal.first if person == 1 else modal.third


def contracted(preposition: Preposition, article: str) -> str:
    """A preposition with a definite article: *in* + *dem* is *im*, *auf* + *dem* stays two words."""
    return CONTRACTIONS.get((preposition.de, article), f"{preposition.de} {article}")
