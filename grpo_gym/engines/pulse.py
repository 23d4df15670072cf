"""Whether a server that has said nothing for a while is still there."""

import time
from concurrent.futures import Future
from typing import Any

from grpo_gym.engines.http import HttpClient

_SILENCE_S = 30.0
_ANSWER_S = 30.0


class Pulse:
    """Asks a server for its health when it has been silent; a long completion is no reason to give it up.

    Args:
        client: of the server.
        path: that answers at once where all is well.
    """

    def __init__(self, client: HttpClient, path: str) -> None:
        self._client, self._path = client, path
        self._heard = time.monotonic()
        self._asked: Future[Any] | None = None

    def heard(self) -> None:
        """The server has said something, or nothing is expected of it until now."""
        self._heard = time.monotonic()
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def check(self) -> None:
        """Ask if it is time to, and take the answer if there is one; never waits.

        Raises:
            ServerError: There is no answer, or not a good one.
        """
        if self._asked is None:
            if time.monotonic() - self._heard > _SILENCE_S:
                self._asked = self._client.start("GET", self._path, timeout_s=_ANSWER_S)
        elif self._asked.done():
            self._asked.result()
            self.heard()
