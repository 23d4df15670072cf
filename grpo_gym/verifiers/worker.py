"""The process that runs math-verify: one JSON request a line on stdin, one JSON answer a line on stdout."""

import json
import logging
import os
import resource
import signal
import sys

MEMORY_BYTES = 2 << 30
SPARE_S = 2.0


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    from grpo_gym.verifiers.equivalence import equivalent

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The kernel ends a stuck worker even when the parent is gone and cannot.
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + SPARE_S)
        try:
            verdict = {"equal": equivalent(request["answer"], request["reference"])}
        except (Exception, MemoryError, RecursionError) as error:
            verdict = {"equal": False, "error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
