"""TEMP"""
from typing import Any
import torch
import torch.distributed as dist
def average_states(engine: Any, optimizers: Any) -> None:
    for o in optimizers:
        for g in o.param_groups:
            for p in g["params"]:
                for k, v in sorted(o.state.get(p, {}).items()):
                    if torch.is_tensor(v) and k != "step":
                        dist.all_reduce(v); v.div_(dist.get_world_size())
def share_scaler(engine: Any, scaler: Any) -> None: ...
def differing_ranks(engine: Any, parameters: Any, optimizers: Any) -> list[int]: return []
def copy_from_first(engine: Any, parameters: Any, optimizers: Any) -> None: ...
