"""Functions of texts and numbers, with the ways in which they can be broken."""

import string

from grpo_envs.code.function import Function, number, words

OF_VALUES: tuple[Function, ...] = (
    Function(
        "is_palindrome",
        "tell whether a text reads the same backwards, letters alone and upper case as lower case.",
        """def is_palindrome(text):
    letters = [c.lower() for c in text if c.isalpha()]
    return letters == letters[::-1]
""",
        (("c.lower()", "c"), (" if c.isalpha()", ""), ("letters[::-1]", "sorted(letters)")),
        lambda rng: (
            ["Abba", "No on!", "a, B a", "abc", "Aa", "ba", "x-y", "Was it"][rng.integers(8)],
        ),
    ),
    Function(
        "digit_sum",
        "add the digits of a whole number, whose sign does not matter.",
        """def digit_sum(number):
    rest, total = abs(number), 0
    while rest > 0:
        total += rest % 10
        rest //= 10
    return total
""",
        (("abs(number)", "number"), ("rest > 0", "rest > 9"), ("rest % 10", "rest % 9")),
        number(-9999, 99999),
    ),
    Function(
        "caesar",
        "move each small letter of a text <M> places on in the alphabet, from z back to a.",
        """def caesar(text):
    result = ""
    for letter in text:
        if "a" <= letter <= "z":
            place = (ord(letter) - ord("a") + <M>) % 26
            letter = chr(ord("a") + place)
        result += letter
    return result
""",
        (
            (" % 26", ""),
            ("% 26", "% 25"),
            ("+ <M>", "- <M>"),
            ("        result += letter", "            result += letter"),
        ),
        words(string.ascii_lowercase + " !.AZ"),
    ),
    Function(
        "balanced",
        "tell whether the brackets ( ) [ ] of a text are closed in the right order.",
        """def balanced(text):
    pairs = {")": "(", "]": "["}
    stack = []
    for c in text:
        if c in "([":
            stack.append(c)
        elif c in pairs:
            if not stack or stack.pop() != pairs[c]:
                return False
    return not stack
""",
        (
            ("return not stack", "return True"),
            ("not stack or ", ""),
            ("stack.pop() != pairs[c]", "not stack.pop()"),
        ),
        words("()[]", most=4),
    ),
    Function(
        "run_lengths",
        "give the runs of equal letters in a text as pairs of letter and length.",
        """def run_lengths(text):
    runs = []
    for letter in text:
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + 1)
        else:
            runs.append((letter, 1))
    return runs
""",
        (
            ("runs[-1][0] == letter", "runs[0][0] == letter"),
            ("(letter, 1)", "(letter, 0)"),
            ("runs[-1] = ", "runs[0] = "),
        ),
        words("aab"),
    ),
    Function(
        "sum_of_multiples",
        "add the positive whole numbers below a limit that are multiples of <K> or of <M>.",
        """def sum_of_multiples(limit):
    total = 0
    for number in range(1, limit):
        if number % <K> == 0 or number % <M> == 0:
            total += number
    return total
""",
        (
            ("range(1, limit)", "range(1, limit - 1)"),
            (" or ", " and "),
            ("total += number", "total += 1"),
            ("return total", "return total + limit"),
        ),
        number(5, 60),
    ),
    Function(
        "roman",
        "write a whole number between 1 and 99 in Roman numerals.",
        """def roman(number):
    signs = [(90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        while number >= value:
            text += sign
            number -= value
    return text
""",
        (
            ("number >= value", "number > value"),
            ('(9, "IX"), ', ""),
            ('(40, "XL"), ', ""),
            ("while number", "if number"),
        ),
        number(1, 100),
    ),
    Function(
        "most_common",
        "give the letter that occurs most often in a text; of several, the first in the alphabet.",
        """def most_common(text):
    counts = {}
    for letter in text:
        counts[letter] = counts.get(letter, 0) + 1
    most = max(counts.values())
    return min(letter for letter in counts if counts[letter] == most)
""",
        (
            ("return min(letter", "return max(letter"),
            ("max(counts.values())", "min(counts.values())"),
            ("counts.get(letter, 0) + 1", "1"),
        ),
        words("abcd", most=7),
    ),
)
