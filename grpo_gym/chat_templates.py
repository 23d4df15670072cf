"""Chat templates by name: two that are built in, or a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = (
    "{{ bos_token or '' }}"
    "{% if tools %}Tools: {{ tools | tojson }}\n\n{% endif %}"
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""What a model without a chat template gets: `User: ...`, a blank line, `Assistant:`.

The eos token ends a turn; a base model that does not know this wants a stop string such as
"\\n\\nUser:" in its `Sampling`."""

CHATML = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Turns between `<|im_start|>` and `<|im_end|>`, for models whose tokenizer has both."""

BUILT_IN = {"plain": PLAIN, "chatml": CHATML}


def read_template(name: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The text of a chat template.

    Args:
        name: "plain", "chatml", or a file with a Jinja template.
        tokenizer: of the model that is to speak it.

    Raises:
        UsageError: There is no such file, it cannot be read, or the tokenizer lacks the tokens that a
            built-in template is made of.
    """
    if name not in BUILT_IN:
        return _read(name)
    if name == "chatml":
        for token in ("<|im_start|>", "<|im_end|>"):
            if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
                raise UsageError(
                    f"chat_template is chatml, but the model's tokenizer has no token {token}: use plain"
                )
    return BUILT_IN[name]


def _read(name: str) -> str:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that can be no path
        raise UsageError(
            f"chat_template is {name!r}, which is neither {' nor '.join(BUILT_IN)} nor a file that can "
            f"be read: {' '.join(str(error).split())[:150]}"
        ) from error
    if not text.strip():
        raise UsageError(f"chat_template is {name!r}, but that file is empty")
    return text
