"""Runs the attacks and the cheats in this process's name, and prints those with a wrong outcome."""

import json
import os
import sys
from pathlib import Path

from grpo_gym.sandbox import SAFE, Limits, judge, probe, run
from tests.attacks.cheats import CHEATS, TESTS
from tests.attacks.programs import ATTACKS, prepared


def main(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("the hidden tests")
    wrong = []
    backends = [name for name in SAFE if probe(name) is None]
    for backend in backends:
        for attack in ATTACKS:
            source = prepared(attack.source, secret)
            if not attack.right(run(source, limits=attack.limits, backend=backend)):
                wrong.append(f"{backend}: {attack.name}")
        for name, source in CHEATS.items():
            if judge(source, TESTS, limits=Limits(wall_s=1.0), backend=backend).success:
                wrong.append(f"{backend}: {name}")
        if not judge("def add(a, b): return a + b", TESTS, backend=backend).success:
            wrong.append(f"{backend}: the right program")
    if secret.read_text() != "the hidden tests" or list(folder.iterdir()) != [secret]:
        wrong.append("the folder was changed")
    print(json.dumps({"user": os.getuid(), "backends": backends, "wrong": wrong}))


main(Path(sys.argv[1]))
