"""A benchmark configuration that takes no time: the bundled corpus, a tiny model, windows of one update."""

from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.cli.compose import compose

WORDS = [
    "model=tiny",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "tokenizer.kind=word",
    "training.update_tokens=512",
    "seconds=1e-9",
    "warm_up=0",
    "windows=2",
    "threads=1",
    "trainer.precision=fp32",
    "trainer.accelerator=cpu",
]


def small(*words: str) -> BenchmarkConfig:
    """The configuration of a command line."""
    return compose("benchmark", [*WORDS, *words], BenchmarkConfig).config
