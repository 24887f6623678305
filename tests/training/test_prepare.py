"""What is made of a configuration, and what is refused before a folder exists."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.tokenizers import tokenizer_ja_mecab

from minitrans.config import TrainConfig, TrainerConfig
from minitrans.errors import UserError
from minitrans.processors import MOST_A_PROCESSOR
from minitrans.training.prepare import (
    first_batch,
    prepare,
    refuse_machine,
    update_rule,
)
from tests.training.tiny import changed, write_rows


def test_data_plan_and_model_fit_together(tiny: TrainConfig) -> None:
    material = prepare(tiny)
    assert (len(material.train), len(material.valid), len(material.valid_text)) == (40, 6, 6)
    assert len(material.run_plan.first_epoch) == 10
    assert material.run_plan.total == 12
    entries = material.tokenizers.src.vocab_size
    assert entries == 4 + 7  # the special ones and the words
    batch = first_batch(material.run_plan)
    states = material.model.decode(
        batch.tgt_in, material.model.encode(batch.src, batch.src_mask), batch.src_mask
    )
    assert material.model.logits(states).shape == (*batch.tgt_out.shape, entries)


def test_the_same_configuration_gives_the_same_weights_and_another_seed_others(tiny: TrainConfig) -> None:
    first, again, other = (prepare(changed(tiny, {"seed": seed})) for seed in (1, 1, 2))
    name = "encoder.embedding.weight"
    assert torch.equal(first.model.state_dict()[name], again.model.state_dict()[name])
    assert not torch.equal(first.model.state_dict()[name], other.model.state_dict()[name])


def test_tokenizers_that_are_given_are_used(tiny: TrainConfig) -> None:
    given = prepare(changed(tiny, {"tokenizer.kind": "char", "tokenizer.vocab_size": 40})).tokenizers
    assert prepare(tiny, given).tokenizers is given


@pytest.mark.parametrize(
    ("section", "peak", "last"),
    [
        ({"kind": "inverse_sqrt", "warmup_updates": 4}, 0.01, 0.01 * (4 / 12) ** 0.5),
        ({"kind": "noam", "warmup_updates": 4, "factor": 2.0}, 2 / 8, 2 / 8 * (4 / 12) ** 0.5),
        ({"kind": "cosine", "warmup_updates": 4, "floor": 0.1}, 0.01, 0.001),
        ({"kind": "linear", "warmup_updates": 4, "floor": 0.5}, 0.01, 0.005),
        ({"kind": "constant", "warmup_updates": 4}, 0.01, 0.01),
    ],
)
def test_the_schedule_gets_the_peak_the_width_and_the_last_update(
    section: dict[str, Any], peak: float, last: float, tiny: TrainConfig
) -> None:
    """Width 16, peak 0.01, 12 updates."""
    _, schedule = update_rule(changed(tiny, {"schedule": section}), 12)
    assert schedule.rate(4) == pytest.approx(peak)
    assert schedule.rate(12) == pytest.approx(last)


def test_a_falling_schedule_ends_where_the_epochs_do(tiny: TrainConfig) -> None:
    cosine = {"kind": "cosine", "warmup_updates": 4, "floor": 0.1}
    material = prepare(
        changed(tiny, {"schedule": cosine, "training.max_updates": 999, "training.max_epochs": 2})
    )
    assert material.run_plan.total == 20
    assert material.schedule.rate(20) == pytest.approx(0.001)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_sentence_past_learned_positions_is_refused_by_line(
    split: str, tiny: TrainConfig, tmp_path: Path
) -> None:
    files = write_rows(tmp_path, split, [["eins", "zwei"], ["drei"] * 20, ["vier"]])
    config = changed(tiny, {f"data.{split}": files, "position": {"kind": "learned", "max_length": 16}})
    words = rf"the source on line 2 of {re.escape(files[0])}.* has 21 tokens .*position\.max_length is 16"
    with pytest.raises(UserError, match=words):
        prepare(config)
    prepare(changed(config, {"position": {"kind": "sinusoidal"}}))


def test_unlike_lengths_are_refused_with_both_counts(tiny: TrainConfig, tmp_path: Path) -> None:
    """BR-12, at the point where training reads its data."""
    files = write_rows(tmp_path, "train", [["eins"]] * 100)
    Path(files[1]).write_text("eins\n" * 99)
    with pytest.raises(UserError, match=r"100.*99"):
        prepare(changed(tiny, {"data.train": files}))


def test_a_leaking_model_is_refused_where_the_test_is_on(
    tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minitrans.training.prepare as module

    def leak(model: object, batch: object, *, causal: bool) -> None:
        assert causal
        raise UserError("it sees the future")

    monkeypatch.setattr(module, "check_for_leaks", leak)
    prepare(tiny)
    with pytest.raises(UserError, match="it sees the future"):
        prepare(changed(tiny, {"training.leak_test": True}))


def test_a_bleu_that_cannot_be_computed_is_refused_before_the_first_update(
    tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"^data\.bleu_tokenize=ja-mecab needs packages .*sacrebleu\[ja\]"):
        prepare(changed(tiny, {"data.bleu_tokenize": "ja-mecab"}))


@pytest.mark.parametrize("key", ["devices", "num_workers"])
def test_more_processes_than_the_machine_can_bear_are_refused(key: str) -> None:
    most = MOST_A_PROCESSOR * (os.cpu_count() or 1)
    refuse_machine(TrainerConfig(accelerator="cpu", **{key: most}))
    sentence = (
        f"trainer.{key}={most + 1} is more than this machine's processors can bear; use trainer.{key}={most} "
    )
    with pytest.raises(UserError, match=re.escape(sentence)):
        refuse_machine(TrainerConfig(accelerator="cpu", **{key: most + 1}))


def test_a_model_that_no_memory_holds_is_refused(tiny: TrainConfig) -> None:
    # 10^9 x 10^9 weights are more than any address space has
    with pytest.raises(UserError, match=r"^the model's weights do not fit into this machine's memory; "):
        prepare(changed(tiny, {"model.d_model": 10**9, "model.d_k": 10**9, "model.tie": "none"}))
