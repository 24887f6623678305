"""A tiny checkpoint with random weights, as a run folder has some."""

from pathlib import Path

from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint, Progress, save
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer


def write_checkpoint(
    path: Path,
    position: dict[str, object],
    *,
    seed: int = 1,
    text: tuple[str, ...] = ("abc cba", "bca acb"),
    update: int = 0,
) -> Path:
    """One layer a side, a character vocabulary of ``text``."""
    both = train_tokenizer(text, TokenizerConfig(kind="char", vocab_size=20))
    experiment = Experiment(
        seed=seed,
        model=ModelConfig(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0
        ),
        position=position,
        attention={"kind": "scaled_dot_product"},
        data={"kind": "toy"},
        optimizer={"kind": "adamw"},
        schedule={"kind": "constant"},
        search=SearchConfig(beam_size=3, length_penalty="exponent", alpha=1.0, max_length=7),
    )
    model = build_model(experiment, both.vocab_size, both.vocab_size)
    tokenizers = Tokenizers(both, both)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(Checkpoint(path, experiment, tokenizers, model.state_dict(), None, None, Progress(update=update)))
    return path
