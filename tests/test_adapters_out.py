"""Our environments for other trainers: by their interfaces, then with TRL, verl and verifiers themselves."""

import asyncio
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from grpo_envs.adapters.rewards import Judge, rows, trl_reward, verifiers_reward, verl_reward
from grpo_envs.adapters.trl import TRLEnvironment, trl_environment, trl_rows
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.registry import make
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.testing import CopyEnv

TINY = Path(__file__).parents[1] / "grpo_gym" / "tiny" / "model"


def arithmetic() -> gymnasium.Env[Any, Any]:
    return make("grpo_gym/Arithmetic-v0")


def guessing() -> gymnasium.Env[Any, Any]:
    return make("grpo_gym/GuessNumber-v0")


def solution(build: Any, task_id: str) -> tuple[str, ...]:
    env = build()
    env.reset(options={"task_id": task_id})
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)
    assert inner.task is not None
    return inner.solution(inner.task)


class Unscored(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        return Score(math.nan, False)


def test_rows_name_each_task_once_and_the_same_one_each_time() -> None:
    made = rows(arithmetic, [1, 2, 2])
    assert len(made) == 2
    assert made == rows(arithmetic, [1, 2])
    row = made[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["task_id"] == row["reward_model"]["ground_truth"] == row["extra_info"]["task_id"]
    assert row["data_source"] == "grpo_gym/Arithmetic-v0"
    assert rows(arithmetic, [1], split="test")[0]["task_id"].startswith("test-")


def test_trl_gets_one_reward_for_each_completion_in_order() -> None:
    first, second = (row["task_id"] for row in rows(arithmetic, [1, 2]))
    reward = trl_reward(arithmetic)
    right = solution(arithmetic, first)[0]
    completions = [
        [{"role": "assistant", "content": right}],
        right,
        "nothing",
        [],
        [{"content": None}],
    ]
    ids = [first] * 5
    assert reward(prompts=[], completions=completions, task_id=ids) == [1, 1, 0, 0, 0]
    assert reward(completions=[right], task_id=[second]) == [0.0]
    assert reward.__name__ == "grpo_gym_Arithmetic_v0"
    with pytest.raises(ValueError, match="zip"):
        reward(completions=[right], task_id=ids)


def test_what_cannot_be_scored_is_left_out_by_trl_and_marked_for_verl() -> None:
    task_id = rows(Unscored, [0])[0]["task_id"]
    assert trl_reward(Unscored)(completions=["x"], task_id=[task_id]) == [None]
    scored = verl_reward(Unscored)("", "x", task_id)
    assert scored == {"score": 0.0, "acc": 0.0, "unscored": 1.0}


def test_verl_gets_a_score_and_an_accuracy() -> None:
    row = rows(arithmetic, [1])[0]
    compute_score = verl_reward(arithmetic)
    truth = row["reward_model"]["ground_truth"]
    (right,) = solution(arithmetic, truth)
    arguments = {"data_source": row["data_source"], "ground_truth": truth, "extra_info": {}}
    assert compute_score(solution_str=right, **arguments)["score"] == 1.0
    assert compute_score(solution_str="17", **arguments)["acc"] == 0.0


def test_an_unknown_task_is_told() -> None:
    with pytest.raises(UsageError, match="no task 'x'"):
        trl_reward(arithmetic)(completions=["1"], task_id=["x"])


def test_an_environment_of_several_turns_is_no_reward_function() -> None:
    task_id = rows(guessing, [0])[0]["task_id"]
    with pytest.raises(UsageError, match="use trl_environment"):
        Judge(guessing)(task_id, "\\boxed{0}")


def test_an_environment_that_names_no_task_has_no_rows() -> None:
    class Nameless(CopyEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {}

    with pytest.raises(UsageError, match="no info\\['task_id'\\]"):
        rows(Nameless, [0])


def test_trl_plays_an_environment_of_several_turns_by_a_tool() -> None:
    task_id = trl_rows(guessing, [0])[0]["task_id"]
    env = trl_environment(guessing)()
    assert "number" in env.reset(task_id=task_id, prompt="ignored")
    for action in solution(guessing, task_id):
        assert env.get_reward() == 0
        assert env.act(action)
    assert env.get_reward() == 1.0
    assert env.act("again") == "It is over."
    assert env.get_reward() == 1.0
    env.reset(task_id=task_id)
    assert env.get_reward() == 0


def test_trl_finds_one_tool_with_a_schema() -> None:
    public = {name for name in vars(TRLEnvironment) if not name.startswith("_")}
    assert public == {"reset", "act", "get_reward"}
    from transformers.utils import get_json_schema

    schema = get_json_schema(TRLEnvironment(CopyEnv()).act)["function"]
    assert schema["parameters"]["required"] == ["text"]


# ---------------------------------------------------------------- the trainers themselves


def train(tmp_path: Path, script: str = "", **arguments: Any) -> list[dict[str, Any]]:
    """The log of two steps of TRL's trainer on the tiny policy; a script is what it says, with tools."""
    trl = pytest.importorskip("trl", reason="the peers extra is not installed")
    datasets = pytest.importorskip("datasets")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    if script:  # the tiny policy's own template knows no tools
        template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    arguments["train_dataset"] = datasets.Dataset.from_list(arguments["train_dataset"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=400 if script else 24,
            report_to=[],
            use_cpu=True,
            bf16=False,
            logging_steps=1,
            save_strategy="no",
            seed=0,
        )
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(TINY),
            processing_class=tokenizer,
            args=config,
            **arguments,
        )
        if script:
            _speak(trainer, tokenizer, script)
        trainer.train()
    log: list[dict[str, Any]] = trainer.state.log_history
    return log


CALL = '<tool_call>\n{"name": "act", "arguments": {"text": "red"}}\n</tool_call>'


def _speak(trainer: Any, tokenizer: Any, script: str) -> None:
    """Put words in the policy's mouth: first a call of the tool, then nothing."""

    def generate(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        texts = [
            "Done." if "<tool_response>" in tokenizer.decode(ids) else script for ids in prompt_ids
        ]
        ids = [tokenizer.encode(text + tokenizer.eos_token) for text in texts]
        return ids, None

    trainer._generate_single_turn = generate


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_on_a_reward_function(tmp_path: Path) -> None:
    data = [{key: row[key] for key in ("prompt", "task_id")} for row in rows(arithmetic, range(8))]
    log = train(tmp_path, reward_funcs=trl_reward(arithmetic), train_dataset=data)
    rewards = [entry["rewards/grpo_gym_Arithmetic_v0/mean"] for entry in log[:2]]
    assert all(0 <= reward <= 1 for reward in rewards)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_on_an_environment(tmp_path: Path) -> None:
    def copying() -> CopyEnv:
        return CopyEnv(words=("red",))

    log = train(
        tmp_path,
        CALL,
        environment_factory=trl_environment(copying),
        train_dataset=trl_rows(copying, range(8)),
    )
    for entry in log[:2]:
        assert entry["tools/call_frequency"] == 1
        assert entry["tools/failure_frequency"] == 0
        assert entry["reward"] == 1


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_verl_loads_the_function_from_a_file(tmp_path: Path) -> None:
    reward = pytest.importorskip("verl.trainer.ppo.reward", reason="verl is not installed")
    from omegaconf import OmegaConf

    path = tmp_path / "my_reward.py"
    path.write_text(
        "from grpo_envs.adapters.rewards import verl_reward\n"
        "from grpo_gym.registry import make\n"
        "compute_score = verl_reward(lambda: make('grpo_gym/Arithmetic-v0'))\n",
        encoding="utf-8",
    )
    chosen = {"path": str(path), "name": "compute_score"}
    config = OmegaConf.create({"reward": {"custom_reward_function": chosen}})
    compute_score = reward.get_custom_reward_fn(config)
    row = rows(arithmetic, [1])[0]
    (right,) = solution(arithmetic, row["task_id"])
    arguments = {"data_source": row["data_source"], "extra_info": row["extra_info"]}
    truth = row["reward_model"]["ground_truth"]
    scored = [
        compute_score(solution_str=text, ground_truth=truth, **arguments)["score"]
        for text in (right, "x")
    ]
    assert scored == [1.0, 0.0]


def test_verifiers_scores_the_last_reply_of_a_trace() -> None:
    row = rows(arithmetic, [1])[0]
    reward = verifiers_reward(arithmetic)
    task = SimpleNamespace(id=row["task_id"])
    (right,) = solution(arithmetic, row["task_id"])
    assert asyncio.run(reward(None, task, SimpleNamespace(last_reply=right))) == 1.0
    assert asyncio.run(reward(None, task, SimpleNamespace(last_reply="x"))) == 0.0


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_a_task_of_verifiers_is_scored() -> None:
    vf: Any = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    from verifiers.v1.trace import AgentInfo, TraceTask

    class Sums(vf.Task):  # type: ignore[misc, unused-ignore]
        solved = vf.reward(verifiers_reward(arithmetic))

    row = rows(arithmetic, [1])[0]
    data = vf.TaskData(id=row["task_id"], prompt=row["prompt"])
    (right,) = solution(arithmetic, row["task_id"])
    earned = []
    for reply in (right, "x"):
        trace = vf.Trace(
            task=TraceTask(type="Sums", data=data),
            agent=AgentInfo.model_construct(),
            root_reply=reply,
        )
        asyncio.run(Sums(data).score(trace))
        earned.append(trace.reward)
    assert earned == [1.0, 0.0]
