"""Terms for the form of an answer: a regular expression, or tags. Verifiers that ignore the reference."""

import re
from dataclasses import dataclass, field

from grpo_gym.errors import UsageError


@dataclass(frozen=True)
class Pattern:
    """1 where a regular expression matches the whole completion, spaces at its ends aside; else 0.

    A dot also matches a line break. Nested quantifiers such as `(a+)+` take forever on some texts,
    and a policy finds those: write patterns without them.

    Raises:
        UsageError: Not a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"not a regular expression: {self.pattern!r}: {error}") from error

    def __call__(self, completion: str, reference: str = "") -> float:
        """Grade the form of `completion`."""
        return float(re.fullmatch(self.pattern, completion.strip(), re.DOTALL) is not None)


@dataclass(frozen=True)
class Tags:
    """1 where a completion is made of these sections and nothing else; else 0.

    Each section stands between `<name>` and `</name>`, each tag occurs once and in order, and
    between the sections there are only spaces. With `rest`, text follows the last section, and
    must. By default: `<think>...</think>` and then the answer.

    Attributes:
        names: of the sections, in order.
        rest: whether the answer follows the last section, rather than being it.

    Raises:
        UsageError: No name, or a name twice.
    """

    names: tuple[str, ...] = ("think",)
    rest: bool = True
    _tags: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise UsageError(f"tags need different names, at least one, got {self.names!r}")
        tags = [tag for name in self.names for tag in (f"<{name}>", f"</{name}>")]
        object.__setattr__(self, "_tags", tuple(tags))

    def __call__(self, completion: str, reference: str = "") -> float:
        """Grade the form of `completion`."""
        return float(self.answer(completion) is not None)

    def answer(self, completion: str) -> str | None:
        """The answer in a completion of this form, stripped; None when it is not of this form."""
        if any(completion.count(tag) != 1 for tag in self._tags):
            return None
        at, inside = 0, ""
        for position, tag in enumerate(self._tags):
            start = completion.find(tag, at)
            if start < 0:
                return None
            between, at = completion[at:start], start + len(tag)
            if position % 2:
                inside = between.strip()
            elif between.strip():
                return None
        after = completion[at:].strip()
        if bool(after) != self.rest:
            return None
        return after if self.rest else inside

    def write(self, answer: str) -> str:
        """An answer in this form, the other sections empty."""
        sections = [f"<{name}>\n</{name}>" for name in self.names]
        if self.rest:
            return "\n".join([*sections, answer])
        return "\n".join([*sections[:-1], f"<{self.names[-1]}>\n{answer}\n</{self.names[-1]}>"])
