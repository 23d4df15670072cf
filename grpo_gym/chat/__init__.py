"""Policies behind an endpoint that speaks OpenAI's chat API: text in, text out, no training."""

from grpo_gym.chat.collector import ChatCollector
from grpo_gym.chat.engine import ChatEngine
from grpo_gym.chat.models import require_model
from grpo_gym.chat.options import ChatOptions

__all__ = ["ChatCollector", "ChatEngine", "ChatOptions", "require_model"]
