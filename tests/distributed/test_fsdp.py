"""Weights that are sharded over processes: torch's ``fully_shard`` makes the same updates."""

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from minitrans.build import build_model
from minitrans.config import TrainConfig
from minitrans.data.batching import Batch
from minitrans.model.transformer import Transformer
from tests.distributed.world import in_world
from tests.training.tiny import MODEL, NUM_ENTRIES, batch_of

PAIRS: list[tuple[list[int], list[int]]] = [
    ([5], [6, 7, 8]),
    ([9, 8, 7, 6], [5]),
    ([4, 4], [10, 11, 5, 5, 6]),
]
UPDATES = 3


def updated(sharded: bool) -> dict[str, np.ndarray]:
    """The weights after updates of plain SGD in float64; this process computes its part of the pairs."""
    experiment = TrainConfig(
        model=MODEL, position={"kind": "sinusoidal"}, attention={"kind": "scaled_dot_product"}
    )
    model = build_model(experiment, NUM_ENTRIES, NUM_ENTRIES, fast=False).double()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if sharded:
        fully_shard(model)
        for method in ("encode", "decode", "nll"):
            register_fsdp_forward_method(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    total = batch_of(PAIRS).num_target_tokens
    for _ in range(UPDATES):
        own = batch_of(PAIRS[rank::world_size]) if sharded else batch_of(PAIRS)
        loss = _loss(model, own) / total * (world_size if sharded else 1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
    tensors = model.state_dict().items()
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).numpy() for name, t in tensors}


def _loss(model: Transformer, batch: Batch) -> torch.Tensor:
    memory = model.encode(batch.src, batch.src_mask)
    states = model.decode(batch.tgt_in, memory, batch.src_mask)
    return model.nll(states, batch.tgt_out)[0]


def test_sharded_weights_make_the_same_updates() -> None:
    whole = in_world(1, updated, False)[0]
    for part in in_world(2, updated, True):
        assert part.keys() == whole.keys()
        assert all(np.allclose(part[name], whole[name], rtol=0, atol=1e-9) for name in whole)
