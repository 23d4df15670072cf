"""The body of a request, in the form that this endpoint takes."""

import re
from collections.abc import Mapping
from typing import Any

from grpo_gym.chat.lane import ChatRequest

_TOO_LONG = re.compile(r"context.{0,20}(length|window|size)|maximum.{0,30}tokens|too long", re.I)
_NOT_TAKEN = re.compile(
    r"(un|not )supported|does ?n.t support|unrecogni[sz]ed|unknown|unexpected|extra|invalid|"
    r"not (permitted|allowed)|cannot",
    re.I,
)


def is_too_long(refusal: str) -> bool:
    """Whether a refusal says that the conversation does not fit the model's context."""
    return _TOO_LONG.search(refusal) is not None


class Form:
    """Fields that every endpoint takes, and what is known of those that only some take.

    Args:
        model: the endpoint's name of the model.
        body: further fields of every request.

    Attributes:
        left_out: fields that the endpoint does not take.
    """

    def __init__(self, model: str, body: dict[str, Any]) -> None:
        self._model, self._body = model, body
        self._limit = "max_tokens"
        self.left_out: frozenset[str] = frozenset()

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """The JSON of a request."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(request.messages),
            self._limit: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
        }
        body |= {"stop": list(sampling.stop)} if sampling.stop else {}
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        body |= {"min_p": sampling.min_p} if sampling.min_p else {}
        body |= {"tools": list(request.tools)} if request.tools else {}
        kept = {name: value for name, value in body.items() if name not in self.left_out}
        return kept | self._body

    def learn(self, sent: Mapping[str, Any], refusal: str) -> bool:
        """Whether a body that was refused is worth sending again, in another form.

        Only fields that change nothing are left out: the seed, and those at the value that the API
        has by default.
        """
        if is_too_long(refusal) or _NOT_TAKEN.search(refusal) is None:
            return False
        if "max_tokens" in sent and "max_completion_tokens" in refusal:
            self._limit = "max_completion_tokens"
            return True
        for name in ("seed", "top_p", "temperature"):
            named = re.search(rf"\b{name}\b", refusal) is not None
            if named and name in sent and (name == "seed" or sent[name] == 1):
                self.left_out |= {name}
                return True
        return False
