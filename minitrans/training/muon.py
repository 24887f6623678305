r"""Muon: steps that are orthogonal matrices for the hidden linear maps, AdamW for everything else.

.. math::
    B \leftarrow \mu B + (1-\mu)\,G, \qquad
    O = \mathrm{orthogonal}\big((1-\mu)\,G + \mu B\big), \qquad
    W \leftarrow W - \eta\,\big(0.2\sqrt{\max(m, n)}\;O + \lambda W\big)

for a weight W of m rows and n columns with gradient G. ``orthogonal`` replaces the singular values by about
one (five Newton-Schulz products instead of a decomposition), so that a rare direction of the gradient moves
as far as a common one. The factor gives the step the size that Adam's has, hence one rate serves both.

Sources: Jordan et al. 2024, *Muon: An optimizer for hidden layers in neural networks*; the factor: Liu et al.
2025, *Muon is scalable for LLM training*, section 2.2. The arithmetic is :class:`torch.optim.Muon`'s.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


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
