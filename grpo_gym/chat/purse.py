"""What a run has used, and what it may use."""

from grpo_gym.chat.answer import Usage


class Purse:
    """Counts the tokens of a run.

    Args:
        budget: most tokens, of prompts and completions; None for no limit.

    Attributes:
        answers: requests that were answered well.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.answers = 0
        self._used = Usage()

    def pay(self, usage: Usage) -> None:
        """Count what a request has used."""
        self._used = Usage(
            self._used.prompt_tokens + usage.prompt_tokens,
            self._used.completion_tokens + usage.completion_tokens,
        )

    def holds(self, most: int) -> bool:
        """Whether so many tokens more are within the budget."""
        return self.budget is None or self._used.tokens + most <= self.budget

    def __str__(self) -> str:
        used = self._used
        return (
            f"{used.tokens} tokens used ({used.prompt_tokens} of prompts, "
            f"{used.completion_tokens} sampled) in {self.answers} answers"
        )
