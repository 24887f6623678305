"""Half-precision activations from end to end: the fast twin of a float32 residual stream.

Autocast gives products in bf16, but embeddings and residual sums stay float32 where nothing casts them, so
that every sum reads and writes twice the bytes and every product casts its input. Cast once behind the
embeddings, the whole stack stays in bf16; norms and softmax still compute in float32 inside.
"""

import torch
from torch import Tensor


def narrow(x: Tensor) -> Tensor:
    """``x`` in the type that autocast gives to products; where autocast is off, ``x`` itself."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
