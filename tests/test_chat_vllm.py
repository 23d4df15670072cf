"""vLLM's own server as an endpoint: text, tools in text and native ones, against engine hf."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import UsageError
from grpo_gym.engines.vllm_server import VLLMServerEngine
from grpo_gym.evaluation import Evaluation
from grpo_gym.policy import load_policy
from tests.commands import run
from tests.vllm_serving import KEY, Server

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture
def api(vllm_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address for text; whatever other tests have loaded, the weights are those of the model."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    model = load_policy("tiny").model
    engine = VLLMServerEngine(vllm_server.url, model.config)
    engine.load(model.state_dict(), 0)
    engine.close()
    return f"{vllm_server.url}/v1"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def evaluate(env: str, engine: str, *arguments: str, **options: Any) -> Evaluation:
    return grpo_gym.evaluate(
        env=f"grpo_gym/{env}-v0",
        model="tiny",
        engine=engine,
        engine_arg=arguments,
        **{"n": 8, "k": (1, 8), "tasks": 24, "max_tokens": 48, **options},
    )


def near(one: Evaluation, other: Evaluation) -> bool:
    """Whether the difference is one that 24 tasks of 8 rollouts show by chance."""
    return abs(one.pass_at[1].mean - other.pass_at[1].mean) < 0.15


@pytest.mark.parametrize(
    ("env", "argument"),
    [("Arithmetic", "tools=text"), ("Calculator", "tools=text"), ("Calculator", "tools=native")],
)
def test_it_does_as_well_as_in_the_process(api: str, env: str, argument: str) -> None:
    there, here = evaluate(env, api, argument), evaluate(env, "hf")
    assert near(there, here), (there, here)
    assert (there.failures, there.stopped) == (0, None)
    assert abs(there.tokens - here.tokens) < 1.5


def test_the_same_seed_samples_the_same(api: str) -> None:
    first, again, other = (evaluate("Arithmetic", api, seed=seed, tasks=8) for seed in (1, 1, 2))
    assert first.successes == again.successes
    assert first.successes != other.successes


def test_a_model_it_does_not_serve_is_told_with_the_one_it_does(api: str) -> None:
    with pytest.raises(UsageError, match=r"gpt-x.*it offers the models tiny"):
        grpo_gym.evaluate(env="grpo_gym/Arithmetic-v0", model="gpt-x", engine=api, tasks=1)


def test_a_context_that_is_too_short_is_told(api: str) -> None:
    with pytest.raises(UsageError, match="greater than max_model_len"):
        grpo_gym.evaluate(
            env="grpo_gym/Arithmetic-v0", model="tiny", engine=api, tasks=1, max_tokens=100_000
        )


def test_a_prompt_that_is_too_long_is_told(api: str) -> None:
    with pytest.raises(UsageError, match="no conversation fits the model's context"):
        grpo_gym.evaluate(
            env="grpo_gym/Arithmetic-v0",
            env_args={"system_prompt": "1 2 3 4 " * 400},
            model="tiny",
            engine=api,
            tasks=1,
        )


def test_a_wrong_key_is_refused(
    api: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key")
    assert run("eval", "--engine", api, "--tasks", "1") == 2
    err = capsys.readouterr().err
    assert "refuses the key in OPENAI_API_KEY" in err
    assert "sk-another-key" not in err


def test_a_conversation_is_played_to_its_end(api: str, tmp_path: Path) -> None:
    """Turns that grow until the context is full end as truncated, and nothing is lost."""
    result = evaluate(
        "GuessNumber", api, "tools=text", rollouts=str(tmp_path / "r.jsonl"), tasks=3, n=2, k=(1,)
    )
    assert (result.failures, result.stopped) == (0, None)
