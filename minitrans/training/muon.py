r"""Muon: steps that are orthogonal matrices for the hidden linear maps, AdamW for everything else.

.. math::
    B \leftarrow \mu B + (1-\mu)\,G, \qquad
    O = \mathrm{orthogonal}\big((1-\mu)\,G + \mu B\big), \qquad
    W \leftarrow W - \eta\,\big(0.2\sqrt{\max(m, n)}\;O + \lambda W\big)

for a weight W of m rows and n columns with gradient G. ``orthogonal`` replaces the singular values by about
one (five Newton-Schulz products instead of a decomposition), so that a rare direction of the gradient moves
as far as a common one. The factor gives the step the size that Adam's has, hence one rate serves both.

Sources: Jordan et al. 2024, *Muon: An optimizer for hidden layers in neural networks*; the factor: Liu et al.
2025, *Muon is scalable for LLM training*, section 2.2. The arithmetic is :class:`torch.optim.Muon`'s, with
``adjust_lr_fn="match_rms_adamw"``.

Letters: n matrices of one shape, m rows, k columns.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from minitrans.training.precision import processor_is_fast_in_bf16


class BatchedMuon(torch.optim.Muon):
    """The fast twin of :class:`torch.optim.Muon`: matrices of one shape are made orthogonal together.

    A stack has many small matrices of few shapes; a product of many at once costs less than many products.
    (One core, the 64 matrices of 128 x 128 of model=tiny: 34 ms one by one, 12 together.) torch's products
    are in bf16; where a processor has none in hardware they take some fifty times as long as in float32, in
    which they are here then.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every matrix that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    alike.setdefault(weight.shape, []).append(weight)
            for weights in alike.values():
                self._step(group, weights)
        return loss

    def _step(self, group: Mapping[str, Any], weights: list[Tensor]) -> None:
        """Step n matrices (m, k) of one shape."""
        momentum, lr = group["momentum"], group["lr"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        means = [self._mean(weight) for weight in weights]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, means, momentum)
        dtype = type_of_steps(weights[0].device)
        together = torch.stack([direction.to(dtype) for direction in directions])  # (n, m, k)
        steps = orthogonal(together, group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        size = 0.2 * math.sqrt(max(weights[0].shape))
        torch._foreach_add_(weights, list(steps.unbind()), alpha=-lr * size)

    def _mean(self, weight: Tensor) -> Tensor:
        """The running mean of a weight's gradients."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        return cast(Tensor, state["momentum_buffer"])


def type_of_steps(device: torch.device) -> torch.dtype:
    """bf16, whose 8 bits are enough for a direction, where ``device`` has it in hardware; else float32."""
    fast = processor_is_fast_in_bf16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def orthogonal(x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    r"""Each matrix with singular values of about one.

    :math:`X \leftarrow aX + (b A + c A^2) X, \; A = X X^\top`, from X over its norm (Jordan et al. 2024).

    Parameters
    ----------
    x
        (n, m, k).
    coefficients
        a, b, c.
    steps
        How often.
    eps
        The least norm that is divided by.

    Returns
    -------
    (n, m, k).
    """
    a, b, c = coefficients
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    if steps > 1 and x.dtype == torch.float32 and x.size(-1) > 2 * x.size(-2):
        x = _through_gram(x, coefficients, steps)
    else:
        for _ in range(steps):
            gram = x @ x.mT  # (n, m, k) -> (n, m, m)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _through_gram(x: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    r"""The same of long matrices (n, m, k), which are multiplied twice in all instead of twice a step.

    With :math:`P_i = aI + b A_i + c A_i^2` the result is :math:`P_s \cdots P_1 X`; all are polynomials in
    :math:`A_1`, hence :math:`A_{i+1} = P_i A_i P_i`. An error of A grows twice as fast as one of X: float32
    has digits enough for that, bf16 has not. (One core, 6 matrices of 256 x 1,024: 165 ms before, 96 so.)
    """
    a, b, c = coefficients

    def factor(gram: Tensor) -> Tensor:
        product = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        product.diagonal(dim1=-2, dim2=-1).add_(a)
        return product

    gram = x @ x.mT  # (n, m, k) -> (n, m, m)
    last = all_steps = factor(gram)
    for _ in range(steps - 1):
        gram = last @ gram @ last
        last = factor(gram)
        all_steps = last @ all_steps
    return all_steps @ x  # (n, m, m) @ (n, m, k) -> (n, m, k)


class Together(torch.optim.Optimizer):
    """Several optimizers as one: each steps its own parameters, and one state dictionary holds all.

    Parameters
    ----------
    parts
        The optimizers, over parameters that none shares with another.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]):
        self.parts = list(parts)
        super().__init__([p for part in parts for group in part.param_groups for p in group["params"]], {})
        self.param_groups = [group for part in parts for group in part.param_groups]
        self._share()

    def _share(self) -> None:
        """Give the parts the groups and the state that this optimizer has."""
        left = list(self.param_groups)
        for part in self.parts:
            number = len(part.param_groups)
            part.param_groups, left = left[:number], left[number:]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every part; ``closure`` (the loss anew) is called once, before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of the same parts."""
        super().load_state_dict(state_dict)
        self._share()


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Weights of the linear maps inside the stacks: no embeddings, not the map onto the vocabulary."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "output"
    ]
