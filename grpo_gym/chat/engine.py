"""A policy behind an endpoint: requests in flight, their failures, and what they cost."""

import json
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from grpo_gym.chat.answer import BadAnswer, ChatAnswer, read_answer, read_usage
from grpo_gym.chat.form import Form, is_too_long
from grpo_gym.chat.lane import ChatRequest
from grpo_gym.chat.models import list_models, offer
from grpo_gym.chat.options import ChatOptions
from grpo_gym.chat.purse import Purse
from grpo_gym.engines.base import EngineStopped, Lost, Speaker
from grpo_gym.engines.http import HttpClient, ServerError, TooSlow, Unreachable

_PATH = "/chat/completions"
_STEP_S = 0.02
_MOST_BYTES = 16 * 2**20
_FAILURES_IN_A_ROW = 20
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class _Flight:
    """A request in flight, the body that was sent, and the most tokens that it may use."""

    request: ChatRequest
    body: dict[str, Any]
    most: int


class ChatEngine(Speaker[ChatRequest, ChatAnswer | Lost]):
    """Asks an endpoint that speaks OpenAI's chat API.

    A request that fails for good loses its rollout. The run stops where no request can succeed: a
    refused key, an unknown model, a server that is gone, a first request that fails, many failures in
    a row, or a token budget that does not hold one more request at full length.

    Args:
        url: of the API, such as https://HOST/v1.
        model: the endpoint's name of it.
        options: how it is asked.

    Raises:
        UsageError: The endpoint cannot be reached, or refuses the key.
    """

    def __init__(self, url: str, model: str, options: ChatOptions | None = None) -> None:
        self._options = options = options or ChatOptions()
        self._form = Form(model, options.body)
        self._model = model
        self._client = HttpClient(
            url.rstrip("/").removesuffix(_PATH),
            key_env=options.key_env,
            timeout_s=options.timeout_s,
            concurrency=options.concurrency,
            max_bytes=_MOST_BYTES,
            tries=options.retries + 1,
        )
        key = os.environ.get(options.key_env, "")
        self._secret = key if len(key) >= _SHORTEST_SECRET else ""
        self._queue: deque[ChatRequest] = deque()
        self._flights: dict[Future[Any], _Flight] = {}
        self._purse = Purse(options.token_budget)
        self._failures_in_a_row = 0
        self._stopped: str | None = None
        self._sent_again: set[tuple[int, int]] = set()
        try:
            self.models = list_models(self.url, options.key_env)
        except ServerError:
            self._client.close()
            raise

    @property
    def native_tools(self) -> bool:
        """Whether tools are called in the API's own way."""
        return self._options.tools == "native"

    @property
    def url(self) -> str:
        """Of the API."""
        return self._client.url

    def submit(self, requests: Sequence[ChatRequest]) -> None:
        """See `Speaker.submit`."""
        self._queue.extend(requests)
        self._send()

    def step(self) -> list[tuple[int, ChatAnswer | Lost]]:
        """What was answered since the last step; waits a moment when it is nothing yet.

        Raises:
            EngineStopped: No further request can succeed, or none may be sent.
        """
        self._send()
        wait(self._flights, _STEP_S, FIRST_COMPLETED)
        done = [future for future in self._flights if future.done()]
        said = [pair for future in done for pair in self._land(future)]
        if not said and self._stopped is not None:
            raise EngineStopped(self.with_cost(self._stopped))
        return said

    @property
    def busy(self) -> bool:
        """See `Speaker.busy`."""
        return bool(self._queue or self._flights or self._stopped)

    def abort(self) -> None:
        """See `Speaker.abort`."""
        for future in self._flights:
            future.cancel()
        self._flights.clear()
        self._queue.clear()
        self._sent_again.clear()

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    @property
    def answered(self) -> bool:
        """Whether any request was answered well."""
        return self._purse.answers > 0

    def cost(self) -> str:
        """The tokens that were used, in a line."""
        left_out = ", ".join(sorted(self._form.left_out))
        note = f"; the endpoint takes no {left_out}, which was left out" if left_out else ""
        return f"{self._purse}{note}"

    def with_cost(self, reason: str) -> str:
        """Why the run stops, and what it cost until then."""
        return f"{reason}; {self.cost()}" if self.answered else reason

    def _send(self) -> None:
        """Send what may be in flight together."""
        while (
            self._queue and self._stopped is None and len(self._flights) < self._options.concurrency
        ):
            request = self._queue[0]
            body = self._form.body(request)
            # A token has about four letters.
            prompt = json.dumps([body["messages"], body.get("tools")])
            most = request.sampling.max_tokens + len(prompt) // 4
            if not self._fits(most):
                break
            self._queue.popleft()
            self._flights[self._client.start("POST", _PATH, body)] = _Flight(request, body, most)

    def _fits(self, most: int) -> bool:
        """Whether the budget allows a request; if it never will, the run is stopped."""
        if self._purse.holds(sum(flight.most for flight in self._flights.values()) + most):
            return True
        if not self._flights:
            used_up = f"the token budget of {self._purse.budget} is used up"
            self._stopped = f"{used_up}: the next request may take {most}"
        return False

    def _land(self, future: Future[Any]) -> list[tuple[int, ChatAnswer | Lost]]:
        """What a request has brought; nothing where it is sent again."""
        flight = self._flights.pop(future)
        number = flight.request.id
        try:
            answer = self._read(future.result())
        except CancelledError:
            return self._lose(number, "a request was cancelled", stop=True)
        except BadAnswer as error:
            return self._lose(number, self._client.hide(str(error))[:300], stop=False)
        except ServerError as error:
            return self._refused(flight, error)
        except (TypeError, ValueError) as error:  # such as an infinite number in a message
            return self._lose(number, f"the conversation cannot be sent: {error}", stop=False)
        self._purse.answers += 1
        self._failures_in_a_row = 0
        return [(number, answer)]

    def _read(self, body: Any) -> ChatAnswer:
        usage = read_usage(body)
        self._purse.pay(usage)
        return read_answer(body, usage, self._secret)

    def _refused(self, flight: _Flight, error: ServerError) -> list[tuple[int, ChatAnswer | Lost]]:
        refusal = str(error)
        turn = flight.request.id, len(flight.request.messages)
        if isinstance(error, TooSlow) and self._options.retries and turn not in self._sent_again:
            self._sent_again.add(turn)
            self._queue.append(flight.request)
            return []
        if error.status in (400, 413, 422):
            if self._form.learn(flight.body, refusal):
                self._queue.appendleft(flight.request)
                return []
            if is_too_long(refusal):
                return [(flight.request.id, Lost(refusal, limit="context"))]
            if "tools" in flight.body and "tool" in refusal:
                refusal += "; --engine-arg tools=text leaves tools to the prompt"
        if error.status in (400, 404) and not self.answered:
            refusal += offer(self._model, self.models)
        hopeless = isinstance(error, Unreachable) or error.status in (401, 402, 403, 404)
        # Where nothing has been answered yet, what was asked is most likely wrong for all.
        wrong = error.status is not None and error.status < 500 and not self.answered
        return self._lose(flight.request.id, refusal, stop=hopeless or wrong)

    def _lose(self, number: int, reason: str, stop: bool) -> list[tuple[int, ChatAnswer | Lost]]:
        self._failures_in_a_row += 1
        if stop or self._failures_in_a_row >= _FAILURES_IN_A_ROW:
            self._stopped = self._stopped or reason
            return []
        return [(number, Lost(reason))]
