r"""Moving average of the weights, :math:`\bar\theta \leftarrow \beta\bar\theta + (1-\beta)\theta`."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class MovingAverage:
    r"""A second set of weights that follows the first.

    The decay of update u is :math:`\min(\beta, \frac{1+u}{10+u})`, so that the average forgets the
    random start instead of carrying it for thousands of updates.

    Parameters
    ----------
    model
        The model that is followed.
    decay
        :math:`\beta`, the share that the average keeps at each update.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.state_dict().items()}

    @torch.no_grad()
    def follow(self, model: nn.Module, update: int) -> None:
        """Move the average towards the weights after update number ``update``."""
        share = 1 - min(self.decay, (1 + update) / (10 + update))
        current = model.state_dict()
        # the trainer moves the model to its device after the average was made
        self.weights = {name: average.to(current[name].device) for name, average in self.weights.items()}
        torch._foreach_lerp_(list(self.weights.values()), [current[name] for name in self.weights], share)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on from the average that a checkpoint holds."""
        for name, tensor in self.weights.items():
            tensor.copy_(weights[name])

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Let ``model`` compute with the average inside the block."""
        trained = {name: p.detach().clone() for name, p in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(trained)
