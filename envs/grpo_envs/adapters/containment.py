"""Other people's games draw from the global generators of `random` and NumPy: lend them their own."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# One game at a time: two that swap the same generators at once would mix them up.
_lock = threading.RLock()


class PrivateRandom:
    """What the global generators hold while one game runs; they are put back afterwards."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begin anew from a seed."""
        self._random = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the global generators continue this one's streams. Other threads that lend wait."""
        with _lock:
            kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._random)
            np.random.set_state(self._numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._random, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(kept)
                np.random.set_state(kept_numpy)  # noqa: NPY002
