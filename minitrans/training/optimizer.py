"""Optimizers: one table, and the rule which parameters decay."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.training.muon import BatchedMuon, Together, hidden_matrices


class AdamW:
    r"""Adam with decoupled weight decay.

    .. math:: \theta \leftarrow \theta - \eta\,\big(\hat m / (\sqrt{\hat v} + \epsilon) + \lambda\theta\big)

    Decay acts on matrices alone: on a bias or a norm's gain it would pull towards a point that means
    nothing. Source: Loshchilov & Hutter 2019.

    Parameters
    ----------
    lr
        Peak rate, reached at the end of the warm-up under every schedule.
    betas
        Decay of the running means of gradient and squared gradient (the paper: 0.9, 0.98).
    eps
        Added to the root of the squared gradient's mean.
    weight_decay
        The share of a matrix that an update at rate 1 takes away.
    """

    def __init__(
        self,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
    ):
        _check_rates(lr, betas, eps)
        if weight_decay < 0:
            raise ValueError(f"weight_decay is {weight_decay}, but must be at least 0")
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the parameters of ``model``, matrices and the rest in groups of their own."""
        return self.over(list(model.parameters()))

    def over(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over these parameters alone."""
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=_fused(parameters),
        )


class Muon:
    """Orthogonal steps for the hidden linear maps, AdamW for the rest (:mod:`minitrans.training.muon`).

    Learns faster than AdamW at the same rate and number of updates; a step costs a few matrix products more.

    Parameters
    ----------
    lr, betas, eps, weight_decay
        As in :class:`AdamW`. Rate and decay hold for the orthogonal steps too.
    momentum
        Share of the running mean of gradients that an update keeps.
    """

    def __init__(
        self,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ):
        self._adamw = AdamW(lr, betas, eps, weight_decay)
        _check_rates(lr, (momentum,))
        self.lr, self.momentum = lr, momentum

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the parameters of ``model``."""
        hidden = hidden_matrices(model)
        chosen = {id(weight) for weight in hidden}
        rest = self._adamw.over([p for p in model.parameters() if id(p) not in chosen])
        if not hidden:
            return rest
        plain = isinstance(model, EncoderDecoder) and not model.fast
        muon = (torch.optim.Muon if plain else BatchedMuon)(
            hidden,
            lr=self.lr,
            weight_decay=self._adamw.weight_decay,
            momentum=self.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        return Together([muon, rest])


class Adam:
    """Adam without decay, as in Vaswani et al. 2017, section 5.3. Source: Kingma & Ba 2015."""

    def __init__(self, lr: float, betas: tuple[float, float] = (0.9, 0.98), eps: float = 1e-9):
        _check_rates(lr, betas, eps)
        self.lr, self.betas, self.eps = lr, betas, eps

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the parameters of ``model``."""
        parameters = list(model.parameters())
        return torch.optim.Adam(
            parameters, lr=self.lr, betas=self.betas, eps=self.eps, fused=_fused(parameters)
        )


class SGD:
    r"""Stochastic gradient descent, :math:`\theta \leftarrow \theta - \eta\,g`, with optional momentum."""

    def __init__(self, lr: float, momentum: float = 0.0):
        _check_rates(lr, (momentum,))
        self.lr, self.momentum = lr, momentum

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the parameters of ``model``."""
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)


FUSED_DEVICES = ("cpu", "cuda")
OPTIMIZERS: Mapping[str, type] = {"adamw": AdamW, "muon": Muon, "adam": Adam, "sgd": SGD}


def _fused(parameters: Iterable[nn.Parameter]) -> bool | None:
    """One kernel for a whole parameter's step where torch has one. (One core, tiny: 3 ms instead of 19.)"""
    return True if all(parameter.device.type in FUSED_DEVICES for parameter in parameters) else None


def _check_rates(lr: float, shares: Iterable[float], eps: float = 1.0) -> None:
    if lr <= 0:
        raise ValueError(f"lr is {lr}, but a rate must be above 0")
    if eps < 0:
        raise ValueError(f"eps is {eps}, but must be at least 0")
    for share in shares:
        if not 0 <= share < 1:
            raise ValueError(f"{share} is no decay; it must be at least 0 and below 1")
