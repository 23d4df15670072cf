"""Gymnasium spaces for text and for chat messages."""

from typing import Any

import numpy as np
from gymnasium import spaces

from grpo_gym.types import Message

# Alphabets that `sample` draws from: enough to surprise a parser, every character encodable.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz 0123456789",
    "{}[]()<>\\\"'`$#|/+-*=.,:;\n\t",
    "äßéøçñΩжиעבحम中文日本한글😀🧮½²√−٣\u00a0\u200b",
)


class Text(spaces.Text):
    """Any unicode string, the empty one and lone surrogates included.

    `gymnasium.spaces.Text` lists the characters it allows and a greatest length; this one allows
    all.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length=32, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A string of up to 32 characters; `mask` and `probability` have no meaning here."""
        alphabet = _ALPHABETS[int(self.np_random.integers(len(_ALPHABETS)))]
        length = int(self.np_random.integers(self.max_length + 1))
        return "".join(alphabet[i] for i in self.np_random.integers(len(alphabet), size=length))

    def __repr__(self) -> str:
        return "Text()"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, Text)

    def __hash__(self) -> int:
        return hash(Text)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed length."""
        return False


class Messages(spaces.Space[tuple[Message, ...]]):
    """A tuple of chat messages.

    A message is a dict with string `role` and `content`; of other keys, only `name`, `tool_calls`
    and `tool_call_id` may be there.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed=seed)
        self._text = Text()

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(is_message(message) for message in x)

    def sample(
        self, mask: Any | None = None, probability: Any | None = None
    ) -> tuple[Message, ...]:
        """Up to three messages; `mask` and `probability` have no meaning here."""
        self._text.seed(int(self.np_random.integers(2**31)))
        roles = self.np_random.choice(["system", "user", "tool"], size=self.np_random.integers(4))
        return tuple(Message(role=str(role), content=self._text.sample()) for role in roles)

    def __repr__(self) -> str:
        return "Messages()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __hash__(self) -> int:
        return hash(Messages)

    @property
    def is_np_flattenable(self) -> bool:
        """False: conversations have no fixed length."""
        return False


_OPTIONAL = {"name": str, "tool_calls": list, "tool_call_id": str}


def is_message(x: object) -> bool:
    """Whether `x` is a dict with string `role` and `content`, and no more than the tool fields."""
    if not isinstance(x, dict):
        return False
    if not (isinstance(x.get("role"), str) and isinstance(x.get("content"), str)):
        return False
    return len(x) == 2 or all(
        key in ("role", "content") or (key in _OPTIONAL and isinstance(value, _OPTIONAL[key]))
        for key, value in x.items()
    )
