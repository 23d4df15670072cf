"""Our losses and advantages against TRL's own code, on random batches; needs the peers extra.

TRL's methods are called unbound on a stub whose log-probs are our tensors, and the blocks of its
`_generate_and_score_completions` that compute advantages and importance weights are run as they stand.
"""

import ast
import inspect
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_agents import cispo, dapo, dr_grpo, gmpo, grpo, gspo, luspo, rloo, sapo, vespo
from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import BatchStandardised, GroupCentred, GroupStandardised
from grpo_gym.objectives.corrections import MIS, TIS, OffPolicyMask, TopEntropy
from grpo_gym.objectives.multi_reward import NormaliseThenSum, SumThenNormalise
from grpo_gym.objectives.penalties import KL
from grpo_gym.objectives.ratios import SequenceRatio, TokenRatio
from tests.agent_batches import Example, differentiate, make

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SEEDS = range(5)
GROUP_SIZE, BUDGET = 4, 9


@pytest.fixture(scope="module")
def trl() -> Any:
    """TRL's trainer module, in float64: it makes scalar tensors of the default type."""
    return pytest.importorskip(
        "trl.trainer.grpo_trainer", reason="the peers extra is not installed"
    )


@pytest.fixture(autouse=True)
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def example(seed: int) -> Example:
    """A batch of three groups of four, each row with a sampled token, as TRL's metrics demand."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand((3, GROUP_SIZE), generator=generator).tolist()
    batch = make(rewards, 6, seed)
    mask = batch.signals.mask.clone()
    mask[:, 0] = True
    return replace(batch, signals=replace(batch.signals, mask=mask))


class Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    gather_for_metrics = gather

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, dim: int, pad_index: float) -> Tensor:
        return tensor


def stub(trl: Any, batch: Example, settings: dict[str, Any]) -> SimpleNamespace:
    """What TRL's methods read of a trainer: TRL's defaults, but for `settings`."""
    args = {name: field.default for name, field in trl.GRPOConfig.__dataclass_fields__.items()}
    args |= {"steps_per_generation": 1, "max_completion_length": BUDGET} | settings
    outputs = (batch.outputs.logprobs, batch.outputs.entropy, None)
    extra = {
        "epsilon_low": args["epsilon"],
        "epsilon_high": args["epsilon_high"] or args["epsilon"],
        "args": SimpleNamespace(**args),
        "accelerator": Accelerator(),
        "aux_loss_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "model": SimpleNamespace(training=True),
        "_entropy_bonus_enabled": args["entropy_coef"] != 0,
        "_last_world_entropy": math.inf,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_get_per_token_logps_and_entropies": lambda *a, **k: outputs,
        "get_off_policy_mask": trl.GRPOTrainer.get_off_policy_mask,
        "get_gamma_weights": trl.GRPOTrainer.get_gamma_weights,
        "num_generations": GROUP_SIZE,
    }
    trainer = SimpleNamespace(**(args | extra))
    trainer.get_high_entropy_mask = partial(trl.GRPOTrainer.get_high_entropy_mask, trainer)
    return trainer


def block(function: Any, contains: str, starts: str) -> Any:
    """The innermost `if` statement of a function whose test starts, and whose body goes on, so."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test).startswith(starts)
        and contains in ast.unparse(node)
    ]
    node = min(found, key=lambda node: len(ast.unparse(node)))
    return compile(ast.Module([node], []), function.__name__, "exec")


def importance_weights(trl: Any, trainer: SimpleNamespace, batch: Example) -> Tensor:
    """TRL's own weights, (B, T) or (B, 1)."""
    scope = {
        **vars(trl),
        "self": trainer,
        "completion_mask": batch.signals.mask.double(),
        "tool_mask": None,
        "old_per_token_logps": batch.signals.old,
        "sampling_per_token_logps": batch.signals.behaviour,
    }
    code = block(
        trl.GRPOTrainer._generate_and_score_completions, "per_token_logps_diff", "self.use_vllm and"
    )
    exec(code, scope)  # TRL's own text
    weights: Tensor = scope["vllm_importance_sampling_ratio"]
    return weights


def trl_loss(trl: Any, batch: Example, settings: dict[str, Any], advantages: Tensor) -> Tensor:
    """TRL's loss of the whole batch, given the advantages."""
    trainer, signals = stub(trl, batch, settings), batch.signals
    mask = signals.mask.double()
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": signals.tokens,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": signals.old,
        "sampling_per_token_logps": signals.behaviour,
        "ref_per_token_logps": signals.reference,
        "num_items_in_batch": mask.sum(),
    }
    if trainer.use_vllm:
        inputs["importance_sampling_ratio"] = importance_weights(trl, trainer, batch)
    loss: Tensor = settings.get("trainer", trl.GRPOTrainer)._compute_loss(trainer, None, inputs)
    return loss


def agree(ours: Tensor, theirs: Tensor, batch: Example) -> None:
    """The same loss and the same gradient."""
    found, expected = (differentiate(loss, batch.outputs) for loss in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


SEQUENCE = {"importance_sampling_level": "sequence"}


def corrected(agent: Agent, *corrections: Any) -> Agent:
    return replace(agent, corrections=corrections)


def vllm(mode: str, low: float | None = None, high: float = 3.0) -> dict[str, Any]:
    return {
        "use_vllm": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
    }


DAPO = {"loss_type": "dapo", "epsilon_high": 0.28}
CASES: dict[str, tuple[Agent, dict[str, Any]]] = {
    "grpo": (grpo(), {"loss_type": "grpo"}),
    "grpo_sequence": (
        gspo(0.05, 0.1),
        {"loss_type": "grpo", "epsilon": 0.05, "epsilon_high": 0.1} | SEQUENCE,
    ),
    "grpo_delta": (grpo(dual_clip=1.4), {"loss_type": "grpo", "delta": 1.4}),
    "grpo_kl": (grpo(kl=0.1), {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False}),
    "grpo_kl_unbiased": (grpo(kl=0.1, kl_kind="k3_is"), {"loss_type": "grpo", "beta": 0.1}),
    "gspo_kl_unbiased": (
        replace(gspo(0.05, 0.1), penalties=(KL(0.1, "k3_is"),)),
        {"loss_type": "grpo", "beta": 0.1, "epsilon": 0.05, "epsilon_high": 0.1} | SEQUENCE,
    ),
    "bnpo": (dapo(clip_high=0.2), {"loss_type": "bnpo"}),
    "bnpo_sequence": (
        replace(dapo(clip_high=0.2), ratio=SequenceRatio()),
        {"loss_type": "bnpo"} | SEQUENCE,
    ),
    "dr_grpo": (dr_grpo(BUDGET), {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dr_grpo_sequence": (
        replace(dr_grpo(BUDGET), ratio=SequenceRatio()),
        {"loss_type": "dr_grpo"} | SEQUENCE,
    ),
    "dapo": (dapo(), DAPO),
    "dapo_sequence": (replace(dapo(), ratio=SequenceRatio()), DAPO | SEQUENCE),
    "luspo": (
        luspo(0.05, 0.1),
        {"loss_type": "luspo", "epsilon": 0.05, "epsilon_high": 0.1} | SEQUENCE,
    ),
    "luspo_token": (replace(luspo(0.2, 0.2), ratio=TokenRatio()), {"loss_type": "luspo"}),
    "cispo": (cispo(ratio_cap=1.2), {"loss_type": "cispo", "epsilon_high": 1.2}),
    "cispo_sequence": (
        replace(cispo(ratio_cap=1.2), ratio=SequenceRatio()),
        {"loss_type": "cispo", "epsilon_high": 1.2} | SEQUENCE,
    ),
    "sapo": (sapo(), {"loss_type": "sapo"}),
    "sapo_sequence": (replace(sapo(), ratio=SequenceRatio()), {"loss_type": "sapo"} | SEQUENCE),
    "vespo": (vespo(), {"loss_type": "vespo"}),
    "vespo_truncated": (
        corrected(vespo(), TIS(3.0)),
        {"loss_type": "vespo"} | vllm("token_truncate"),
    ),
    "vespo_masked": (
        corrected(vespo(), MIS(2.0, level="token")),
        {"loss_type": "vespo"} | vllm("token_mask", high=2.0),
    ),
    "token_truncate": (corrected(dapo(), TIS(1.5, 0.5)), DAPO | vllm("token_truncate", 0.5, 1.5)),
    "token_mask": (corrected(dapo(), MIS(1.5, 0.5, "token")), DAPO | vllm("token_mask", 0.5, 1.5)),
    "sequence_truncate": (
        corrected(dapo(), TIS(1.5, 0.5, "sequence")),
        DAPO | vllm("sequence_truncate", 0.5, 1.5),
    ),
    "sequence_mask": (corrected(dapo(), MIS()), DAPO | vllm("sequence_mask")),
    "off_policy_mask": (
        corrected(dapo(), OffPolicyMask(0.05)),
        DAPO | {"off_policy_mask_threshold": 0.05},
    ),
    "top_entropy": (corrected(dapo(), TopEntropy(0.4)), DAPO | {"top_entropy_quantile": 0.4}),
    "everything": (
        replace(
            grpo(kl=0.1, kl_kind="k3_is", dual_clip=1.4),
            corrections=(OffPolicyMask(0.05), TopEntropy(0.6), TIS(1.5)),
        ),
        {
            "loss_type": "grpo",
            "beta": 0.1,
            "delta": 1.4,
            "off_policy_mask_threshold": 0.05,
            "top_entropy_quantile": 0.6,
        }
        | vllm("token_truncate", high=1.5),
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(trl: Any, name: str, seed: int) -> None:
    agent, settings = CASES[name]
    batch = example(seed)
    if "top_entropy_quantile" in settings:  # TRL takes the entropy of the policy being trained
        assert batch.outputs.entropy is not None
        entropy = batch.outputs.entropy.detach()
        batch = replace(batch, signals=replace(batch.signals, entropy=entropy))
    credit = agent.credit(batch.signals)
    theirs = trl_loss(trl, batch, settings, credit.advantages[:, 0])
    agree(batch.loss(agent), theirs, batch)


def test_every_loss_type_level_and_mode_of_trl_is_compared(trl: Any) -> None:
    compared = {s.get("loss_type") for _, s in CASES.values()}
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    tests = re.findall(r"self\.loss_type (?:==|in) (\[.*?\]|\".*?\")", source)
    assert compared == {name for test in tests for name in re.findall(r"\w+", test)}
    modes = {s.get("vllm_importance_sampling_mode") for _, s in CASES.values()}
    assert modes >= {f"{a}_{b}" for a in ("token", "sequence") for b in ("truncate", "mask")}


@pytest.mark.parametrize("seed", SEEDS)
def test_gmpo_is_that_of_trl(trl: Any, seed: int) -> None:
    trainer = pytest.importorskip("trl.experimental.gmpo.gmpo_trainer").GMPOTrainer
    agent, batch = gmpo(0.1, 0.2), example(seed)
    settings = {"epsilon": 0.1, "epsilon_high": 0.2, "trainer": trainer}
    advantages = agent.credit(batch.signals).advantages[:, 0]
    agree(batch.loss(agent), trl_loss(trl, batch, settings, advantages), batch)


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_is_that_of_trl(trl: Any, seed: int) -> None:
    trainer = pytest.importorskip("trl.trainer.rloo_trainer").RLOOTrainer
    agent, batch = rloo(kl=0.05, surrogate="seq_ppo"), example(seed)
    signals, mask = batch.signals, batch.signals.mask
    assert signals.old is not None
    advantages = agent.credit(signals).advantages[:, 0]
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros(mask.shape),
        "completion_mask": mask.double(),
        "old_logps": (signals.old * mask).sum(1),
        "advantages": advantages,
    }
    theirs = trainer._compute_loss(stub(trl, batch, {}), None, inputs)
    agree(batch.loss(agent), theirs, batch)


SCALES: dict[str, tuple[Any, dict[str, str]]] = {
    "group": (SumThenNormalise((), GroupStandardised(1)), {"scale_rewards": "group"}),
    "none": (SumThenNormalise((), GroupCentred()), {"scale_rewards": "none"}),
    "batch": (
        SumThenNormalise((), BatchStandardised("group", "rewards", 1)),
        {"scale_rewards": "batch"},
    ),
    "gdpo": (
        NormaliseThenSum((), ddof=1),
        {"multi_objective_aggregation": "normalize_then_sum"},
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [False, True], ids=["scored", "some_unscored"])
@pytest.mark.parametrize("name", SCALES)
def test_advantages_are_those_of_trl(trl: Any, name: str, missing: bool, seed: int) -> None:
    advantage, settings = SCALES[name]
    batch = example(seed)
    weights = {"first": 1.0, "second": 0.5}
    assert batch.signals.components is not None
    parts = batch.signals.components.clone()
    if missing:
        parts[1, 0] = parts[6, 1] = torch.nan  # one of the rewards does not apply
        parts[2] = torch.nan  # none does
    total = parts[:, 0].where(~parts.isnan().all(1), torch.nan).nan_to_num(nan=0.0)
    total = total.where(~parts.isnan().all(1), torch.nan)
    signals = replace(batch.signals, components=parts, rewards=total)
    agent = replace(grpo(), advantage=replace(advantage, weights=weights))

    scope = {
        **vars(trl),
        "self": SimpleNamespace(
            **{"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
            | settings,
            reward_weights=torch.tensor([1.0, 0.5]),
            reward_funcs=["first", "second"],
        ),
        "device": "cpu",
        "num_generations": GROUP_SIZE,
        "rewards_per_func": parts,
        "unscorable_mask": parts.isnan().all(1),
    }
    code = block(
        trl.GRPOTrainer._generate_and_score_completions,
        "mean_grouped_rewards",
        "self.multi_objective_aggregation ==",
    )
    exec(code, scope)  # TRL's own text
    theirs = scope["advantages"].nan_to_num(nan=0.0)
    ours = agent.credit(signals).advantages[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
