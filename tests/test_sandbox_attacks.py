"""Hostile programs: each has its right outcome on every back end of this machine."""

import os
from pathlib import Path

import pytest


from grpo_gym.sandbox import SAFE, probe, run
from tests.attacks.programs import ATTACKS, Attack

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(probe(name) is not None, reason=f"no {name} here"))
    for name in SAFE
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_has_its_right_outcome(
    attack: Attack, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    secret = tmp_path / "secret"
    secret.write_text("the hidden tests")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    source = attack.source.replace("{{", "{").replace("}}", "}")
    for name, value in (
        ("{secret!r}", repr(str(secret))),
        ("{outside!r}", repr(str(tmp_path))),
        ("{parent}", str(os.getpid())),
    ):
        source = source.replace(name, value)

    result = run(source, limits=attack.limits, backend=backend)

    assert attack.right(result), result
    assert secret.read_text() == "the hidden tests"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
