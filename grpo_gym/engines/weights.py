"""Taking another model's weights: strict names and shapes, tied weights, shared memory."""

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_gym.errors import UsageError


def load_weights(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into `model`, unless it is the same memory already.

    A name may be missing if the model ties it to one that is there.

    Raises:
        UsageError: Names or shapes differ, or two values are given for one tied weight.
    """
    own = model.state_dict()
    tied: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in own.items():
        if name in state:
            tied.setdefault((tensor.data_ptr(), tensor.shape), name)
    missing = [n for n, t in own.items() if n not in state and (t.data_ptr(), t.shape) not in tied]
    unknown = [name for name in state if name not in own]
    shapes = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in state.items()
        if name in own and tensor.shape != own[name].shape
    ]
    for problem, names in (("lack", missing), ("have unknown", unknown), ("differ in", shapes)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UsageError(
                f"the weights to load {problem} {', '.join(names[:3])}{more}; "
                "give the state_dict of the same model"
            )
    for name, tensor in own.items():
        first = tied[tensor.data_ptr(), tensor.shape]
        if first != name and name in state and not _equal(state[first], state[name]):
            raise UsageError(
                f"{first} and {name} are one weight in the engine's model, but the weights to load "
                "differ; tie them in the learner or untie them in the engine"
            )
    with torch.no_grad():
        for name in tied.values():
            if own[name].data_ptr() != state[name].data_ptr():
                own[name].copy_(state[name])


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or bool(torch.equal(a, b.to(a.device)))
