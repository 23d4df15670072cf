"""What a launcher such as `accelerate launch` or `torchrun` has told this process about the others."""

import os

_RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def is_launched() -> bool:
    """Whether a launcher started this process, alone or with others."""
    return any(name in os.environ for name in _RANK)


def is_first() -> bool:
    """Whether this process is the one of a run that speaks and writes."""
    return next((os.environ[name] for name in _RANK if name in os.environ), "0") == "0"
