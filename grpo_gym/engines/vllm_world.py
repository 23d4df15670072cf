"""vLLM in a process that trains together with others: its world is this process alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


class OwnWorld:
    """Keeps vLLM's groups of processes apart from those that the learner has.

    torch has one default group in a process. vLLM takes that which is there for its own, sets up its groups
    in step with every process in it, and ends all of them when it shuts down. Within this it finds none, and
    makes one of this process alone: each rank's engine starts, fails and ends by itself.
    """

    def __init__(self) -> None:
        self._theirs: Any = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Within, vLLM starts."""
        with _set_aside() as ours:
            try:
                yield
            finally:
                self._theirs = None if ours is None else dist.group.WORLD

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Within, vLLM shuts down: it ends the groups that it has made one by one."""
        if self._theirs is None:  # there were no others, and vLLM ends all that there are
            yield
            return
        with _set_aside():
            yield
        dist.destroy_process_group(self._theirs)
        self._theirs = None


@contextmanager
def _set_aside() -> Iterator[Any]:
    """Without the default group, if there is one."""
    ours = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if ours is None:
        yield None
        return
    dist.group.WORLD = None
    try:
        yield ours
    finally:
        dist.group.WORLD = ours
