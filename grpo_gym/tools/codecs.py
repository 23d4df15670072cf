"""The formats of calls by name."""

from collections.abc import Callable, Mapping

from grpo_gym.config import nearest
from grpo_gym.errors import UsageError
from grpo_gym.tools.block import BlockCodec
from grpo_gym.tools.call import Codec
from grpo_gym.tools.hermes import HermesCodec
from grpo_gym.tools.openai_json import OpenAICodec
from grpo_gym.tools.python_calls import PythonCodec
from grpo_gym.tools.xml_tags import XMLCodec

CODECS: Mapping[str, Callable[[], Codec]] = {
    "hermes": HermesCodec,
    "openai": OpenAICodec,
    "python": PythonCodec,
    "code": BlockCodec,
    "xml": XMLCodec,
}
"""Name to what makes the codec: choose the form that the model was taught."""


def make_codec(codec: str | Codec) -> Codec:
    """A codec by its name; one that is a codec already is taken as it is.

    Raises:
        UsageError: An unknown name (the nearest are named), or neither name nor codec.
    """
    if not isinstance(codec, str):
        if not all(hasattr(codec, name) for name in ("instructions", "render", "parse")):
            raise UsageError(
                f"a codec is one of {', '.join(CODECS)} or a Codec, not {codec!r:.100}"
            )
        return codec
    if codec not in CODECS:
        near = nearest(codec, CODECS) or f"; there is {', '.join(CODECS)}"
        raise UsageError(f"no codec {codec!r}{near}")
    return CODECS[codec]()
