"""The stream of updates: going on is slicing it, and loader workers and processes change nothing in it."""

import multiprocessing
import os
import socket
import sys
from multiprocessing.resource_sharer import DupFd
from pathlib import Path

import numpy as np
import pytest

from minitrans.data.encoded import EncodedCorpus, Side
from minitrans.data.stream import RunPlan, Share, UpdateSize, UpdateStream, _end_quietly_with_training


def corpus(num_pairs: int) -> EncodedCorpus:
    """Pairs of 1 to 7 tokens; the lines count from 100."""
    counts = np.arange(num_pairs) % 7 + 1
    side = Side(np.full(counts.sum(), 5), np.cumsum(counts) - counts, counts)
    return EncodedCorpus(side, side, np.arange(num_pairs) + 100, "a")


def run_plan(num_pairs: int, sentences: int, max_updates: int, max_epochs: int | None = None) -> RunPlan:
    size = UpdateSize(None, update_sentences=sentences, chunk_tokens=4096)
    return RunPlan(corpus(num_pairs), size, 1, max_updates, max_epochs)


def shares(plan: RunPlan, start: int = 0, rank: int = 0, world_size: int = 1) -> list[Share]:
    return list(UpdateStream(plan, start, rank, world_size))


def lines(share: Share) -> list[int]:
    """The lines that count."""
    return [line for batch in share.micro_batches if batch.weight for line in batch.lines]


def test_going_on_twice_repeats_the_run_without_stops():
    plan = run_plan(40, 4, max_updates=18)
    whole = [lines(share) for share in shares(plan)]
    assert len(whole) == 18
    stopped = [lines(share) for share in shares(plan)[:12]]
    stopped += [lines(share) for share in shares(plan, start=12)[:3]]
    stopped += [lines(share) for share in shares(plan, start=15)]
    assert stopped == whole


def test_each_epoch_uses_each_line_once_in_another_order():
    epochs = [
        [line for s in shares(run_plan(40, 4, 20)) if s.epoch == epoch for line in lines(s)]
        for epoch in (1, 2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100, 140))
    assert epochs[0] != epochs[1]


def test_shares_say_where_they_are():
    told = [(s.update, s.epoch, s.ends_epoch, s.last) for s in shares(run_plan(10, 4, max_updates=5))]
    assert told == [
        (1, 1, False, False),
        (2, 1, False, False),
        (3, 1, True, False),
        (4, 2, False, False),
        (5, 2, False, True),
    ]


def test_a_run_ends_with_its_epochs_where_they_come_first():
    assert run_plan(10, 4, max_updates=100, max_epochs=2).total == 6
    assert run_plan(10, 4, max_updates=5, max_epochs=2).total == 5


def test_two_processes_share_each_update():
    plan = run_plan(10, 2, max_updates=10)
    both = [shares(plan, rank=rank, world_size=2) for rank in (0, 1)]
    for first, second, alone in zip(*both, shares(plan), strict=True):
        assert sorted(lines(first) + lines(second)) == sorted(lines(alone))
        assert len(first.micro_batches) == len(second.micro_batches)
        assert first.target_tokens == second.target_tokens == alone.target_tokens
        tokens = sum(b.num_target_tokens * b.weight for s in (first, second) for b in s.micro_batches)
        assert tokens == alone.target_tokens


@pytest.mark.parametrize("num_workers", [1, 2])
def test_loader_workers_keep_the_order(num_workers):
    plan = run_plan(20, 2, max_updates=25)
    loader = UpdateStream(plan, 4, 0, 1).loader(num_workers, pin_memory=False)
    assert [(share.update, lines(share)) for share in loader] == [
        (share.update, lines(share)) for share in shares(plan, start=4)
    ]


def _hand_over_to_one_that_dies(log: Path) -> None:
    sys.excepthook = lambda kind, error, trace: log.open("a").write(f"{kind.__name__}: {error}\n")
    _end_quietly_with_training(0)
    out, into = os.pipe()
    handed = DupFd(into)
    with socket.socket(socket.AF_UNIX) as training:
        training.connect(handed._id[0])  # and is gone
    os.write(handed.detach(), b"handed")  # one that lives is served, after the other
    assert os.read(out, 6) == b"handed"
    sys.excepthook(ValueError, ValueError("of another kind"), None)


def test_a_loader_process_is_silent_about_training_that_was_killed(tmp_path):
    """BR-18's kind: a batch is handed over by a thread of multiprocessing, which prints what it meets."""
    log = tmp_path / "log"
    process = multiprocessing.get_context("fork").Process(target=_hand_over_to_one_that_dies, args=(log,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert log.read_text() == "ValueError: of another kind\n"
