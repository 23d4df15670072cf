"""Reading the one move that an action makes."""

from collections.abc import Callable, Sequence

from grpo_gym.verifiers.extract import BOX, last_box

LONGEST = 100
_THOUGHT = "</think>"


class BadMove(Exception):
    """An action that makes no legal move; the message is for the player."""


def read_move(action: str) -> str:
    r"""The move of an action: what stands in its only `\boxed{}`, or else the whole action.

    What was thought before the last `</think>` does not count. Several boxes are several moves, and
    none of them is made: otherwise one action could try every candidate.

    Raises:
        BadMove: There are several boxes, or the move is empty or longer than 100 characters.
    """
    said = action.rpartition(_THOUGHT)[2]
    boxes = len(BOX.findall(said))
    if boxes > 1:
        raise BadMove(f"Make one move at a time: there are {boxes} boxes.")
    move = (last_box(said) or "" if boxes else said).strip()
    if not move or len(move) > LONGEST:
        raise BadMove("Answer with your move alone, or put it in \\boxed{}.")
    return move


def consistent_guesses(
    candidates: Sequence[str],
    answer: str,
    clue: Callable[[str, str], object],
    max_turns: int,
) -> tuple[str, ...]:
    """The guesses of a player who always takes the first candidate that fits every clue so far.

    The last of `max_turns` guesses is the answer in any case.
    """
    guesses: list[str] = []
    left = candidates
    while left and len(guesses) < max_turns - 1:
        guess = left[0]
        guesses.append(guess)
        if guess == answer:
            return tuple(guesses)
        seen = clue(guess, answer)
        left = [word for word in left if word != guess and clue(guess, word) == seen]
    return (*guesses, answer)
