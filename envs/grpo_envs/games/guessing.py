"""What guessing games share: a secret, a clue for each guess, and a number of guesses."""

from abc import abstractmethod

from grpo_envs.games.moves import BadMove
from grpo_gym.env import TextEnv
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task


class GuessingEnv(TextEnv):
    """A game of guesses: `max_turns` of them, by its rules.

    An action that makes no single legal guess takes a turn and teaches nothing. Running out of guesses
    loses the game: that ends the task, it is no limit set from outside. So the episode is terminated,
    not truncated.
    """

    system_prompt = "Answer each time with one guess, in \\boxed{}."

    @abstractmethod
    def read(self, action: str) -> str:
        """Hook: the guess of an action. Raises `BadMove`, with a message for the player."""

    @abstractmethod
    def tell(self, guess: str, answer: str) -> str:
        """Hook: what the player is told about a wrong guess."""

    def respond(self, task: Task, action: str) -> Score | str:
        """Success, a clue, or the end."""
        turns = {"turns": float(self.turn + 1)}
        try:
            guess = self.read(action)
            if guess == task.answer:
                return Score(1.0, True, turns)
            reply = self.tell(guess, task.answer)
        except BadMove as reason:
            reply = str(reason)
        return Score(0.0, False, turns) if self.turn + 1 >= self.max_turns else reply
