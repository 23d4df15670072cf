"""GuessNumber, Mastermind and Wordle: clues, one guess at a time, and players that win."""

import re
from collections import Counter
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.games import mastermind, wordle
from grpo_envs.games.guess_number import GuessNumberEnv
from grpo_envs.games.mastermind import MastermindEnv
from grpo_envs.games.moves import BadMove, consistent_guesses, read_move
from grpo_envs.games.wordle import WordleEnv, shipped_words
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.testing import check_environment


@pytest.mark.parametrize(
    ("action", "move"),
    [
        ("42", "42"),
        (" 42\n", "42"),
        ("I try \\boxed{42}.", "42"),
        ("\\boxed 7", "7"),
        ("<think>\\boxed{1} or \\boxed{2}?</think>\\boxed{3}", "3"),
        ("<think>3 of 4</think> 3", "3"),
    ],
)
def test_the_only_box_or_the_whole_action_is_the_move(action: str, move: str) -> None:
    assert read_move(action) == move


@pytest.mark.parametrize(
    "action",
    ["", " ", "\\boxed{}", "\\boxed{1} \\boxed{2}", "\\boxed{1}\\boxed{1}", "x" * 101, "\\boxed{1"],
)
def test_an_action_with_no_move_or_several_makes_none(action: str) -> None:
    with pytest.raises(BadMove):
        read_move(action)


def play(env: TextEnv, actions: tuple[str, ...], **options: Any) -> tuple[list[str], bool, bool]:
    """What the player reads, and whether the episode ended with success or by a limit."""
    env.reset(seed=0, options=options)
    replies = []
    for action in actions:
        observation, _, terminated, truncated, info = env.step(action)
        replies += [message["content"] for message in observation]
        if terminated or truncated:
            return replies, info["success"], truncated
    return replies, False, False


def with_answer(env: TextEnv, answer: str) -> str:
    """The id of a task with this answer."""
    ids = (f"train-{seed}" for seed in range(10_000))
    return next(task_id for task_id in ids if env.tasks.get(task_id).answer == answer)


def test_guesses_are_too_low_or_too_high() -> None:
    env = GuessNumberEnv(highest=10)
    replies, won, _ = play(env, ("3", "9", "\\boxed{6}"), task_id=with_answer(env, "6"))
    assert replies == ["3 is too low.", "9 is too high."]
    assert won


@pytest.mark.parametrize(
    "guess", ["0", "11", "-3", "5.0", "5 6", "5, 6", "five", "٥", "+5", "5!", "9" * 50, "1 to 10"]
)
def test_what_is_no_single_number_in_range_teaches_nothing(guess: str) -> None:
    env = GuessNumberEnv(highest=10)
    replies, won, _ = play(env, (guess,), task_id=with_answer(env, "5"))
    assert replies == ["A guess is one whole number between 1 and 10."]
    assert not won
    assert env.turn == 1


def test_all_numbers_in_one_action_are_several_moves() -> None:
    every = " ".join(f"\\boxed{{{n}}}" for n in range(1, 11))
    env = GuessNumberEnv(highest=10)
    replies, won, truncated = play(env, (every,) * 10)
    assert set(replies) == {"Make one move at a time: there are 10 boxes."}
    assert not won
    assert not truncated


def test_running_out_of_guesses_loses_the_game() -> None:
    env = GuessNumberEnv(highest=10, max_turns=2)
    env.reset(options={"task_id": with_answer(env, "5")})
    assert env.step("4")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step("nonsense")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert info["reward_components"] == {"turns": 2.0}


@pytest.mark.parametrize("level", range(1, 6))
def test_halving_wins_within_the_spare_turns(level: int) -> None:
    env = GuessNumberEnv(level=level)
    for seed in range(50):
        task = env.tasks.get(f"train-{seed}")
        solution = env.solution(task)
        assert len(solution) <= env.highest.bit_length() == env.max_turns - 2
        assert solution[-1] == f"\\boxed{{{task.answer}}}"
        assert len(set(solution)) == len(solution)


@pytest.mark.parametrize(
    "arguments", [{"level": 0}, {"level": 6}, {"highest": 1}, {"highest": 2.5}]
)
def test_guess_number_refuses_other_ranges(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        GuessNumberEnv(**arguments)


@pytest.mark.parametrize(
    ("guess", "code", "clue"),
    [
        ("1234", "1234", (4, 0)),
        ("1234", "4321", (0, 4)),
        ("1122", "1221", (2, 2)),
        ("1111", "1222", (1, 0)),
        ("1222", "1111", (1, 0)),
        ("1123", "2111", (1, 2)),
        ("5566", "1234", (0, 0)),
    ],
)
def test_mastermind_clues(guess: str, code: str, clue: tuple[int, int]) -> None:
    assert mastermind.clue(guess, code) == clue


def pairing(guess: str, code: str) -> int:
    """Pegs of equal colour in the best pairing of the two codes: the sum of both clues."""
    return max(
        sum(a == b for a, b in zip(guess, order, strict=True)) for order in permutations(code)
    )


@given(st.text("123", min_size=4, max_size=4), st.text("123", min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_mastermind_clues_are_the_best_pairing(guess: str, code: str) -> None:
    placed, misplaced = mastermind.clue(guess, code)
    assert placed + misplaced == pairing(guess, code)
    assert mastermind.clue(code, guess) == (placed, misplaced)


def test_mastermind_is_played() -> None:
    env = MastermindEnv(level=2)
    replies, won, _ = play(
        env, ("1 2 3", "4,3,1", "\\boxed{1 3 3}"), task_id=with_answer(env, "133")
    )
    assert replies == [
        "123: 2 in the right place, 0 in the wrong place.",
        "431: 1 in the right place, 1 in the wrong place.",
    ]
    assert won


@pytest.mark.parametrize("guess", ["12", "1234", "125", "120", "abc", "1-2-3", "123 124", "red"])
def test_what_is_no_code_teaches_nothing(guess: str) -> None:
    replies, won, _ = play(MastermindEnv(level=2), (guess,))
    assert replies == ["A guess is 3 digits between 1 and 4."]
    assert not won


@pytest.mark.parametrize("level", [0, 6])
def test_mastermind_refuses_other_levels(level: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 5"):
        MastermindEnv(level=level)


G, Y, X = wordle.GREEN, wordle.YELLOW, wordle.GRAY


@pytest.mark.parametrize(
    ("guess", "secret", "clue"),
    [
        ("crane", "crane", (G, G, G, G, G)),
        ("allow", "llama", (Y, G, Y, X, X)),
        ("speed", "abide", (X, X, Y, X, Y)),
        ("speed", "erase", (Y, X, Y, Y, X)),
        ("speed", "steal", (G, X, G, X, X)),
        ("speed", "crepe", (X, Y, G, Y, X)),
        ("eerie", "there", (Y, X, Y, X, G)),
        ("geese", "eagle", (Y, Y, X, X, G)),
        ("mummy", "madam", (G, X, Y, X, X)),
        ("array", "rainy", (Y, Y, X, X, G)),
    ],
)
def test_wordle_clues_with_letters_twice(guess: str, secret: str, clue: tuple[str, ...]) -> None:
    assert wordle.clue(guess, secret) == clue


@given(st.text("abc", min_size=5, max_size=5), st.text("abc", min_size=5, max_size=5))
@settings(max_examples=100, deadline=None)
def test_each_letter_is_coloured_as_often_as_the_secret_holds_it(guess: str, secret: str) -> None:
    clue = wordle.clue(guess, secret)
    assert [c == G for c in clue] == [a == b for a, b in zip(guess, secret, strict=True)]
    coloured = Counter(letter for letter, c in zip(guess, clue, strict=True) if c != X)
    assert coloured == Counter(guess) & Counter(secret)
    for letter in set(guess):
        plain = [c for a, c in zip(guess, clue, strict=True) if a == letter and c != G]
        assert plain == sorted(plain, reverse=True)  # yellow comes before gray


def test_wordle_is_played() -> None:
    env = WordleEnv(words=["allow", "crane", "llama", "speed", "abide"])
    _, won, _ = play(env, ("crane",), task_id="train-1")
    assert won
    replies, won, _ = play(env, ("ALLOW", "\\boxed{Llama}"), task_id="train-2")
    assert replies == ["A yellow, L green, L yellow, O gray, W gray"]
    assert won


@pytest.mark.parametrize(
    "guess", ["cran", "cranes", "cr ne", "crane speed", "12345", "naïve", "ｃrane"]
)
def test_what_is_no_word_teaches_nothing(guess: str) -> None:
    replies, won, _ = play(WordleEnv(), (guess,))
    assert replies == ["A guess is one word of five letters."]
    assert not won


def test_guesses_may_be_kept_to_the_list() -> None:
    strict, free = WordleEnv(only_words=True), WordleEnv()
    assert play(strict, ("zzzzz",))[0] == ["zzzzz is not in the list of words."]
    assert play(free, ("zzzzz",))[0][0].count("Z ") == 5


def test_the_shipped_words_are_clean() -> None:
    words = shipped_words()
    assert len(words) > 800
    assert list(words) == sorted(set(words))
    assert all(re.fullmatch("[a-z]{5}", word) for word in words)


def test_train_and_test_words_are_apart() -> None:
    env = WordleEnv()
    train, test = (
        {env.tasks.get(task_id).answer for task_id in env.tasks.task_ids(split) or ()}
        for split in ("train", "test")
    )
    assert not train & test
    assert train | test == set(shipped_words())
    assert 0.15 < len(test) / len(shipped_words()) < 0.25


def test_the_prompt_names_the_turns() -> None:
    env = WordleEnv(max_turns=3)
    observation, _ = env.reset(seed=0)
    assert observation[-1]["content"].endswith("You have 3 guesses.")
    env.reset(seed=0)
    assert [env.step("zzzzz")[2] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "words", [["crane"] * 9, [], ["crane", "Slate", "speed", "abide", "allow"], ["four"] * 6]
)
def test_other_lists_of_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="words must be"):
        WordleEnv(words=words)


def test_the_consistent_player_uses_every_clue() -> None:
    codes = ["".join(pegs) for pegs in product("123", repeat=3)]
    for answer in codes:
        guesses = consistent_guesses(codes, answer, mastermind.clue, max_turns=27)
        assert guesses[-1] == answer
        assert len(set(guesses)) == len(guesses) <= 6
        for number, guess in enumerate(guesses):
            for before in guesses[:number]:
                assert mastermind.clue(before, guess) == mastermind.clue(before, answer)


def test_the_last_guess_is_right_whatever_the_limit() -> None:
    assert consistent_guesses(["aa", "ab", "bb"], "bb", mastermind.clue, 1) == ("bb",)
    assert consistent_guesses(["aa"], "bb", mastermind.clue, 9) == ("aa", "bb")


@pytest.mark.parametrize(
    "make",
    [
        lambda: GuessNumberEnv(level=5),
        lambda: GuessNumberEnv(max_turns=1),
        lambda: MastermindEnv(level=1),
        lambda: MastermindEnv(level=4, max_turns=4),
        lambda: WordleEnv(only_words=True, split="test"),
    ],
)
def test_other_settings_keep_the_contract(make: Any) -> None:
    report = check_environment(make, range(3))
    assert report.ok, str(report)
