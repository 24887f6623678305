"""What a sentence says, free of either language's word order: the derivations of the grammar.

Both languages are written from one tree (:mod:`minitrans.data.toy.english`,
:mod:`minitrans.data.toy.german`), which makes the grammar synchronous.
"""

from dataclasses import dataclass

from minitrans.data.toy.lexicon import Adjective, Adverb, Conjunction, Modal, Noun, Preposition, Verb, Word
from minitrans.data.toy.lexicon import Pronoun as PronounEntry


@dataclass(frozen=True)
class Determiner:
    """What opens a noun phrase: ``kind`` names the paradigm, the other fields fill it where it has a choice.

    Kinds: ``the this every a no possessive name bare many all some whose``. ``word`` is the possessive
    or the name (*Anna's*); ``owner`` is the noun before *whose*.
    """

    kind: str
    word: Word | None = None
    owner: "Gap | None" = None


@dataclass(frozen=True)
class Personal:
    """A personal pronoun."""

    entry: PronounEntry


@dataclass(frozen=True)
class Named:
    """A proper name."""

    word: Word


@dataclass(frozen=True)
class Gap:
    """The relative pronoun of its clause, agreeing with the noun before it."""

    noun: Noun
    number: str


@dataclass(frozen=True)
class Phrase:
    """A noun with all that belongs to it.

    A relative clause belongs to the nearest noun before it: a phrase with an attribute leaves the
    clause to the attribute's own noun. That keeps the English sentence unambiguous.
    """

    noun: Noun
    number: str
    determiner: Determiner
    count: Word | None = None
    adjectives: tuple[Adjective, ...] = ()
    attribute: "Attribute | None" = None
    relative: "Clause | None" = None

    def __post_init__(self) -> None:
        if self.attribute and self.relative:
            raise ValueError(f'"{self.noun.en}" has an attribute, so the clause belongs to the attribute')


@dataclass(frozen=True)
class Attribute:
    """A phrase that describes the noun before it: genitive (no preposition) or with a preposition."""

    preposition: Preposition | None
    phrase: Phrase


@dataclass(frozen=True)
class Both:
    """Two phrases joined by *and*."""

    first: "NounPhrase"
    second: "NounPhrase"


NounPhrase = Personal | Named | Gap | Phrase | Both


@dataclass(frozen=True)
class Clause:
    """A verb with its companions.

    ``tense`` is ``present``, ``past``, ``perfect`` or ``modal`` (then ``modal`` says which).
    ``negation`` is ``""``, ``"nicht"`` or ``"kein"`` (German puts it into the object's determiner).
    ``relativised`` names the part that a relative clause puts first: ``subject``, ``object`` or ``place``.
    """

    verb: Verb
    tense: str
    subject: NounPhrase
    object: NounPhrase | None = None
    recipient: NounPhrase | None = None
    place: "Place | None" = None
    predicate: Adjective | None = None
    complement: "Clause | None" = None
    modal: Modal | None = None
    negation: str = ""
    time: "Time | None" = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    relativised: str = ""


@dataclass(frozen=True)
class Place:
    """Where something is or goes."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True)
class Time:
    """When something happens: an adverb, or an hour (*at eight o'clock*)."""

    adverb: Adverb | None
    hour: Word | None = None


@dataclass(frozen=True)
class Sentence:
    """A main clause and what surrounds it.

    ``first`` names what stands before the verb: ``subject``, ``time``, ``place`` or ``adverbial`` (the
    subordinate clause). ``question`` is ``""``, ``"polar"``, ``"why"`` or ``"when"``.
    ``partner`` is a second main clause, joined by ``coordinator``.
    """

    main: Clause
    first: str = "subject"
    conjunction: Conjunction | None = None
    adverbial: Clause | None = None
    question: str = ""
    coordinator: Word | None = None
    partner: Clause | None = None


Node = Sentence | Clause | NounPhrase | Attribute | Place


def parts(node: Node) -> list[tuple[str, Node]]:
    """The trees right below a node, each with the name of its field."""
    return [(name, value) for name, value in vars(node).items() if isinstance(value, Node)]


def depth(node: Node) -> int:
    """How many relative clauses stand inside one another at the deepest point."""
    below = max((depth(child) for _, child in parts(node)), default=0)
    return below + int(isinstance(node, Phrase) and node.relative is not None)


def clauses(node: Node, context: str = "main") -> list[tuple[str, Clause]]:
    """Every clause of a tree with its context: ``main``, ``adverbial``, ``complement`` or ``relative``."""
    found = [(context, node)] if isinstance(node, Clause) else []
    for name, child in parts(node):
        found += clauses(child, name if name in ("adverbial", "complement", "relative") else "main")
    return found


def structure(node: Node) -> tuple[object, ...]:
    """The derivation with its words left out, as nested tuples: equal for equal structures.

    Kept: which parts a sentence, clause or phrase has, the verb's frame, whether it has a separable
    prefix, one verb, perfect or modal, negation, question, order. Left out with the words: number, gender,
    person, present or past, and which determiner, which change forms but neither order nor nesting.
    """
    return (*_rule(node), *((name, structure(child)) for name, child in parts(node)))


def _rule(node: Node) -> tuple[object, ...]:
    """The choices made at one node."""
    if isinstance(node, Phrase):
        return ("phrase", len(node.adjectives), node.count is not None)
    if isinstance(node, Clause):
        tense = node.tense if node.tense in ("perfect", "modal") else "one verb"
        adverbs = tuple(adverb is not None for adverb in (node.time, node.frequency, node.manner))
        verb = (node.verb.frame, bool(node.verb.particle), tense)
        return ("clause", *verb, node.negation, *adverbs, node.relativised)
    if isinstance(node, Sentence):
        return ("sentence", node.first, bool(node.question))
    return (type(node).__name__.lower(),)
