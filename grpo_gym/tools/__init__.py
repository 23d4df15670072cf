"""Tools that a model may call, the text formats of a call, and environments of tools."""

from grpo_gym.tools.block import BlockCodec
from grpo_gym.tools.call import BadCall, Call, Codec
from grpo_gym.tools.codecs import CODECS, make_codec
from grpo_gym.tools.env import ToolEnv
from grpo_gym.tools.function import Hidden, Tool, tool
from grpo_gym.tools.hermes import HermesCodec
from grpo_gym.tools.openai_json import OpenAICodec
from grpo_gym.tools.python_calls import PythonCodec
from grpo_gym.tools.xml_tags import XMLCodec

__all__ = [
    "CODECS",
    "BadCall",
    "BlockCodec",
    "Call",
    "Codec",
    "HermesCodec",
    "Hidden",
    "OpenAICodec",
    "PythonCodec",
    "Tool",
    "ToolEnv",
    "XMLCodec",
    "make_codec",
    "tool",
]
