"""Starting values of the parameters.

Each parameter's values follow from the seed and its own name alone, never from the order in which
modules are made: two variants of an ablation start alike wherever names and shapes agree.
"""

import hashlib

import torch
from torch import nn

from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.positions import POSITION_STD, LearnedPositions
from minitrans.model.recurrent import LSTMCell


def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter, in place.

    Matrices: uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010, equation 16).
    Embeddings: normal with variance 1 / d_model. Learned positions: normal with variance 1/2, the mean square
    of the sinusoidal ones. Biases: 0. Gains of norms: 1.
    Biases of an LSTM's forget gates: 1, so that it begins by remembering (Jozefowicz et al. 2015).

    A tied parameter is filled once, under its first name.
    """
    filled: set[int] = set()
    for module_name, module in model.named_modules():
        for own_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in filled:
                filled.add(id(parameter))
                _fill(parameter, module, own_name, _generator(seed, f"{module_name}.{own_name}"))


def _fill(parameter: nn.Parameter, module: nn.Module, name: str, generator: torch.Generator) -> None:
    # Drawn on the processor in float32, so that device and precision do not change the start.
    values = torch.empty(parameter.shape)
    if isinstance(module, TokenEmbedding):
        nn.init.normal_(values, std=parameter.size(-1) ** -0.5, generator=generator)
    elif isinstance(module, LearnedPositions):
        nn.init.normal_(values, std=POSITION_STD, generator=generator)
    elif parameter.dim() == 1:
        values.fill_(0.0 if name.startswith("bias") else 1.0)
        if isinstance(module, LSTMCell | nn.LSTM) and name in ("bias", "bias_ih_l0"):
            values.chunk(4)[1].fill_(1.0)
    else:
        nn.init.xavier_uniform_(values, generator=generator)
    with torch.no_grad():
        parameter.copy_(values)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
