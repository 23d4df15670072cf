"""The process that does what may hang: one JSON request a line on stdin, one JSON answer a line on stdout.

Run by `workers.Pool` as `python -m grpo_gym.verifiers.worker`.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2 << 30
SPARE_S = 2.0
"""How long after the deadline the kernel ends a worker whose parent did not."""


def limit(kind: int, amount: int) -> None:
    """Lower a resource limit; a lower one that is already set stays."""
    hard = resource.getrlimit(kind)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request: `equal` for two answers, `match` for a pattern and a text."""
    from grpo_gym.verifiers.equivalence import equivalent

    if request["kind"] == "math":
        return {"verdict": equivalent(request["answer"], request["reference"])}
    return {"verdict": re.search(request["pattern"], request["text"]) is not None}


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    limit(resource.RLIMIT_AS, MEMORY_BYTES)
    limit(resource.RLIMIT_CORE, 0)
    logging.disable(logging.CRITICAL)
    answer({"kind": "math", "answer": r"\sum_{k=1}^{2} k", "reference": "3"})  # loads everything

    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The default action of SIGALRM ends the process even inside one long C call.
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + SPARE_S)
        try:
            reply = answer(request)
        except (Exception, MemoryError) as error:
            reply = {"verdict": False, "error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
