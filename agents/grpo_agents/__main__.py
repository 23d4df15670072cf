"""`python -m grpo_agents` prints agents/README.md."""

from grpo_agents import AGENTS
from grpo_gym.literature import readme

print(readme(AGENTS), end="")
