"""The words of the toy corpus: small tables, one word a line, read into plain records.

A noun or verb row lists the principal parts of a German dictionary; every other form follows from
them (:mod:`minitrans.data.toy.morphology`). An English word has one German word, or one for each
construction that it can head (*know that* is *wissen*, *know someone* is *kennen*).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun with its English plural and the German principal parts.

    ``kinds`` says what it can be the subject or object of; ``weak`` nouns (*der Junge, den Jungen*)
    take the genitive's form in every case but the nominative singular.
    """

    en: str
    en_plural: str
    gender: str
    de: str
    de_genitive: str
    de_plural: str
    weak: bool
    kinds: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """A verb in one construction (``frame``), with principal parts on both sides.

    ``particle`` is the German separable prefix (*an* in *anrufen*); ``en_particle`` stands right after
    the English verb (*look **for***). ``preposition`` is the governed one of the frame ``prepositional``.
    """

    frame: str
    en: tuple[str, str, str, str]  # base, third person, past, participle
    en_particle: str
    infinitive: str  # without the particle, as the next three
    third: str
    past: str
    participle: str
    particle: str
    auxiliary: str
    first: str
    subjects: frozenset[str]
    objects: frozenset[str]
    manners: frozenset[str]
    preposition: "Preposition | None"
    takes_place: bool


@dataclass(frozen=True)
class Preposition:
    """A preposition, the case that it governs and the nouns that it takes."""

    en: str
    de: str
    case: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Adjective:
    """An adjective: the predicative form, and the stem that carries the endings (*teuer*, *teur-*)."""

    en: str
    de: str
    stem: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun: English subject and object forms, German nominative, accusative, dative."""

    en_subject: str
    en_object: str
    nominative: str
    accusative: str
    dative: str
    person: int
    number: str


@dataclass(frozen=True)
class Adverb:
    """An adverb; ``uses`` names the tenses (time adverbs) or the verbs (manner adverbs) it goes with."""

    en: str
    de: str
    uses: frozenset[str]


@dataclass(frozen=True)
class Modal:
    """A modal verb or the future auxiliary: English word(s); German first and third person, plural."""

    en: str
    first: str
    third: str
    plural: str
    negatable: bool


@dataclass(frozen=True)
class Conjunction:
    """A subordinating conjunction in present and in past time; an empty word is not used."""

    en: str
    present: str
    past: str
    any_tense: bool


@dataclass(frozen=True)
class Word:
    """A word with one form on either side: names, numbers, possessors."""

    en: str
    de: str


def _rows(table: str) -> list[list[str]]:
    """The non-empty lines of a table, each split at its bars."""
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def _kinds(cell: str) -> frozenset[str]:
    return frozenset(cell.split())


def _regular_plural(noun: str) -> str:
    """The spelling rules of the English plural and third person: *boxes*, *ladies*, *dogs*, *carries*."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _read_nouns(kind: str, table: str) -> list[Noun]:
    """Rows ``english[/plural] gender nominative genitive plural [more kinds]``; ``*`` marks weak nouns."""
    nouns = []
    for line in table.strip().splitlines():
        english, gender, nominative, genitive, plural, *more = line.split()
        singular, _, irregular = english.partition("/")
        nouns.append(
            Noun(
                singular,
                irregular or _regular_plural(singular),
                gender,
                nominative,
                genitive.lstrip("*"),
                plural,
                genitive.startswith("*"),
                frozenset([kind, *more]),
            )
        )
    return nouns


PERSONS = _read_nouns(
    "person",
    """
teacher m Lehrer Lehrers Lehrer
doctor m Arzt Arztes Ärzte
boy m Junge *Jungen Jungen
man/men m Mann Mannes Männer
student m Student *Studenten Studenten
neighbor m Nachbar *Nachbarn Nachbarn
brother m Bruder Bruders Brüder
father m Vater Vaters Väter
son m Sohn Sohnes Söhne
uncle m Onkel Onkels Onkel
grandfather m Großvater Großvaters Großväter
king m König Königs Könige
baker m Bäcker Bäckers Bäcker
farmer m Bauer *Bauern Bauern
friend m Freund Freundes Freunde
guest m Gast Gastes Gäste
judge m Richter Richters Richter
painter m Maler Malers Maler
thief/thieves m Dieb Diebes Diebe
woman/women f Frau Frau Frauen
mother f Mutter Mutter Mütter
sister f Schwester Schwester Schwestern
daughter f Tochter Tochter Töchter
aunt f Tante Tante Tanten
grandmother f Großmutter Großmutter Großmütter
queen f Königin Königin Königinnen
nurse f Krankenschwester Krankenschwester Krankenschwestern
actress f Schauspielerin Schauspielerin Schauspielerinnen
princess f Prinzessin Prinzessin Prinzessinnen
witch f Hexe Hexe Hexen
child/children n Kind Kindes Kinder
girl n Mädchen Mädchens Mädchen
baby n Baby Babys Babys
""",
)

ANIMALS = _read_nouns(
    "animal",
    """
dog m Hund Hundes Hunde
bird m Vogel Vogels Vögel
bear m Bär *Bären Bären
lion m Löwe *Löwen Löwen
wolf/wolves m Wolf Wolfes Wölfe
fox m Fuchs Fuchses Füchse
cat f Katze Katze Katzen
mouse/mice f Maus Maus Mäuse
cow f Kuh Kuh Kühe
duck f Ente Ente Enten
goat f Ziege Ziege Ziegen
horse n Pferd Pferdes Pferde
pig n Schwein Schweins Schweine
rabbit n Kaninchen Kaninchens Kaninchen
chicken n Huhn Huhns Hühner
""",
)

THINGS = _read_nouns(
    "thing",
    """
letter m Brief Briefes Briefe text
key m Schlüssel Schlüssels Schlüssel
ball m Ball Balles Bälle toy
ring m Ring Ringes Ringe
hat m Hut Hutes Hüte clothes
coat m Mantel Mantels Mäntel clothes
suitcase m Koffer Koffers Koffer closable
umbrella m Regenschirm Regenschirms Regenschirme
apple m Apfel Apfels Äpfel food
cake m Kuchen Kuchens Kuchen food
table m Tisch Tisches Tische furniture
chair m Stuhl Stuhls Stühle furniture
lamp f Lampe Lampe Lampen device electric
machine f Maschine Maschine Maschinen device electric
radio n Radio Radios Radios device electric
bottle f Flasche Flasche Flaschen closable
cup f Tasse Tasse Tassen
newspaper f Zeitung Zeitung Zeitungen text
clock f Uhr Uhr Uhren device
bag f Tasche Tasche Taschen closable
flower f Blume Blume Blumen
door f Tür Tür Türen closable
pear f Birne Birne Birnen food
book n Buch Buches Bücher text
picture n Bild Bildes Bilder
car n Auto Autos Autos device
bicycle n Fahrrad Fahrrads Fahrräder device
window n Fenster Fensters Fenster closable
knife/knives n Messer Messers Messer
dress n Kleid Kleides Kleider clothes
shirt n Hemd Hemdes Hemden clothes
gift n Geschenk Geschenks Geschenke
egg n Ei Eis Eier food
boat n Boot Bootes Boote
bed n Bett Bettes Betten furniture
""",
)

PLACES = _read_nouns(
    "place",
    """
garden m Garten Gartens Gärten
park m Park Parks Parks
forest m Wald Waldes Wälder
station m Bahnhof Bahnhofs Bahnhöfe
cellar m Keller Kellers Keller room
tower m Turm Turmes Türme
city f Stadt Stadt Städte
school f Schule Schule Schulen
church f Kirche Kirche Kirchen
kitchen f Küche Küche Küchen room
library f Bibliothek Bibliothek Bibliotheken
factory f Fabrik Fabrik Fabriken
house n Haus Hauses Häuser room
village n Dorf Dorfes Dörfer
hotel n Hotel Hotels Hotels
room n Zimmer Zimmers Zimmer room
museum n Museum Museums Museen
office n Büro Büros Büros room
castle n Schloss Schlosses Schlösser
hospital n Krankenhaus Krankenhauses Krankenhäuser
""",
)

# Never counted: singular, without an indefinite article.
SUBSTANCES = _read_nouns(
    "substance",
    """
tea m Tee Tees - drink
coffee m Kaffee Kaffees - drink
wine m Wein Weins - drink
cheese m Käse Käses - food
milk f Milch Milch - drink
soup f Suppe Suppe - food
butter f Butter Butter - food
water n Wasser Wassers - drink
bread n Brot Brotes - food
meat n Fleisch Fleisches - food
""",
)

NOUNS = [*PERSONS, *ANIMALS, *THINGS, *PLACES, *SUBSTANCES]

NAMES = [Word(name, name) for name in ("Anna", "Maria", "Emma", "Julia", "Paul", "Peter", "Otto", "Karl")]

PRONOUNS = [
    Pronoun("I", "me", "ich", "mich", "mir", 1, "sg"),
    Pronoun("he", "him", "er", "ihn", "ihm", 3, "sg"),
    Pronoun("she", "her", "sie", "sie", "ihr", 3, "sg"),
    Pronoun("we", "us", "wir", "uns", "uns", 1, "pl"),
    Pronoun("they", "them", "sie", "sie", "ihnen", 3, "pl"),
]

POSSESSIVES = [
    Word("my", "mein"),
    Word("his", "sein"),
    Word("her", "ihr"),
    Word("our", "unser"),
    Word("their", "ihr"),
]

NUMBERS = [
    Word(*pair.split())
    for pair in (
        "two zwei",
        "three drei",
        "four vier",
        "five fünf",
        "six sechs",
        "seven sieben",
        "eight acht",
        "nine neun",
        "ten zehn",
        "eleven elf",
        "twelve zwölf",
        "twenty zwanzig",
        "thirty dreißig",
        "forty vierzig",
        "fifty fünfzig",
    )
]
HOURS = NUMBERS[:11]  # two o'clock to twelve o'clock

ADJECTIVES = [
    Adjective(english, german, stem or german, _kinds(kinds))
    for english, german, stem, kinds in _rows(
        """
old | alt | | person animal thing place
young | jung | | person animal
small | klein | | person animal thing place
big | groß | | animal thing place
new | neu | | thing place
beautiful | schön | | person animal thing place
tired | müde | müd | person animal
happy | glücklich | | person
sad | traurig | | person
rich | reich | | person
poor | arm | | person animal
strong | stark | | person animal
friendly | freundlich | | person animal
clever | klug | | person animal
famous | berühmt | | person place
sick | krank | | person animal
lazy | faul | | person animal
brave | mutig | | person animal
angry | wütend | | person animal
hungry | hungrig | | person animal
curious | neugierig | | person animal
strange | seltsam | | person animal thing place
dangerous | gefährlich | | animal
wild | wild | | animal
quiet | ruhig | | person animal place
expensive | teuer | teur | thing substance
cheap | billig | | thing substance
heavy | schwer | | thing
red | rot | | thing
green | grün | | thing
blue | blau | | thing
black | schwarz | | animal thing
white | weiß | | animal thing
brown | braun | | animal thing
warm | warm | | substance
cold | kalt | | substance
fresh | frisch | | substance
good | gut | | substance thing
dark | dunkel | dunkl | place
clean | sauber | | thing place
dirty | schmutzig | | thing place animal
broken | kaputt | | thing
"""
    )
]

# Time adverbs and the tenses that they go with.
TIMES = [
    Adverb("today", "heute", _kinds("present past perfect modal")),
    Adverb("now", "jetzt", _kinds("present modal")),
    Adverb("yesterday", "gestern", _kinds("past")),
    Adverb("tomorrow", "morgen", _kinds("modal")),
    Adverb("every day", "jeden Tag", _kinds("present past")),
    Adverb("in the evening", "am Abend", _kinds("present past modal")),
]

# How often: before the English verb and after its auxiliary.
FREQUENCIES = [
    Adverb("often", "oft", frozenset()),
    Adverb("always", "immer", frozenset()),
    Adverb("sometimes", "manchmal", frozenset()),
    Adverb("rarely", "selten", frozenset()),
    Adverb("usually", "meistens", frozenset()),
]

MANNERS = [
    Adverb("slowly", "langsam", _kinds("speed")),
    Adverb("quickly", "schnell", _kinds("speed")),
    Adverb("loudly", "laut", _kinds("sound")),
    Adverb("quietly", "leise", _kinds("sound")),
    Adverb("gladly", "gern", _kinds("speed sound care")),
    Adverb("carefully", "vorsichtig", _kinds("care")),
]

MODALS = [
    Modal("can", "kann", "kann", "können", True),
    Modal("will", "werde", "wird", "werden", True),
    Modal("should", "sollte", "sollte", "sollten", True),
    Modal("must", "muss", "muss", "müssen", False),  # "must not" is a different verb in German
    Modal("want to", "will", "will", "wollen", True),
]

CONJUNCTIONS = [
    Conjunction("because", "weil", "weil", True),
    Conjunction("although", "obwohl", "obwohl", True),
    Conjunction("when", "wenn", "als", False),
    Conjunction("if", "wenn", "", True),
    Conjunction("while", "während", "während", False),
    Conjunction("before", "bevor", "bevor", False),
    Conjunction("until", "bis", "bis", False),
]

# Where something is: dative.
LOCATIONS = [
    Preposition("in", "in", "dat", _kinds("place")),
    Preposition("behind", "hinter", "dat", _kinds("place furniture")),
    Preposition("next to", "neben", "dat", _kinds("place furniture")),
    Preposition("in front of", "vor", "dat", _kinds("place")),
    Preposition("under", "unter", "dat", _kinds("furniture")),
    Preposition("on", "auf", "dat", _kinds("furniture")),
]

# Where something goes.
DIRECTIONS = [
    Preposition("into", "in", "acc", _kinds("place")),
    Preposition("onto", "auf", "acc", _kinds("furniture")),
    Preposition("to", "zu", "dat", _kinds("place person")),
    Preposition("through", "durch", "acc", _kinds("place")),
    Preposition("from", "aus", "dat", _kinds("place")),
]

# What a noun can be described by, by the kind of that noun.
ATTRIBUTES = {
    "person": [
        Preposition("with", "mit", "dat", _kinds("clothes animal")),
        Preposition("without", "ohne", "acc", _kinds("clothes animal")),
    ],
    "text": [Preposition("about", "über", "acc", _kinds("person animal"))],
    "thing": [Preposition("for", "für", "acc", _kinds("person"))],
}

BE = Verb(
    frame="copula",
    en=("be", "is", "was", "been"),
    en_particle="",
    infinitive="sein",
    third="ist",
    past="war",
    participle="gewesen",
    particle="",
    auxiliary="sein",
    first="bin",
    subjects=_kinds("person animal thing place"),
    objects=frozenset(),
    manners=frozenset(),
    preposition=None,
    takes_place=False,
)

# Columns: English verb ("+" before its particle; if irregular: third person, past, participle) | German
# infinitive ("+" after its separable prefix), third person, past, participle and, for the perfect, "sein" |
# kinds of subjects | kinds of objects (of an intransitive verb: "place" if it takes one) | kinds of manner
# adverbs | governed preposition and its case.
_VERBS = {
    "intransitive": """
sleep sleeps slept slept | schlafen schläft schlief geschlafen | person animal | place | sound
work | arbeiten arbeitet arbeitete gearbeitet | person | place | speed care
play | spielen spielt spielte gespielt | person animal | place | sound
dance | tanzen tanzt tanzte getanzt | person | place | speed
sing sings sang sung | singen singt sang gesungen | person | place | sound
laugh | lachen lacht lachte gelacht | person | place | sound
cry | weinen weint weinte geweint | person | place | sound
wait | warten wartet wartete gewartet | person animal | place |
sit sits sat sat | sitzen sitzt saß gesessen | person animal | place |
stand stands stood stood | stehen steht stand gestanden | person animal | place |
live | leben lebt lebte gelebt | person animal | place |
arrive | an+kommen kommt kam gekommen sein | person animal | |
fall+asleep falls fell fallen | ein+schlafen schläft schlief geschlafen sein | person animal | |
come+back comes came come | zurück+kommen kommt kam gekommen sein | person animal | | speed
go+out goes went gone | aus+gehen geht ging gegangen sein | person | |
stop stops stopped stopped | auf+hören hört hörte gehört | person | |
""",
    "motion": """
go goes went gone | gehen geht ging gegangen sein | person animal | | speed
run runs ran run | rennen rennt rannte gerannt sein | person animal | |
walk | laufen läuft lief gelaufen sein | person animal | | speed
drive drives drove driven | fahren fährt fuhr gefahren sein | person | | speed
hurry | eilen eilt eilte geeilt sein | person | |
climb | klettern klettert kletterte geklettert sein | person animal | | speed
""",
    "accusative": """
see sees saw seen | sehen sieht sah gesehen | person animal | person animal thing place |
hear hears heard heard | hören hört hörte gehört | person animal | person animal |
love | lieben liebt liebte geliebt | person animal | person animal place |
hate | hassen hasst hasste gehasst | person | person animal place |
know knows knew known | kennen kennt kannte gekannt | person | person place |
find finds found found | finden findet fand gefunden | person animal | person animal thing |
look+for | suchen sucht suchte gesucht | person animal | person animal thing |
visit | besuchen besucht besuchte besucht | person | person place |
buy buys bought bought | kaufen kauft kaufte gekauft | person | thing substance animal |
sell sells sold sold | verkaufen verkauft verkaufte verkauft | person | thing substance animal |
eat eats ate eaten | essen isst aß gegessen | person | food | speed
drink drinks drank drunk | trinken trinkt trank getrunken | person | drink | speed
feed feeds fed fed | füttern füttert fütterte gefüttert | person | animal |
carry | tragen trägt trug getragen | person | thing | speed care
paint | malen malt malte gemalt | person | person animal thing place | care
forget forgets forgot forgotten | vergessen vergisst vergaß vergessen | person | person thing |
describe | beschreiben beschreibt beschrieb beschrieben | person | person thing place | care
wash | waschen wäscht wusch gewaschen | person | animal clothes | care
need | brauchen braucht brauchte gebraucht | person | person thing substance |
repair | reparieren repariert reparierte repariert | person | device furniture | care
steal steals stole stolen | stehlen stiehlt stahl gestohlen | person | thing animal |
hide hides hid hidden | verstecken versteckt versteckte versteckt | person | thing | care
lose loses lost lost | verlieren verliert verlor verloren | person | thing |
greet | begrüßen begrüßt begrüßte begrüßt | person | person | sound
ask | fragen fragt fragte gefragt | person | person |
understand understands understood understood | verstehen versteht verstand verstanden | person | person |
meet meets met met | treffen trifft traf getroffen | person | person animal |
bite bites bit bitten | beißen beißt biss gebissen | animal | person animal |
chase | jagen jagt jagte gejagt | animal | person animal |
watch | beobachten beobachtet beobachtete beobachtet | person animal | person animal | care
like | mögen mag mochte gemocht | person animal | person animal thing substance |
have has had had | haben hat hatte gehabt | person | thing animal |
call | an+rufen ruft rief gerufen | person | person |
invite | ein+laden lädt lud geladen | person | person |
open | auf+machen macht machte gemacht | person | closable | speed care
close | zu+machen macht machte gemacht | person | closable | speed care
pick+up | ab+holen holt holte geholt | person | person thing |
look+at | an+sehen sieht sah gesehen | person animal | person animal thing |
wake+up wakes woke woken | auf+wecken weckt weckte geweckt | person animal | person animal | care
turn+on | ein+schalten schaltet schaltete geschaltet | person | electric |
throw+away throws threw thrown | weg+werfen wirft warf geworfen | person | thing |
bring+along brings brought brought | mit+bringen bringt brachte gebracht | person | person thing substance |
clean+up | auf+räumen räumt räumte geräumt | person | room | speed care
try+on | an+probieren probiert probierte probiert | person | clothes |
""",
    "dative": """
help | helfen hilft half geholfen | person | person animal |
thank | danken dankt dankte gedankt | person | person |
answer | antworten antwortet antwortete geantwortet | person | person | speed sound
follow | folgen folgt folgte gefolgt sein | person animal | person animal | speed
congratulate | gratulieren gratuliert gratulierte gratuliert | person | person |
trust | vertrauen vertraut vertraute vertraut | person animal | person animal |
listen+to | zu+hören hört hörte gehört | person | person | care
""",
    "prepositional": """
wait | warten wartet wartete gewartet | person animal | person animal | | for auf acc
think thinks thought thought | denken denkt dachte gedacht | person | person animal thing place | | of an acc
dream | träumen träumt träumte geträumt | person animal | person animal thing place | | of von dat
laugh | lachen lacht lachte gelacht | person | person animal | | at über acc
speak speaks spoke spoken | sprechen spricht sprach gesprochen | person | person animal | | with mit dat
play | spielen spielt spielte gespielt | person animal | person animal toy | | with mit dat
work | arbeiten arbeitet arbeitete gearbeitet | person | person | | for für acc
fight fights fought fought | kämpfen kämpft kämpfte gekämpft | person | person animal | | against gegen acc
""",
    "ditransitive": """
give gives gave given | geben gibt gab gegeben | person | thing substance animal |
show shows showed shown | zeigen zeigt zeigte gezeigt | person | thing animal place |
send sends sent sent | schicken schickt schickte geschickt | person | thing |
lend lends lent lent | leihen leiht lieh geliehen | person | thing |
bring brings brought brought | bringen bringt brachte gebracht | person | thing substance |
promise | versprechen verspricht versprach versprochen | person | thing animal |
""",
    "that": """
say says said said | sagen sagt sagte gesagt | person | |
know knows knew known | wissen weiß wusste gewusst | person | |
believe | glauben glaubt glaubte geglaubt | person | |
hope | hoffen hofft hoffte gehofft | person | |
see sees saw seen | sehen sieht sah gesehen | person animal | |
hear hears heard heard | hören hört hörte gehört | person animal | |
forget forgets forgot forgotten | vergessen vergisst vergaß vergessen | person | |
""",
    "whether": """
ask | fragen fragt fragte gefragt | person | |
know knows knew known | wissen weiß wusste gewusst | person | |
""",
}


def _english_forms(base: str, irregular: list[str]) -> tuple[str, str, str, str]:
    """Base, third person, past, participle: *carry, carries, carried, carried* unless told otherwise."""
    if irregular:
        third, past, participle = irregular
        return base, third, past, participle
    stem = base[:-1] + "i" if base.endswith("y") and base[-2] not in "aeiou" else base
    past = stem + ("d" if base.endswith("e") else "ed")
    return base, _regular_plural(base), past, past


def _read_verb(frame: str, row: list[str]) -> Verb:
    english, german, subjects, objects, manners, *governed = row
    base, *irregular = english.split()
    base, _, en_particle = base.partition("+")
    infinitive, de_third, de_past, de_participle, *auxiliary = german.split()
    particle, _, rest = infinitive.rpartition("+")
    preposition = None
    if governed:
        en, de, case = governed[0].split()
        preposition = Preposition(en, de, case, _kinds(objects))
    stem = rest.removesuffix("n").removesuffix("e")
    return Verb(
        frame=frame,
        en=_english_forms(base, irregular),
        en_particle=en_particle,
        infinitive=rest,
        third=de_third,
        past=de_past,
        participle=de_participle,
        particle=particle,
        auxiliary="".join(auxiliary) or "haben",
        first=de_third if rest in ("mögen", "wissen") else stem + "e",
        subjects=_kinds(subjects),
        objects=_kinds(objects) - {"place"} if frame == "intransitive" else _kinds(objects),
        manners=_kinds(manners),
        preposition=preposition,
        takes_place=frame == "intransitive" and objects == "place",
    )


VERBS = {frame: [_read_verb(frame, row) for row in _rows(table)] for frame, table in _VERBS.items()}
