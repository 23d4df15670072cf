"""What crosses between program, judge and caller: builtin data, or nothing."""

import json
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.sandbox import Result
from grpo_gym.sandbox.inside import plain, seccomp
from grpo_gym.sandbox.verdict import read_verdict

NONCE = "n" * 32
hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.times(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4),
    max_leaves=6,
)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=12,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(
            st.sampled_from([*plain.BUILD, *plain.READ, "d", "i", "c", "b", "ba", "ra", "r", "ty"]),
            inner,
        ).map(list)
    ),
    max_leaves=12,
)


def cross(value: Any) -> Any:
    """The value after it has gone over the wire."""
    return plain.decode(json.loads(json.dumps(plain.encode(value))))


@settings(max_examples=150, deadline=None)
@given(values)
def test_data_arrives_as_it_was_sent(value: Any) -> None:
    assert cross(value) == value
    assert type(cross(value)) is type(value)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_any_message_is_data_or_refused(message: Any) -> None:
    try:
        value = plain.decode(message)
    except plain.NotPlain:
        return
    assert cross(value) == value or value != value or "nan" in repr(value).lower()


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Liar(3), 3),
        (Colour.RED, 1),
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.items(), [("a", 1)]),
        (deque([1]), deque([1])),
        (range(2, 9, 3), range(2, 9, 3)),
        pytest.param(1 << 70_000, 1 << 70_000, id="long"),
        (bytearray(b"x"), bytearray(b"x")),
        (int, int),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("1.10"), Decimal("1.10")),
        (datetime(2024, 1, 2), datetime(2024, 1, 2)),
        (date(2024, 1, 2), date(2024, 1, 2)),
        (time(1, 2), time(1, 2)),
    ],
)
def test_subclasses_arrive_as_their_builtin(value: Any, arrives: Any) -> None:
    assert type(cross(value)) is type(arrives)
    assert cross(value) == arrives


@pytest.mark.parametrize("value", [object(), print, lambda: 1, Path(), Exception(), Liar])
def test_what_is_no_data_does_not_cross(value: Any) -> None:
    with pytest.raises(plain.NotPlain):
        plain.encode(value)
    with pytest.raises(plain.NotPlain):
        plain.encode([{"a": value}])


def test_nesting_has_an_end() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(plain.NotPlain):
        plain.encode(deep)


def reply(*lines: dict[str, Any]) -> dict[str, Any]:
    """A supervisor's answer with these lines from the tests."""
    return {"verdict": "".join(json.dumps(line) + "\n" for line in lines)}


OK = [{"nonce": NONCE, "test": n, "passed": True} for n in range(2)]
DONE = {"nonce": NONCE, "done": True}


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        (reply(*OK, DONE), True),
        (reply(*OK), False),
        (reply(OK[0], DONE), False),
        (reply(DONE), False),
        (reply(*OK, {**DONE, "done": False}), False),
        (reply(*OK, {**DONE, "nonce": "x"}), False),
        (reply({**OK[0], "nonce": ""}, OK[1], DONE), False),
        (reply(OK[0], {**OK[1], "passed": False}, DONE), False),
        (reply(OK[0], {**OK[1], "passed": 1}, DONE), False),
        (reply(*OK, {**DONE, "unfit": "a lambda"}), False),
        ({"verdict": "[]\n1\nnull\n{\n"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_only_signed_and_complete_lines_make_a_success(
    answer: dict[str, Any] | None, success: bool
) -> None:
    assert read_verdict(answer, Result("ok"), NONCE, 2).success is success


def test_no_test_is_no_success() -> None:
    assert not read_verdict(reply(DONE), Result("ok"), NONCE, 0).success


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_of_system_calls_are_the_kernels(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers here")
    column = seccomp.MACHINES[machine][1]
    words = [line.split() for line in HEADERS[machine].read_text().splitlines()]
    known = {
        row[1].removeprefix("__NR3264_").removeprefix("__NR_"): int(row[2])
        for row in words
        if len(row) >= 3
        and row[0] == "#define"
        and row[1].startswith("__NR")
        and row[2].isdecimal()
    }
    named = {
        **seccomp.DENIED,
        "clone": seccomp.CLONE,
        "clone3": seccomp.CLONE3,
        "kill": seccomp.KILL,
        "tkill": seccomp.TKILL,
        "tgkill": seccomp.TGKILL,
        "rt_sigqueueinfo": seccomp.QUEUE,
        "rt_tgsigqueueinfo": seccomp.QUEUE_THREAD,
        "prlimit64": seccomp.PRLIMIT,
    }
    for name, numbers in named.items():
        assert numbers[column] == known.get(name), name
