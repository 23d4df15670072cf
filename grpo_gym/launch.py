"""What a launcher such as `accelerate launch`, `torchrun` or `mpirun` has told this process of the others."""

import logging
import os

# How launchers say which process this is, and of how many.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)

# Where DeepSpeed is installed, accelerate imports it, and without a GPU it says so on stdout.
logging.getLogger("DeepSpeed").addFilter(
    lambda record: not record.getMessage().startswith("Setting accelerator to CPU")
)


def launched() -> tuple[int, int]:
    """Index of this process and number of all that were launched with it: (0, 1) if it was started alone."""
    for index, count in _NAMES:
        found = os.environ.get(index, ""), os.environ.get(count, "")
        if all(number.isdecimal() for number in found):
            return int(found[0]), int(found[1])
    return 0, 1


def is_first() -> bool:
    """Whether this process is the one of a run that speaks and writes."""
    return launched()[0] == 0
