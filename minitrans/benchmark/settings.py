"""What ``scripts/benchmark.py`` can be told: an experiment, and how it is measured."""

import dataclasses
from dataclasses import dataclass, field

from minitrans.config import LONGEST, Experiment, TrainConfig, TrainerConfig, _doc

TASKS = ("train", "decode", "levers", "scaling", "startup", "data")


@dataclass
class DecodeConfig:
    """What ``decode`` translates, and how."""

    split: str = _doc("the split whose sources are translated", "test")
    sentences: int = _doc("at most so many of them", 1000, low=1)
    batch_sentences: int = _doc(
        "sentences of one batch; like lengths together, the longest first", 100, low=1
    )
    length: int | None = _doc(
        "tokens of every translation, whatever the model says (null: as the model ends them)",
        20,
        low=1,
        high=LONGEST,
    )
    beam_sizes: list[int] = _doc("the beams measured; 1 is greedy", [1, 5], low=1, high=10_000)


@dataclass
class ScalingConfig:
    """The axes of ``scaling``. Along each one, the others stay at the values of the configuration."""

    length: int = _doc("tokens of every sentence, end token counted, along the other axes", 32, low=2)
    lengths: list[int] = _doc("tokens of every sentence", [8, 16, 32, 64, 128, 256, 512, 1024], low=2)
    widths: list[int] = _doc("d_model, with d_ff and the heads in proportion", [64, 128, 256, 512], low=8)
    vocab_sizes: list[int] = _doc("entries of the vocabulary", [1000, 4000, 16000, 64000], low=32)
    update_tokens: list[int] = _doc("tokens of one update", [1024, 2048, 4096, 8192], low=64)
    threads: list[int] = _doc("processor threads of one process", [1, 2], low=1)
    processes: list[int] = _doc("processes of one thread each, by DDP", [1, 2], low=1)
    output_dir: str = _doc("the folder that scaling.png goes into", "runs/benchmark", path=True)


@dataclass
class CorpusConfig:
    """What ``data`` plans."""

    pairs: int = _doc("generated pairs whose updates are planned", 10_000_000, low=1)


@dataclass
class BenchmarkConfig(Experiment):
    """``scripts/benchmark.py``: how fast one experiment trains and translates on this machine."""

    task: str = _doc(
        "what is measured; the first word may be it alone: benchmark.py decode", "train", choices=TASKS
    )
    seconds: float = _doc("length of one timed window of training", 10.0, above=0)
    warm_up: float = _doc("seconds of work before the first window of a process", 5.0, low=0)
    windows: int = _doc("windows (for decode and startup: runs), of which the median is told", 5, low=1)
    peers: bool = _doc(
        "measure others on the same work, window by window in turn, each in a new process", False
    )
    profile: str = _doc(
        "a folder for a trace of a few more steps, whose ten dearest operations are printed (empty: none)",
        "",
        path=True,
    )
    checkpoint: str = _doc(
        "decode with this model, a .ckpt file or a run folder (empty: random weights)",
        "",
        path=True,
    )
    threads: int = _doc("processor threads (0: torch's own choice)", 0, low=0)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)

    def training_run(self) -> TrainConfig:
        """The configuration of a training of this experiment that goes on until it is stopped.

        It validates and saves nothing: both are left out of the throughput anyway.
        """
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(Experiment)}
        endless = dataclasses.replace(
            self.training,
            max_updates=_ENDLESS,
            max_epochs=None,
            validate_every=_ENDLESS,
            save_every=_ENDLESS,
            leak_test=False,
        )
        trainer = dataclasses.replace(self.trainer, progress_bar=False)
        return TrainConfig(**{**shared, "training": endless}, threads=self.threads, trainer=trainer)


_ENDLESS = 10**9
