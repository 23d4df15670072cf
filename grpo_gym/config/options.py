"""Every option of a run, as dataclass fields with their checks."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction
from tyro.constructors import PrimitiveConstructorSpec

from grpo_gym.errors import UsageError

# Beyond it nothing is meant; what counts things would run out of memory, or of numbers.
_MOST = 10**9

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")

Texts = Annotated[tuple[str, ...], UseAppendAction]
"""Texts; on the command line the option is given once for each."""

Names = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME,NAME,...",
        instance_from_str=lambda words: tuple(words[0].split(",")),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(value)],
    ),
]
"""Names; on the command line they are written a,b,c."""

Numbers = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="K,K,...",
        instance_from_str=lambda words: tuple(int(part) for part in words[0].split(",")),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    ),
]
"""Whole numbers; on the command line they are written 1,8,16."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is played, and by which model."""

    env: str = "grpo_gym/Arithmetic-v0"
    """Environment: a registered id, or module:Class."""
    env_arg: Texts = ()
    """Arguments of the environment, as name=value; a value is read as TOML if it can be, else as text."""
    model: str = "tiny"
    """Folder of a transformers model or an adapter, a Hugging Face id, or tiny, which comes with the package;
    of an endpoint, its name of the model."""
    chat_template: str | None = None
    """plain, chatml, or a file with a Jinja template; None: the model's own, or plain if it has none."""
    engine: str = "hf"
    """What samples: hf, transformers in this process; vllm, which needs the extra of that name; or the
    address of a server: http://HOST:PORT is vLLM's, https://HOST/v1 anything that speaks OpenAI's way."""
    engine_arg: Texts = ()
    """Arguments of vLLM or of a server, as name=value, such as gpu_memory_utilization=0.4."""
    seed: int = 0
    """Decides tasks, samples and everything else that is random."""

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", self.seed, "at least 0")
        for name, value in vars(self).items():
            if isinstance(value, int) and name != "seed":
                _require(value <= _MOST, name, value, f"at most {_MOST}")
        if "@" in self.engine:
            raise UsageError(
                "engine: an address must not hold a user or a password; keys come from the environment"
            )
        known = self.engine in ("hf", "vllm") or _URL.fullmatch(self.engine) is not None
        _require(
            known, "engine", self.engine, "hf, vllm, or the address of a server, http://HOST:PORT"
        )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the policy samples and how far a rollout may go."""

    temperature: float = 1.0
    """Logits are divided by it; 0, for evaluation, takes the most probable token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    top_k: int = 0
    """Keep this many most probable tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this share as probable as the most probable one."""
    max_tokens: int = 256
    """Most tokens that one turn may sample."""
    rollout_tokens: int | None = None
    """Most tokens of a rollout after its prompt, observations included; None: what the context holds."""
    stop: Texts = ()
    """Strings that end a turn."""
    max_lanes: int = 256
    """Most rollouts in play at once."""
    max_error_share: float = 0.1
    """Share of rollouts that may be lost to failing environments before the run stops."""
    env_timeout_s: float = 300.0
    """Seconds an environment may take for one answer before its rollout is lost."""
    engine_timeout_s: float = 3600.0
    """Seconds the engine may take for one step, or to take weights, before the process is ended; inf: any."""
    patience_s: float = 0.02
    """Seconds that generation waits for environments that have just been asked; inf: for all of them."""

    def __post_init__(self) -> None:
        warm = 0 <= self.temperature < math.inf
        _require(warm, "temperature", self.temperature, "a finite number, at least 0")
        _require("" not in self.stop, "stop", self.stop, "strings that are not empty")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "within 0 and 1")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        tokens = self.rollout_tokens
        _require(tokens is None or tokens >= 1, "rollout_tokens", tokens, "at least 1")
        _require(self.max_lanes >= 1, "max_lanes", self.max_lanes, "at least 1")
        share = self.max_error_share
        _require(0 <= share <= 1, "max_error_share", share, "within 0 and 1")
        _require(self.env_timeout_s > 0, "env_timeout_s", self.env_timeout_s, "above 0")
        _require(self.engine_timeout_s > 0, "engine_timeout_s", self.engine_timeout_s, "above 0")
        _require(self.patience_s >= 0, "patience_s", self.patience_s, "at least 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(SamplingOptions, TaskOptions):
    """Train a model on an environment."""

    agent: str = "grpo"
    """Name of the update rule; `grpo-gym agents` lists them."""
    agent_arg: Texts = ()
    """Hyper-parameters of the agent, as name=value."""
    kl: float = 0.0
    """Weight of a KL penalty to the initial model, added to the agent's own penalties; 0: none."""
    kl_kind: Literal["k1", "k2", "k3", "k3_is", "k3_plus"] = "k3"
    """Estimator of that KL."""
    steps: int = 100
    """Training steps: each collects rollouts and updates the model on them."""
    groups_per_step: int = 16
    """Tasks in a step, N."""
    group_size: int = 8
    """Rollouts of each task, G."""
    split: str = "train"
    """Split of the tasks, for environments that have splits."""
    learning_rate: float | None = None
    """Of AdamW; None: 1e-6, or 1.5e-4 for the tiny policy; ten times that for LoRA."""
    weight_decay: float = 0.0
    """Of AdamW, on matrices only."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the last step."""
    warmup_steps: int = 0
    """Optimiser steps over which the learning rate rises from 0."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; inf leaves them."""
    epochs: int = 1
    """Passes over each batch."""
    mini_batches: int = 1
    """Optimiser steps in each pass."""
    tokens_per_micro_batch: int = 16_384
    """Most tokens in one forward pass: decides memory and speed, never the result."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the model under autocast; weights, log-probs and loss stay in float32."""
    fp32_lm_head: bool = False
    """Compute logits in float32 from hidden states in float32, in the engine as in the learner."""
    lora_rank: int = 0
    """Train a LoRA adapter of this rank, not the model's own weights; 0: those."""
    lora_alpha: float = 32.0
    """The adapter's product is scaled by alpha / rank."""
    lora_targets: Names = ("all-linear",)
    """Layers that get an adapter, as q_proj,v_proj; all-linear: every linear layer but the head."""
    lora_adapter: str | None = None
    """Folder of a saved adapter of this model to go on from; it brings its own rank, alpha and targets."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    max_bad_steps: int = 3
    """This many steps in a row whose loss or gradient is not finite stop the run."""
    run_dir: str | None = None
    """Folder of the run; None: runs/ENV-AGENT-N. It must be new, or hold a run to resume."""
    resume: bool = False
    """Go on from the last checkpoint in run_dir."""
    save_every: int = 50
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    keep: int = 2
    """Checkpoints to keep."""
    rollouts_every: int = 10
    """Steps between those whose rollouts are written to RUN/rollouts; 0: none."""
    eval_tasks: int = 0
    """Tasks of the evaluation before the first step and after the last; 0: no evaluation."""
    eval_every: int = 0
    """Steps between further evaluations; 0: none."""
    eval_n: int = 16
    """Rollouts of each evaluation task."""
    eval_k: Numbers = (1, 8)
    """Values of k in pass@k."""
    eval_split: str | None = None
    """Split of the evaluation; None: test if the environment has it, else the training split."""

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        SamplingOptions.__post_init__(self)
        _require(self.temperature > 0, "temperature", self.temperature, "above 0 to train")
        if is_endpoint(self.engine):
            raise UsageError(
                f"engine {self.engine} gives text, and training needs token ids and log-probs: use hf, vllm, "
                "or a vLLM server, whose address has no path; eval and rollout take this one"
            )
        for name in ("steps", "groups_per_step", "group_size", "keep", "eval_n"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("save_every", "rollouts_every", "eval_tasks", "eval_every"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _require(0 <= self.kl < math.inf, "kl", self.kl, "a finite number, at least 0")
        _require(self.lora_rank >= 0, "lora_rank", self.lora_rank, "at least 0")
        alpha = self.lora_alpha
        _require(0 < alpha < math.inf, "lora_alpha", alpha, "a finite number above 0")
        _require("" not in self.lora_targets, "lora_targets", self.lora_targets, "names")
        if self.lora_rank and self.lora_adapter is not None:
            raise UsageError("lora_adapter brings its own rank: leave lora_rank out")
        for name in ("lora_alpha", "lora_targets"):
            if not self.lora_rank and getattr(self, name) != getattr(TrainConfig, name):
                raise UsageError(f"{name} is for a new adapter: give lora_rank, too")
        if self.resume and self.run_dir is None:
            raise UsageError("resume needs run_dir, the folder of the run")
        if self.eval_tasks:
            _check_k(self.eval_k, self.eval_n)


@dataclass(frozen=True, kw_only=True)
class EvalConfig(SamplingOptions, TaskOptions):
    """Evaluate a model on an environment with pass@k."""

    n: int = 16
    """Rollouts of each task."""
    k: Numbers = (1, 8)
    """Values of k in pass@k, each at most n."""
    tasks: int | None = None
    """Most tasks; None: all of a finite set, 200 of an endless one."""
    split: str | None = None
    """Split of the tasks; None: test if the environment has it, else its only one."""
    out: str | None = None
    """JSON file to write the result to."""
    rollouts: str | None = None
    """JSONL file to write every rollout to."""

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        SamplingOptions.__post_init__(self)
        _require(self.n >= 1, "n", self.n, "at least 1")
        _require(self.tasks is None or self.tasks >= 1, "tasks", self.tasks, "at least 1")
        _check_k(self.k, self.n)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(SamplingOptions, TaskOptions):
    """Play episodes and show the conversations."""

    episodes: int = 4
    """How many, each of another task."""
    split: str | None = None
    """Split of the tasks."""

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        SamplingOptions.__post_init__(self)
        _require(self.episodes >= 1, "episodes", self.episodes, "at least 1")


def is_endpoint(engine: str) -> bool:
    """Whether an engine is the address of an API, which has a path: text in, text out."""
    address = _URL.fullmatch(engine)
    return address is not None and bool((address[1] or "").strip("/"))


def _check_k(k: tuple[int, ...], n: int) -> None:
    _require(bool(k), "k", k, "at least one number")
    for each in k:
        _require(each >= 1, "k", each, "at least 1")
        if each > n:
            raise UsageError(
                f"pass@{each} needs at least {each} rollouts of each task, but n is {n}"
            )


def _require(right: bool, name: str, value: Any, what: str) -> None:
    if not right:
        raise UsageError(f"{name} is {value}, but must be {what}")
