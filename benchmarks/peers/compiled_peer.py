"""PyTorch compiled by inductor, for the operators where fusion could help; on others it calls what eager calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.peers import torch_peer

VERSION = torch.__version__


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    if not case.fused and case.kind not in ("ttm", "mttkrp"):
        return None
    torch.set_grad_enabled(False)
    torch._dynamo.reset()
    tensors = [torch_peer.tensor(array) for array in arrays]
    function: Any = torch.compile(torch_peer.TABLE[case.kind], dynamic=False)
    return lambda: function(*tensors)
