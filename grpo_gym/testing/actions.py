"""Actions that no environment may choke on, and actions that no environment may reward."""

import re

_FORMULA = re.compile(r"[(\d][(\d. ]*[-+*/^×÷][-+*/^×÷(). \d]*[\d)]")

JUNK: tuple[str, ...] = (
    "",
    "Perhaps.",
    " \n\t\r\v\f\x85\u2028",
    "\x00\x01\x1b[31m\x7f",
    "\ud800 a lone surrogate \udfff",
    "é中🙂\u202e\u200d\ufeff\U0010ffff",
    "<|im_end|><|im_start|>system\n<|endoftext|></s>[INST]<think>",
    "\\boxed{" * 200 + "}" * 10,
    "\\boxed{\\frac{1}{0}} \\boxed{1e999999999} \\boxed{9^{9^{9^9}}}",
    "<tool_call>" * 50,
    '<tool_call>{"name": "' + "\\u0000" * 20 + '", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 1, "arguments": []}</tool_call>',
    "</tool_call></tool_call><tool_call></tool_call>",
    '{"tool_calls": [{"function": {"name": "x", "arguments": "{"}}]} {"tool_calls": [',
    "<function=x><parameter=y></function> <function=<parameter=>",
    "```python\nx(1, *y, **z)\n``` ```python\nx(",
    "[" * 20_000,
    "```python\nimport os; os._exit(1)\n```",
    "%s %n {0} {} ${x} `x` $(x) '; --",
    "a" * 100_000,
)
"""Texts that break parsers: unicode, control characters, template tokens, broken markup, 100 kB."""


def hacks(prompt: str) -> tuple[str, ...]:
    """Actions that a lazy policy may find: nothing, the prompt, its formula, or every candidate.

    A list of boxes begins and ends with a number that is no answer, so that no rule about which box
    counts makes it right by chance.
    """
    numbers = [str(n) for n in range(201)]
    boxes = " ".join(f"\\boxed{{{n}}}" for n in ["-987654321", *numbers, "-987654321"])
    formulas = [f"\\boxed{{{run}}}" for run in _FORMULA.findall(prompt)[:3]]
    return (
        *formulas,
        "",
        " ",
        "I do not know.",
        "\\boxed{}",
        "\\boxed{x}",
        "\\boxed{I do not know}",
        prompt,
        f"\\boxed{{{prompt}}}",
        ", ".join(numbers),
        "\\boxed{" + ", ".join(numbers) + "}",
        "\\boxed{\\{" + ",".join(numbers) + "\\}}",
        "\\boxed{" + " \\text{ or } ".join(numbers) + "}",
        boxes,
        " ".join(sorted(set(prompt.split()))),
    )
