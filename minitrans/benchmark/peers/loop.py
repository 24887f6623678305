"""The plain loop in which a rival's model is trained: what anyone would write first, on our batches.

Letters: B batch, S source length, T target length, N vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.benchmark.peers.training import Rival
from minitrans.config import TrainConfig
from minitrans.data.batching import Batch
from minitrans.data.stream import UpdateStream
from minitrans.data.tokenizer import PAD_ID
from minitrans.training.prepare import Material, takes_gpu


def rival_updates(rival: Rival, config: TrainConfig, dtype: str, material: Material) -> Iterator[None]:
    """Make an update whenever asked for the next: forward, loss over all logits, backward, Adam.

    Parameters
    ----------
    rival
        Who.
    config, material
        The experiment; its batches, rate and smoothing are used, its model is not.
    dtype
        ``fp32``, or ``bf16`` for autocast.
    """
    on_gpu = takes_gpu(config.trainer)
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.manual_seed(config.seed)
    model = rival.build(config.model, material.tokenizers.tgt.vocab_size).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98), fused=True)
    shares = UpdateStream(material.run_plan, 0, rank=0, world_size=1).loader(0, pin_memory=on_gpu)
    for share in shares:
        optimizer.zero_grad()
        for batch in share.to(device).micro_batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bf16"):
                loss = smoothed_loss(model, batch, config.training.label_smoothing)
            (loss / share.target_tokens).backward()
            loss.item()  # for a log
        optimizer.step()
        yield


def smoothed_loss(model: nn.Module, batch: Batch, label_smoothing: float) -> Tensor:
    """The smoothed cross-entropy summed over the real target tokens of a batch."""
    logits = model(batch.src, batch.tgt_in)  # (B, S), (B, T) -> (B, T, N)
    return F.cross_entropy(
        logits.flatten(0, 1),  # (B, T, N) -> (B*T, N)
        batch.tgt_out.flatten(),  # (B, T) -> (B*T,)
        ignore_index=PAD_ID,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
