"""The model being trained: log-probs of sampled tokens, the optimiser, and the update."""

from grpo_gym.learner.float32_head import use_float32_head
from grpo_gym.learner.learner import Learner
from grpo_gym.learner.logprobs import token_logprobs
from grpo_gym.learner.options import OptimiserOptions
from grpo_gym.learner.scores import TokenScores

__all__ = ["Learner", "OptimiserOptions", "TokenScores", "token_logprobs", "use_float32_head"]
