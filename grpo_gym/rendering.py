"""Chat template to token ids and back, append only.

Sampled ids are never decoded and encoded again: the next prompt is the previous ids, then the
completion's ids, then `Renderer.extend(...)`: the text for what the environment answered.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_gym.chat_templates import PLAIN
from grpo_gym.errors import UsageError
from grpo_gym.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """Turns messages into token ids with a tokenizer's chat template.

    Text that comes with the messages cannot become a control token: where it spells one, such as
    `<|im_end|>`, it is cut inside that spelling and the pieces are encoded on their own, so that it
    decodes to the same text but is made of ordinary tokens. (A tokenizer that begins every text with
    a space puts one at the cut.)

    Args:
        tokenizer: of the policy.
        eos_token_ids: further tokens that end a turn: `model.generation_config.eos_token_id`.
        chat_template: replaces the tokenizer's own; with neither, `chat_templates.PLAIN`.

    Attributes:
        stop_token_ids: tokens that end a turn, the template's own end-of-turn token first.

    Raises:
        UsageError: The template fails on a plain conversation, or hides the assistant's text.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        eos_token_ids: int | Iterable[int] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = chat_template or (None if tokenizer.chat_template else PLAIN)
        # Letters that no text holds: they mark the assistant's turn, and where to cut data.
        self._sentinel = "s" + secrets.token_hex(12) + "s"
        self._cut = "c" + secrets.token_hex(12) + "c"
        self._spelling: re.Pattern[str] | None = None
        self._spelling = self._control_spellings()
        self.stop_token_ids = self._stop_token_ids(eos_token_ids)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation up to where the assistant speaks.

        Args:
            messages: the conversation so far.
            tools: JSON schemas of the tools, for templates that show them.

        Raises:
            UsageError: The template fails on these messages.
        """
        return self._encode(self._render(messages, tools))

    def action(self, completion_ids: Sequence[int]) -> str:
        """Text of a completion, without the token that ended the turn."""
        ids = [int(i) for i in completion_ids]
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def extend(self, completion_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Ids to append after a completion: end of its turn, new messages, generation prompt.

        The end-of-turn token is added only if the completion does not end with one already, as when
        it was cut at a token limit.

        Raises:
            UsageError: The template fails on these messages, such as two user messages in a row
                where it wants roles to alternate.
        """
        after = self._after_assistant(messages)
        ids = self._encode(after)
        ended = len(completion_ids) > 0 and int(completion_ids[-1]) in self.stop_token_ids
        if ended and self._closing(after):
            first = next(i for i, token in enumerate(ids) if token in self.stop_token_ids)
            ids = ids[first + 1 :]
        return ids

    def _after_assistant(self, messages: Sequence[Message], generation_prompt: bool = True) -> str:
        """The template's text after an assistant turn that follows one user message."""
        conversation = [
            Message(role="user", content="u"),
            Message(role="assistant", content=self._sentinel),
            *messages,
        ]
        pieces = self._render(conversation, None, generation_prompt).split(self._sentinel)
        if len(pieces) != 2:
            raise UsageError(
                f"the chat template shows an earlier assistant message {len(pieces) - 1} times, "
                "so a conversation cannot be extended; use a template that shows it once"
            )
        return pieces[1]

    def _closing(self, after: str) -> bool:
        """Whether the text after an assistant turn begins with a token that ends the turn."""
        stops = map(re.escape, self._texts(self.stop_token_ids))
        return re.match(rf"\s*(?:{'|'.join(stops)})", after) is not None

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                self._guard(list(messages)),
                tools=self._guard(list(tools)) if tools else None,
                chat_template=self._template,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except Exception as error:  # a template is a program: it may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UsageError(
                f"the chat template fails on messages with roles ({roles}): {error}; "
                "change the messages or pass another chat_template"
            ) from error
        return str(text)

    def _guard(self, value: Any) -> Any:
        """A copy of `value` with the mark to cut at inside each spelling of a control token."""
        if isinstance(value, str):
            return self._spelling.sub(rf"\g<0>{self._cut}", value) if self._spelling else value
        if isinstance(value, Mapping):
            return {self._guard(key): self._guard(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._guard(item) for item in value]
        return value

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in text.split(self._cut):
            ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _control_spellings(self) -> re.Pattern[str] | None:
        """Matches the first character of each spelling of a control token.

        Control tokens are the special ones, and the added ones that the template puts around turns:
        some tokenizers do not flag these as special.
        """
        added = self.tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special}
        special |= set(self.tokenizer.all_special_ids)
        around = self._encode(self._after_assistant([Message(role="user", content="u")], False))
        control = special | (set(around) & set(added))
        texts = sorted(map(re.escape, self._texts(control)), key=len, reverse=True)
        # Looking ahead and eating one character finds spellings that overlap, too.
        return re.compile(rf"(?={'|'.join(texts)}).", re.DOTALL) if texts else None

    def _stop_token_ids(self, eos_token_ids: int | Iterable[int] | None) -> tuple[int, ...]:
        closing = self._encode(self._after_assistant([], generation_prompt=False).lstrip())
        control = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        ids = [i for i in closing[:1] if i in control]
        if self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        if eos_token_ids is not None:
            ids += [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids
        return tuple(dict.fromkeys(int(i) for i in ids))

    def _texts(self, ids: Iterable[int]) -> list[str]:
        return [text for i in ids if (text := str(self.tokenizer.convert_ids_to_tokens(i)))]
