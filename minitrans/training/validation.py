"""What a validation measures: loss and perplexity without smoothing, BLEU by real search."""

from dataclasses import dataclass

from minitrans.config import SearchConfig
from minitrans.decoding.translator import Translator
from minitrans.evaluation.loss import corpus_loss
from minitrans.evaluation.metrics import bleu
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.processes import ALONE, Processes
from minitrans.training.prepare import Material


@dataclass(frozen=True)
class ValidationScores:
    """The scores of one validation."""

    nll: float  # nats a target token
    perplexity: float
    bleu: float
    translations: list[str]

    def row(self) -> dict[str, float]:
        """The columns of ``metrics.csv``."""
        return {"nll": self.nll, "perplexity": self.perplexity, "bleu": self.bleu}


class Validation:
    """The validation split, ready to score a model on.

    Translating is greedy whatever the search settings are: it is to be cheap, and to tell one update from
    another. The test scores at the end use the settings.

    Parameters
    ----------
    material
        Its validation split, tokenizers and data source are used.
    search
        The limits of length.
    sentences
        How many sentences (the first ones) are translated; None for all. The loss is over all of them.
    processes
        Those that share the work. The scores are those of one process, to the last bit.
    """

    def __init__(
        self,
        material: Material,
        search: SearchConfig,
        sentences: int | None,
        processes: Processes = ALONE,
    ):
        self.material, self.processes = material, processes
        self.search = search.greedy()
        self.sources = list(material.valid_text.src[:sentences])
        self.references = list(material.valid_text.tgt[:sentences])

    def run(self, model: EncoderDecoder) -> ValidationScores:
        """Score ``model`` as it stands, in evaluation mode."""
        translator = Translator(model, self.material.tokenizers, self.search, processes=self.processes)
        translations = [one.text for one in translator.translate(self.sources, name="the validation split")]
        score = bleu(translations, self.references, self.material.source.bleu_tokenize)
        corpus = self.material.valid_text
        loss = corpus_loss(
            model,
            self.material.tokenizers,
            list(corpus.src),
            list(corpus.tgt),
            name=corpus.origin,
            processes=self.processes,
        )
        return ValidationScores(loss.per_token, loss.perplexity, score.value, translations)
