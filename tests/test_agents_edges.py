"""Edge cases: one test per row of the specification's table of numerics and edge cases."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_agents import AGENTS, dapo, dr_grpo, gopo, grpo, gspo, ppo, rloo
from grpo_gym.agent import Agent
from grpo_gym.errors import UsageError
from grpo_gym.objectives.aggregations import PromptMean, SequenceMean
from grpo_gym.objectives.corrections import MIS, TIS, OffPolicyMask
from grpo_gym.objectives.selection import DropZeroVariance
from grpo_gym.objectives.signals import Credit, Outputs, Signals
from grpo_gym.objectives.token_advantages import ReturnToGo, last_token
from grpo_gym.types import Batch, Group, Rollout


def signals(
    rewards: list[float], mask: list[list[int]], old: list[list[float]] | None = None
) -> Signals:
    """One group; the old policy's log-probs are -1 where they are not given."""
    return Signals(
        mask=torch.tensor(mask).bool(),
        group=torch.zeros(len(rewards), dtype=torch.int64),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        truncated=torch.zeros(len(rewards), dtype=torch.bool),
        old=torch.full((len(mask), len(mask[0])), -1.0) if old is None else torch.tensor(old),
    )


def run(
    agent: Agent, batch: Signals, logprobs: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, float], Credit]:
    """Loss, gradient, mean metrics and credit of one step; the policy is at -1 if not given."""
    new = torch.full(batch.mask.shape, -1.0) if logprobs is None else logprobs.clone()
    new.requires_grad_()
    credit = agent.credit(batch)
    weights = agent.weights(credit.mask, batch.group)
    loss, metrics = agent.loss(Outputs(new), batch, credit, weights)
    (gradient,) = torch.autograd.grad(loss, new)
    pairs = {**metrics, **credit.metrics}
    means = {k: float(total) / max(1, int(count)) for k, (total, count) in pairs.items()}
    return loss.detach(), gradient, means, credit


FULL = [[1, 1], [1, 1], [1, 1]]


class TestGroupOfOne:
    @pytest.mark.parametrize("agent", [grpo(), dr_grpo(), gopo(), rloo()])
    def test_is_refused(self, agent: Agent) -> None:
        with pytest.raises(UsageError, match="group_size is 1"):
            agent.check(1)
        agent.check(2)

    def test_has_advantage_zero_where_it_is_allowed(self) -> None:
        agent = replace(grpo(), allow_singleton_groups=True)
        agent.check(1)
        _, gradient, _, credit = run(agent, signals([0.7], [[1, 1]]))
        assert credit.advantages.abs().sum() == 0
        assert gradient.abs().sum() == 0

    def test_is_fine_for_a_critic(self) -> None:
        ppo().check(1)

    def test_two_grpo_takes_groups_of_two_alone(self) -> None:
        AGENTS["two_grpo"]().check(2)
        with pytest.raises(UsageError, match="groups of 2"):
            AGENTS["two_grpo"]().check(4)


class TestZeroVariance:
    def test_advantage_is_exactly_zero_and_counted(self) -> None:
        _, gradient, metrics, credit = run(grpo(), signals([0.3, 0.3, 0.3], FULL))
        assert (credit.advantages == 0).all()
        assert (gradient == 0).all()
        assert metrics["frac_reward_zero_std"] == 1

    @pytest.mark.parametrize("eps", [1e-4, 1e-9, 0.0])
    def test_rounding_noise_of_float32_is_not_amplified(self, eps: float) -> None:
        rewards = torch.full((8,), 0.1, dtype=torch.float32)
        assert rewards.std() > 0  # the trap: equal numbers with a standard deviation
        batch = replace(signals([0.0] * 8, [[1]] * 8), rewards=rewards)
        assert (grpo(adv_eps=eps).credit(batch).advantages == 0).all()

    @pytest.mark.parametrize("scale", [1.0, 1e12, 1e-12])
    def test_equal_rewards_of_any_size(self, scale: float) -> None:
        batch = signals([0.1 * scale] * 3, FULL)
        assert (grpo(adv_eps=0.0).credit(batch).advantages == 0).all()

    def test_almost_equal_rewards_stay_small(self) -> None:
        batch = signals([0.1, 0.1, 0.1 + 1e-9], FULL)
        for eps, bound in ((1e-4, 6.7e-6), (1e-6, 6.7e-4)):
            credit = grpo(std_ddof=1, adv_eps=eps).credit(batch)
            assert 0 < credit.advantages.abs().max() <= bound


class TestEmptyRows:
    MASK: ClassVar = [[1, 1], [1, 0], [0, 0]]

    def test_a_masked_row_adds_nothing_and_is_not_counted(self) -> None:
        weights = grpo().weights(torch.tensor(self.MASK).bool(), torch.zeros(3).long())
        assert weights.tolist() == [[0.25, 0.25], [0.5, 0.0], [0.0, 0.0]]

    def test_it_can_be_counted_as_elsewhere(self) -> None:
        mask, group = torch.tensor(self.MASK).bool(), torch.zeros(3).long()
        weights = SequenceMean(count_empty_rows=True)(mask, group)
        torch.testing.assert_close(weights, grpo().weights(mask, group) * 2 / 3)

    def test_a_group_without_tokens_is_not_counted(self) -> None:
        mask = torch.tensor([[1, 1], [0, 0]]).bool()
        weights = PromptMean()(mask, torch.tensor([0, 1]))
        assert weights.tolist() == [[0.5, 0.5], [0.0, 0.0]]

    def test_an_empty_completion_leaves_the_baseline(self) -> None:
        batch = signals([1.0, 0.0, 5.0], self.MASK)
        assert dr_grpo().credit(batch).advantages[:, 0].tolist() == [0.5, -0.5, 0.0]
        counted = replace(dr_grpo(), empty_in_baseline=True).credit(batch)
        assert counted.advantages[:2, 0].tolist() == [-1.0, -2.0]

    @pytest.mark.parametrize("name", [name for name in AGENTS if not AGENTS[name]().needs.critic])
    def test_a_window_without_tokens_has_a_zero_loss_with_a_gradient(self, name: str) -> None:
        agent = AGENTS[name]()
        batch = signals([1.0, 0.0], [[0, 0], [0, 0]])
        batch = replace(batch, behaviour=batch.old, reference=batch.old)
        loss, gradient, _, _ = run(agent, batch, torch.full((2, 2), torch.nan))
        assert loss == 0
        assert (gradient == 0).all()


class TestTruncation:
    BATCH = replace(signals([1.0, 0.0, 0.5], FULL), truncated=torch.tensor([True, False, False]))

    def test_is_not_masked_by_default(self) -> None:
        assert grpo().credit(self.BATCH).mask.all()

    def test_masked_rows_leave_the_loss_and_stay_in_the_baseline(self) -> None:
        agent = replace(dr_grpo(), mask_truncated=True)
        _, gradient, metrics, credit = run(agent, self.BATCH)
        assert credit.advantages[:, 0].tolist() == [0.0, -0.5, 0.0]
        assert gradient[0].abs().sum() == 0
        assert metrics["frac_masked"] == pytest.approx(1 / 3)

    def test_they_can_leave_the_baseline_too(self) -> None:
        agent = replace(dr_grpo(), mask_truncated=True, truncated_in_baseline=False)
        assert agent.credit(self.BATCH).advantages[:, 0].tolist() == [0.0, -0.25, 0.25]

    def test_the_denominator_is_that_of_the_rows_that_stay(self) -> None:
        agent = dapo(mask_truncated=True)
        credit = agent.credit(self.BATCH)
        assert agent.weights(credit.mask, self.BATCH.group).sum() == pytest.approx(1)


def rollout(tokens: list[int], mask: list[int], reward: float, **more: object) -> Rollout:
    sampled = np.array(mask, dtype=bool)
    return Rollout(
        task_id="task",
        prompt_ids=np.array([1]),
        token_ids=np.array(tokens),
        mask=sampled,
        logprobs=np.where(sampled, -1.0, 0.0),
        versions=np.where(sampled, 0, -1),
        reward=reward,
        **more,  # type: ignore[arg-type]
    )


class TestMasksComeFromLengths:
    def test_a_sampled_token_with_the_id_of_padding_counts(self) -> None:
        group = Group("task", (rollout([5, 0], [1, 1], 1.0), rollout([0, 7, 0], [1, 0, 1], 0.0)))
        batch = Signals.from_batch(Batch((group,)))
        assert batch.mask.tolist() == [[True, True, False], [True, False, True]]
        assert batch.behaviour is not None
        assert batch.behaviour.tolist() == [[-1, -1, 0], [-1, 0, -1]]


class TestUnscored:
    def test_a_reward_of_nan_leaves_the_baseline_and_has_advantage_zero(self) -> None:
        batch = signals([1.0, 0.0, float("nan")], FULL)
        _, gradient, metrics, credit = run(grpo(std_ddof=1, adv_eps=0.0), batch)
        half = 0.5 / 0.5**0.5
        torch.testing.assert_close(
            credit.advantages[:, 0], torch.tensor([half, -half, 0.0]).double(), atol=1e-7, rtol=0
        )
        assert gradient[2].abs().sum() == 0
        assert metrics["frac_unscored"] == pytest.approx(1 / 3)

    @pytest.mark.parametrize("name", AGENTS)
    def test_it_never_spoils_the_others(self, name: str) -> None:
        batch = signals([1.0, 0.0, float("nan"), 0.5], [[1, 1]] * 4)
        batch = replace(batch, behaviour=batch.old, reference=batch.old, values=torch.zeros(4, 2))
        credit = AGENTS[name]().credit(batch)
        assert credit.advantages.isfinite().all()
        assert credit.advantages[2].abs().sum() == 0
        assert credit.returns is None or credit.returns.isfinite().all()


class TestUnknownBehaviour:
    def batch(self, unknown: int, size: int = 200) -> Signals:
        behaviour = torch.full((2, size), -2.0)
        behaviour[0, :unknown] = torch.nan
        batch = signals([1.0, 0.0], [[1] * size] * 2)
        return replace(batch, behaviour=behaviour)

    def test_weighs_one_and_is_counted(self) -> None:
        agent = replace(grpo(), corrections=(TIS(c_max=10.0),))
        _, gradient, metrics, _ = run(agent, self.batch(2))
        assert gradient[0, 2] / gradient[0, 0] == pytest.approx(np.exp(1.0), rel=1e-5)
        assert metrics["behaviour_nan"] == pytest.approx(2 / 400)

    def test_is_no_evidence_for_the_off_policy_mask(self) -> None:
        batch = signals([1.0, 0.0], [[1, 1]] * 2)
        behaviour = torch.tensor([[-1.0, -1.0], [torch.nan, -0.8]])
        batch = replace(batch, behaviour=behaviour)
        for threshold, kept in ((0.09, 0), (0.11, 1)):
            agent = replace(grpo(), corrections=(OffPolicyMask(threshold),), max_nan_fraction=1.0)
            _, gradient, _, _ = run(agent, batch)
            assert (gradient[1] != 0).all() == bool(kept)

    def test_too_many_are_refused(self) -> None:
        agent = replace(grpo(), corrections=(TIS(),))
        with pytest.raises(UsageError, match=r"no log-prob for 5\.0%"):
            agent.credit(self.batch(20))
        assert grpo().credit(self.batch(20)).mask.all()  # nobody needs them here


class TestImpossibleTokens:
    @pytest.mark.parametrize("value", [-torch.inf, torch.inf])
    @pytest.mark.parametrize("signal", ["old", "behaviour"])
    @pytest.mark.parametrize("correction", [TIS(), MIS(), OffPolicyMask(0.1)])
    def test_are_dropped_and_counted(self, value: float, signal: str, correction: object) -> None:
        batch = signals([1.0, 0.0], [[1, 1]] * 2)
        batch = replace(batch, behaviour=torch.full((2, 2), -1.0))
        spoilt = getattr(batch, signal).clone()
        spoilt[0, 1] = value
        agent = replace(grpo(), corrections=(correction,))  # type: ignore[arg-type]
        loss, gradient, metrics, credit = run(agent, replace(batch, **{signal: spoilt}))
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert credit.mask.tolist() == [[True, False], [True, True]]
        assert metrics["frac_impossible"] == pytest.approx(1 / 4)

    @pytest.mark.parametrize("name", [name for name in AGENTS if not AGENTS[name]().needs.critic])
    def test_a_token_that_became_impossible_spoils_nothing(self, name: str) -> None:
        batch = signals([1.0, 0.0], [[1, 1]] * 2)
        batch = replace(batch, behaviour=batch.old, reference=batch.old)
        new = torch.tensor([[-torch.inf, -1.0], [-1.0, -1.0]])
        loss, gradient, metrics, _ = run(AGENTS[name](), batch, new)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert metrics["impossible_now"] == pytest.approx(1 / 4)


class TestLogRatio:
    @pytest.mark.parametrize("name", [name for name in AGENTS if not AGENTS[name]().needs.critic])
    @pytest.mark.parametrize("gap", [50.0, -50.0, 500.0, -500.0])
    def test_is_clamped_before_it_overflows(self, name: str, gap: float) -> None:
        batch = signals([1.0, 0.0], [[1, 1]] * 2, [[-1.0 - max(gap, 0)] * 2] * 2)
        batch = replace(batch, behaviour=batch.old, reference=batch.old)
        loss, gradient, metrics, _ = run(
            AGENTS[name](), batch, torch.full((2, 2), -1.0 + min(gap, 0))
        )
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert metrics["ratio_clamped"] == 1

    @pytest.mark.parametrize("gap", [50.0, -50.0])
    def test_the_product_over_a_rollout_is_clamped_too(self, gap: float) -> None:
        long = [[1] * 20] * 2
        batch = signals([1.0, 0.0], long, [[-1.0 - max(gap, 0)] * 20] * 2)
        new = torch.full((2, 20), -1.0 + min(gap, 0))
        for agent in (gspo(length_normalize=False), rloo(kl=0, surrogate="seq_ppo")):
            loss, gradient, _, _ = run(agent, batch, new)
            assert loss.isfinite()
            assert gradient.isfinite().all()

    def test_a_nan_of_the_policy_reaches_the_loss(self) -> None:
        new = torch.tensor([[torch.nan, -1.0], [-1.0, -1.0]])
        loss, _, _, _ = run(grpo(), signals([1.0, 0.0], [[1, 1]] * 2), new)
        assert loss.isnan()  # the learner sees it and skips the step


class TestPrecision:
    def test_gspo_ratios_survive_half_precision_outputs(self) -> None:
        # 2^-7 is what separates bfloat16 numbers near -2: far more than GSPO's clip range.
        batch = signals([1.0, 0.0], [[1]] * 2, [[-2.0]] * 2)
        new = torch.full((2, 1), -2.0, dtype=torch.bfloat16)
        loss, gradient, metrics, _ = run(gspo(), batch, new)
        assert loss.dtype == torch.float32
        assert gradient.dtype == torch.bfloat16
        assert metrics["ratio"] == 1

    def test_advantages_are_float64(self) -> None:
        batch = signals([1.0, 0.0, 0.5], FULL)
        batch = replace(batch, rewards=batch.rewards.float())
        assert grpo().credit(batch).advantages.dtype == torch.float64


class TestMultiTurn:
    MASK: ClassVar = [[1, 0, 1, 0], [1, 1, 1, 1]]

    def test_the_reward_is_on_the_last_sampled_token(self) -> None:
        mask = torch.tensor(self.MASK).bool()
        expected = [[False, False, True, False], [False, False, False, True]]
        assert last_token(mask).tolist() == expected

    def test_returns_pass_over_observations(self) -> None:
        returns = ReturnToGo()(signals([1.0, 2.0], self.MASK))
        assert returns.tolist() == [[1, 0, 1, 0], [2, 2, 2, 2]]
        discounted = ReturnToGo(gamma=0.5)(signals([1.0, 2.0], self.MASK))
        assert discounted[0].tolist() == [0.5, 0, 1, 0]


def test_a_group_without_variance_is_dropped_and_one_with_is_kept() -> None:
    def group(*rewards: float) -> Group:
        return Group("task", tuple(rollout([5], [1], r) for r in rewards))

    same, different = group(1.0, 1.0), group(1.0, 0.0)
    unscored = group(1.0, float("nan"))
    assert DropZeroVariance()([same, different, unscored]) == (different,)
