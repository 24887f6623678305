"""Stopping in good order: finish the update, save, say how to go on."""

import signal
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer

from minitrans.signals import handled_by


class Interruption:
    """Turns SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (SLURM's warning) into a request to end after this update.

    A second Ctrl-C stops at once. Used as a context manager around training (:func:`handled_by`).
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._handling = handled_by(self._request)

    def __enter__(self) -> "Interruption":
        self._handling.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._handling.__exit__(*exception)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)

    def agreed(self, trainer: Trainer) -> bool:
        """Whether any process was asked to end: all processes must stop after the same update."""
        asked = self.requested is not None
        if trainer.world_size == 1:
            return asked
        votes = torch.tensor(float(asked), device=trainer.strategy.root_device)
        torch.distributed.all_reduce(votes)  # one collective an update; Lightning's reduce makes it two
        return bool(votes > 0)


def own_signals(trainer: Trainer) -> Trainer:
    """Keep Lightning from handling signals itself.

    Its handler leaves by ``SystemExit``, that is with status 0 and without a word, and talks to the other
    processes from inside the handler, which can block for ever. And before each update it broadcasts whether
    the first process was told, and takes any failure of that for a no: a process then is one collective
    ahead of the others, and all wait for ever. :meth:`Interruption.agreed` is the one vote.
    """

    def nothing() -> None:
        return

    trainer._signal_connector.register_signal_handlers = nothing  # type: ignore[method-assign]
    # newer than the oldest Lightning that we take
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = nothing  # type: ignore[method-assign]
    return trainer
