"""The process in which reasoning-gym runs: one JSON request a line on stdin, one answer a line on stdout.

Run by `grpo_gym.verifiers.workers.Pool`. A process of its own, as the library's generators draw from
NumPy's global generator, depend on Python's hash seed, and its scorers may hang.
"""

import copy
import json
import logging
import math
import os
import random
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from grpo_envs.adapters.reasoning_guard import CONDITIONS, disarm
from grpo_envs.adapters.reasoning_names import EXAMPLES, SMALL
from grpo_gym.verifiers.worker import MEMORY_BYTES, SPARE_S, limit

ENDLESS = 2**31
DEFAULT_SIZE = 500


class Refused(Exception):
    """What was asked for cannot be made; the message says why."""


def configure(name: str, level: int | None, options: str) -> dict[str, Any]:
    """The arguments of a generator's data set: those of a level, then the caller's."""
    from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

    chosen: dict[str, Any] = {}
    if level is not None:
        if name not in CURRICULA:
            raise Refused("it has no levels")
        curriculum = create_curriculum(name)
        top = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
        if not 0 <= level <= top:
            raise Refused(f"its levels are 0 to {top}")
        curriculum.set_global_level(level)
        chosen = dict(vars(curriculum.generate_configuration()))
    chosen |= json.loads(options)
    fields = DATASETS[name][1].__dataclass_fields__
    unknown = sorted(set(chosen) - set(fields))
    if unknown:
        raise Refused(f"it has no option {', '.join(unknown)}; it takes {', '.join(fields)}")
    return chosen


@lru_cache(maxsize=16)
def dataset(name: str, level: int | None, options: str, seed: int) -> Any:
    """A data set of the library, endless where it can be."""
    import reasoning_gym

    size = DEFAULT_SIZE if name in SMALL else ENDLESS
    arguments = configure(name, level, options) | {"seed": seed, "size": size}
    return reasoning_gym.create_dataset(name, **arguments)


@lru_cache(maxsize=128)
def entry(name: str, level: int | None, options: str, seed: int, index: int) -> dict[str, Any]:
    """One task as the library makes it."""
    _seed_globals(seed + index)
    made: dict[str, Any] = dataset(name, level, options, seed)[index]
    return made


def item(name: str, level: int | None, options: str, seed: int, index: int) -> dict[str, Any]:
    """Question and answer of a task; the answer is "" where there is none."""
    made = entry(name, level, options, seed, index)
    given = made["answer"]
    if given is None and name in EXAMPLES:
        given = made["metadata"][EXAMPLES[name]]
    if isinstance(given, dict):
        given = json.dumps(given)
    return {"question": str(made["question"]), "answer": "" if given is None else str(given)}


def score(
    name: str, level: int | None, options: str, seed: int, index: int, answer: str
) -> dict[str, Any]:
    """The library's score of an answer, between 0 and 1."""
    made = copy.deepcopy(entry(name, level, options, seed, index))
    _seed_globals(seed + index)
    try:
        value = float(dataset(name, level, options, seed).score_answer(answer, made))
    except Exception as error:  # a scorer may choke on any text
        return {"score": 0.0, "error": type(error).__name__}
    if not math.isfinite(value):
        return {"score": 0.0, "error": "not finite"}
    if value >= 1 and name in CONDITIONS and not CONDITIONS[name](answer, made):
        value = 0.0
    return {"score": min(max(value, 0.0), 1.0)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request: `item` for a task, `score` for an answer to it."""
    where = {key: request[key] for key in ("name", "level", "options", "seed", "index")}
    try:
        if request["kind"] == "score":
            return score(**where, answer=request["answer"])
        return item(**where)
    except Exception as error:  # a generator may raise anything, and so may checking its options
        text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        return {"refused": " ".join(text.split())}


def _seed_globals(seed: int) -> None:
    # This process is the library's own: nobody else draws from these.
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def main() -> None:
    """Serve until stdin ends."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # read once, when an interpreter starts
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    limit(resource.RLIMIT_AS, MEMORY_BYTES)
    limit(resource.RLIMIT_CORE, 0)
    logging.disable(logging.CRITICAL)
    disarm()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The default action of SIGALRM ends the process even inside one long C call.
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + SPARE_S)
        try:
            reply = answer(request)
        except MemoryError:
            reply = {"refused": "out of memory", "score": 0.0, "error": "MemoryError"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
