"""Tools that a model may call, the text format of a call, and environments of tools."""

from grpo_gym.tools.codec import BadCall, Call, Codec, HermesCodec
from grpo_gym.tools.env import ToolEnv
from grpo_gym.tools.function import Tool, tool

__all__ = ["BadCall", "Call", "Codec", "HermesCodec", "Tool", "ToolEnv", "tool"]
