"""Half-precision activations from end to end: the fast twin of a float32 residual stream.

Autocast gives products in bf16, but embeddings and residual sums stay float32 where nothing casts them, so
that every sum reads and writes twice the bytes and every product casts its input. Cast once behind the
embeddings, the whole stack stays in bf16; norms and softmax still compute in float32 inside.
"""

from torch import Tensor

from minitrans.model.fast.rows import type_of_products


def narrow(x: Tensor) -> Tensor:
    """``x`` in the type that autocast gives to products; where autocast is off, ``x`` itself."""
    return x.to(type_of_products(x))
