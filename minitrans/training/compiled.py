"""The stacks as one compiled function (``trainer.compile=true``), for a training on a GPU.

torch.compile records what runs, as one graph, and makes few kernels of it: what lies between two products is
read and written once. Recording takes from half a minute to minutes, so it must happen once and not for
each shape that comes. Sizes are therefore symbols, and what would still make it record again is avoided: a
length is filled up to the next multiple of LENGTHS (kernels are chosen by whether 8 divides it), a sentence
alone gets a second one of padding (for torch, 1 is not a size like others), and sizes that happen to be
equal in the first batch are not taken for the same.

Dropout draws other noise than without, from the same seeds: repeatable, bit for bit, but not equal.

Letters: B batch, S source length, T target length, D d_model.
"""

from collections.abc import Callable

import torch
import torch.fx.experimental._config as symbols
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from minitrans.data.batching import Batch
from minitrans.data.tokenizer import PAD_ID
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder

LENGTHS = 8
FEWEST_ROWS = 2

States = Callable[[EncoderDecoder, Batch], Tensor]


def states(model: EncoderDecoder, batch: Batch) -> Tensor:
    """Encode the source, decode the target: (B, T, D). The plain twin of :func:`compiled_states`."""
    return _states(model, batch.src, batch.tgt_in)


def compiled_states(backend: str = "inductor") -> States:
    """The same values as :func:`states`, from a compiled graph.

    Parameters
    ----------
    backend
        Of torch.compile: what makes kernels of the graph.

    Returns
    -------
    A function like :func:`states`. It raises UserError where the graph cannot be made.
    """
    compiled = torch.compile(_states, backend=backend, dynamic=True)

    def run(model: EncoderDecoder, batch: Batch) -> Tensor:
        b, t = batch.tgt_in.shape
        try:
            with symbols.patch(use_duck_shape=False):  # type: ignore[attr-defined]  # equal sizes stay two
                whole = compiled(model, filled(batch.src), filled(batch.tgt_in))
        except TorchDynamoException as error:
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"trainer.compile=true, but torch.compile failed here ({reason}); use trainer.compile=false"
            ) from error
        return whole[:b, :t]

    return run


def filled(ids: Tensor) -> Tensor:
    """(B, T) ids with padding to a length that LENGTHS divides, and to at least FEWEST_ROWS rows."""
    rows = max(FEWEST_ROWS - ids.size(0), 0)
    return F.pad(ids, (0, -ids.size(1) % LENGTHS, 0, rows), value=PAD_ID)


def _states(model: EncoderDecoder, src: Tensor, tgt_in: Tensor) -> Tensor:
    """(B, S) and (B, T) ids -> (B, T, D)."""
    src_mask = (src != PAD_ID)[:, None, :]  # (B, 1, S)
    return model.decode(tgt_in, model.encode(src, src_mask), src_mask)
