"""Weights, gradients and optimizer state in parts, one a process (``trainer=fsdp``), and whole again.

Each process keeps one part of every weight, along its first dimension. Before a unit of the model computes,
its parts are gathered from all processes; in the backward pass its gradients are averaged and dealt out again
(Zhao et al. 2023, *PyTorch FSDP*). The arithmetic of an update is that of a model in one piece.

A unit is a layer of the Transformer, so that no process holds more than one layer's weights beside its parts.
All that is left (embeddings, last norms, an architecture of other layers) is the outermost unit.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.layers import DecoderLayer, EncoderLayer


def shard(module: nn.Module, method: str, mesh: DeviceMesh) -> None:
    """Leave this process its part of every weight of ``module``.

    Parameters
    ----------
    module
        Holds the model.
    method
        The one method of ``module`` that may compute with the weights from now on: they are gathered where
        it and the layers below it are entered. Methods of the model called past it would find parts.
    mesh
        The processes, in one dimension.
    """
    for layer in module.modules():
        if isinstance(layer, EncoderLayer | DecoderLayer):
            fully_shard(layer, mesh=mesh)
        if isinstance(layer, DecoderLayer):
            register_fsdp_forward_method(layer, "start_cache")
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, method)


def gathered(value: Any, keep: bool = True) -> Any:
    """Nested plain data with every tensor whole. All processes must call it, with the same data.

    Parameters
    ----------
    value
        Dictionaries and lists, as the state of a model or an optimizer is. Tensors that are whole stay as
        they are; those in parts become whole ones in main memory. A weight under two names becomes one.
    keep
        False where this process only lends its parts: it gets what is whole, and no copies.
    """
    return _gathered(value, keep, {})


def _gathered(value: Any, keep: bool, known: dict[int, Tensor]) -> Any:
    if isinstance(value, dict):
        return {name: _gathered(item, keep, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_gathered(item, keep, known) for item in value]
    if not isinstance(value, Tensor):
        return value
    if not isinstance(value, DTensor):
        return value.detach()
    if id(value) not in known:
        whole = value.full_tensor().detach()
        known[id(value)] = whole.cpu() if keep else whole.new_empty(0)
    return known[id(value)]


def like(pattern: Tensor, whole: Tensor) -> Tensor:
    """``whole``, in parts where ``pattern`` is. Nothing is sent: every process has the same ``whole``."""
    if not isinstance(pattern, DTensor) or pattern.shape != whole.shape:
        return whole
    return distribute_tensor(
        whole.to(pattern.device), pattern.device_mesh, pattern.placements, src_data_rank=None
    )


class WholeCopy:
    """The model in one piece in each process, to validate with.

    Processes that translate unlike sentences take unlike numbers of steps, and could not meet to gather.

    Parameters
    ----------
    model
        The model before its weights are in parts. The copy waits in main memory.
    """

    def __init__(self, model: EncoderDecoder):
        self._model = copy.deepcopy(model)

    @contextmanager
    def of(self, model: EncoderDecoder, device: torch.device) -> Iterator[EncoderDecoder]:
        """The copy, with the weights that ``model`` has now. All processes must call it."""
        self._model.load_state_dict(gathered(model.state_dict(keep_vars=True)))
        self._model.to(device)
        try:
            yield self._model
        finally:
            self._model.to("cpu")
