"""The stages by themselves: turns, several rewards, shaping, selection, penalties that adapt."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_agents import grpo
from grpo_gym.errors import UsageError
from grpo_gym.objectives.advantages import GroupCentred
from grpo_gym.objectives.corrections import MIS, TIS, TopEntropy
from grpo_gym.objectives.multi_reward import NormaliseThenSum, SumThenNormalise
from grpo_gym.objectives.penalties import KL_ESTIMATORS, AdaptiveEntropy, kl_penalty
from grpo_gym.objectives.ratios import token_log_ratio
from grpo_gym.objectives.selection import DropDuplicates
from grpo_gym.objectives.shaping import SoftOverlong
from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.objectives.stages import Terms
from grpo_gym.objectives.token_advantages import GAE, TurnLeaveOneOut, Whitened
from grpo_gym.types import Batch, Completion, Group, Rollout, Turn
from tests.agent_batches import make


def rollout(turns: list[tuple[list[int], float]], gap: int = 1, **more: Any) -> Rollout:
    """A rollout of turns (token ids, reward), with `gap` observation tokens between them."""
    ids: list[int] = []
    mask: list[bool] = []
    for index, (tokens, _) in enumerate(turns):
        between = [9] * gap if index else []
        ids += between + tokens
        mask += [False] * len(between) + [True] * len(tokens)
    sampled = np.array(mask)
    given = {
        "turns": tuple(
            Turn(Completion(np.array(t), np.full(len(t), -1.0), "stop"), "", (), reward)
            for t, reward in turns
        ),
        "reward": sum(reward for _, reward in turns),
    }
    return Rollout(
        task_id="task",
        prompt_ids=np.array([1]),
        token_ids=np.array(ids),
        mask=sampled,
        logprobs=np.where(sampled, -1.0, 0.0),
        versions=np.where(sampled, 0, -1),
        **(given | more),  # type: ignore[arg-type]
    )


def signals(*rollouts: Rollout) -> Signals:
    return Signals.from_batch(Batch((Group("task", rollouts),)))


class TestSignalsFromABatch:
    def test_turns_are_found_even_without_a_gap(self) -> None:
        two = [([5, 6], 0.25), ([7], 1.0)]
        batch = signals(rollout(two), rollout(two, gap=0), rollout([([5], 0.5)]))
        assert batch.turn is not None
        assert batch.turn.tolist() == [[0, 0, -1, 1], [0, 0, 1, -1], [0, -1, -1, -1]]
        assert batch.turn_rewards is not None
        assert batch.turn_rewards.tolist() == [[0.25, 1.0], [0.25, 1.0], [0.5, 0.0]]

    def test_what_shaping_added_belongs_to_the_last_turn(self) -> None:
        shaped = replace(rollout([([5, 6], 0.25), ([7], 1.0)]), reward=0.75)
        batch = signals(shaped)
        assert batch.turn_rewards is not None
        assert batch.turn_rewards.tolist() == [[0.25, 0.5]]

    def test_components_are_by_name_and_nan_where_they_are_absent(self) -> None:
        batch = signals(
            rollout([([5], 1.0)], reward_components={"format": 0.5, "correct": 1.0}),
            rollout([([5], 1.0)], reward_components={"correct": 0.0}),
        )
        assert batch.component_names == ("correct", "format")
        assert batch.components is not None
        assert batch.components[0].tolist() == [1.0, 0.5]
        assert batch.components[1, 0] == 0
        assert batch.components[1, 1].isnan()

    def test_top_tokens_travel_where_every_rollout_has_them(self) -> None:
        tops = {"top_ids": np.array([[3, 4]]), "top_logprobs": np.array([[-0.5, -1.0]])}
        with_tops, without = rollout([([5], 1.0)], **tops), rollout([([5], 1.0)])
        both = signals(with_tops, with_tops)
        assert both.behaviour_top_ids is not None
        assert both.behaviour_top_ids.shape == (2, 1, 2)
        assert signals(with_tops, without).behaviour_top_ids is None

    def test_rows_takes_rows_of_everything(self) -> None:
        batch = make([[0.0, 1.0], [1.0, 0.5]], 3, 0).signals
        part = batch.rows([3, 0])
        assert part.rewards.tolist() == [0.5, 0.0]
        assert part.component_names == batch.component_names
        assert part.reference is not None
        assert part.reference.shape == (2, 3)
        assert part.to("cpu").group.tolist() == [1, 0]


class TestTurnAdvantages:
    """A policy that stops or goes on: the expected gradient can be written down."""

    P_STOP = 0.3  # at each of at most three turns
    PER_TURN = (0.2, 0.7, 0.4)  # reward of playing turn u at all
    FINAL = 1.0  # reward of stopping

    def plays(self) -> list[tuple[float, list[int], list[float]]]:
        """(probability, actions, reward of each turn) of each possible rollout; 1 stops."""
        p, found = self.P_STOP, []
        for length in range(1, 4):
            for last in (1, 0) if length == 3 else (1,):
                actions = [0] * (length - 1) + [last]
                chance = math.prod(p if a else 1 - p for a in actions)
                rewards = [r + self.FINAL * a for r, a in zip(self.PER_TURN, actions, strict=False)]
                found.append((chance, actions, rewards))
        return found

    def signals(self, group: tuple[Any, ...]) -> Signals:
        width = 3
        mask = torch.zeros(len(group), width, dtype=torch.bool)
        rewards = torch.zeros(len(group), width, dtype=torch.float64)
        for row, (_, actions, of_turns) in enumerate(group):
            mask[row, : len(actions)] = True
            rewards[row, : len(actions)] = torch.tensor(of_turns, dtype=torch.float64)
        turn = torch.arange(width).expand(mask.shape).where(mask, -1)
        return Signals(
            mask=mask,
            group=torch.zeros(len(group), dtype=torch.int64),
            rewards=rewards.sum(1),
            truncated=torch.zeros(len(group), dtype=torch.bool),
            turn=turn,
            turn_rewards=rewards,
        )

    def expected_gradient(self, credit: Any, size: int = 2) -> float:
        """d/dlogit of the objective, as the estimator has it, averaged over every group."""
        total = 0.0
        for group in itertools.product(self.plays(), repeat=size):
            chance = math.prod(play[0] for play in group)
            advantages = credit(self.signals(group))
            for row, (_, actions, _) in enumerate(group):
                for turn, action in enumerate(actions):
                    slope = action - self.P_STOP  # of log p(action) in the logit of stopping
                    total += chance * float(advantages[row, turn]) * slope / size
        return total

    def true_gradient(self) -> float:
        """d/dlogit of the expected return, by the score function without a baseline."""
        return sum(
            chance * sum(rewards) * sum(a - self.P_STOP for a in actions)
            for chance, actions, rewards in self.plays()
        )

    def test_the_gradient_is_unbiased_though_the_policy_ends_the_episode(self) -> None:
        for size in (2, 3):
            found = self.expected_gradient(TurnLeaveOneOut(), size)
            assert found == pytest.approx(self.true_gradient(), abs=1e-12)

    def test_a_baseline_over_those_that_reached_the_turn_is_biased(self) -> None:
        def biased(batch: Signals) -> Tensor:
            assert batch.turn_rewards is not None
            reached = batch.mask.double()
            mean = (batch.turn_rewards * reached).sum(0) / reached.sum(0).clamp(min=1)
            own = (batch.turn_rewards - mean) * reached
            return own.flip(1).cumsum(1).flip(1)

        assert abs(self.expected_gradient(biased) - self.true_gradient()) > 0.01

    def test_one_turn_is_leave_one_out(self) -> None:
        batch = signals(rollout([([5], 1.0)]), rollout([([6], 0.0)]), rollout([([7], 0.5)]))
        advantages = TurnLeaveOneOut()(batch)
        centred = GroupCentred()(batch)
        torch.testing.assert_close(advantages[:, 0], centred * 3 / 2)

    def test_rewards_of_earlier_turns_do_not_count(self) -> None:
        first = rollout([([5, 6], 1.0), ([7], 0.25)])
        batch = signals(first, rollout([([5], 0.0), ([7], 0.0)]))
        advantages = TurnLeaveOneOut(gamma=0.5)(batch)
        assert advantages[0].tolist() == [1.125, 1.125, 1.125, 0.25]

    def test_it_says_what_is_missing(self) -> None:
        agent = replace(grpo(), advantage=TurnLeaveOneOut())
        assert agent.needs == Needs(turns=True)
        with pytest.raises(UsageError, match=r"needs Signals\.turn"):
            agent.credit(replace(signals(rollout([([5], 1.0)])), turn_rewards=None))


class TestSeveralRewards:
    BATCH = make([[0.0, 1.0, 0.5], [1.0, 0.5, 0.0]], 2, 0).signals

    def test_an_unknown_component_is_named(self) -> None:
        for advantage in (NormaliseThenSum((("speed", 1.0),)), SumThenNormalise((("speed", 1.0),))):
            with pytest.raises(UsageError, match=r"no reward component 'speed'.*'first'"):
                advantage(self.BATCH)

    def test_weights_may_be_a_mapping_and_compare_by_value(self) -> None:
        weights: Any = {"second": 0.5, "first": 1}
        same = NormaliseThenSum((("first", 1.0), ("second", 0.5)))
        assert NormaliseThenSum(weights) == same
        assert hash(NormaliseThenSum(weights)) == hash(same)

    def test_an_environment_without_components_has_one(self) -> None:
        bare = replace(self.BATCH, components=None, component_names=())
        plain = SumThenNormalise((), GroupCentred())(bare)
        torch.testing.assert_close(plain, GroupCentred()(bare))
        assert NormaliseThenSum()(bare).isfinite().all()


class TestShapingAndSelection:
    def test_long_rollouts_lose_reward_and_others_do_not(self) -> None:
        group = Group("task", tuple(rollout([([5] * n, 1.0)]) for n in (6, 8, 10, 12)))
        shaped = SoftOverlong(max_tokens=10, buffer=4, factor=0.5)(group)
        assert shaped.rewards.tolist() == [1.0, 0.75, 0.5, 0.5]
        assert [r.turns for r in shaped.rollouts] == [r.turns for r in group.rollouts]

    def test_observations_are_not_the_models_length(self) -> None:
        group = Group("task", (rollout([([5] * 3, 0.0), ([5] * 3, 1.0)], gap=50),))
        assert SoftOverlong(10, 4)(group).rewards.tolist() == [1.0]

    def test_an_unscored_rollout_stays_unscored(self) -> None:
        group = Group("task", (rollout([([5] * 10, 1.0)], reward=math.nan),))
        assert np.isnan(SoftOverlong(10, 4)(group).rewards).all()

    def test_duplicates_keep_their_first(self) -> None:
        first, other, again = (rollout([(t, r)]) for t, r in (([5], 1.0), ([6], 0.0), ([5], 1.0)))
        (kept,) = DropDuplicates()([Group("task", (first, other, again))])
        assert kept.rollouts == (first, other)

    def test_a_duplicate_without_a_reward_does_not_stand_for_one_with(self) -> None:
        unscored, scored = rollout([([5], 1.0)], reward=math.nan), rollout([([5], 1.0)])
        (kept,) = DropDuplicates()([Group("task", (unscored, scored))])
        assert kept.rollouts == (unscored, scored)

    def test_an_agent_applies_them_in_order(self) -> None:
        group = Group("task", (rollout([([5] * 10, 1.0)]), rollout([([5], 1.0)])))
        agent = replace(
            grpo(),
            shaping=(SoftOverlong(10, 4), SoftOverlong(10, 4)),
            selection=(DropDuplicates(),),
        )
        (shaped,) = agent.shape([group])
        assert shaped.rewards.tolist() == [-1.0, 1.0]
        assert len(agent.select([shaped])) == 1


class TestAdaptiveEntropy:
    def test_the_coefficient_follows_the_entropy(self) -> None:
        penalty = AdaptiveEntropy(coefficient=0.01, target=0.5, step=0.005, highest=0.015)
        agent = replace(grpo(), penalties=(penalty,))
        assert agent.needs.entropy
        low = agent.adapt({"entropy": 0.4})
        assert low.state == ((0.015, 0.4),)
        assert low.adapt({"entropy": 0.3}).state == ((0.015, 0.3),)
        high = agent.adapt({"entropy": 0.9})
        assert high.state == ((0.005, 0.9),)
        assert high.adapt({"entropy": 0.9}).adapt({"entropy": 0.9}).state == ((0.0, 0.9),)
        assert agent.adapt({"entropy": math.nan}) == agent

    def test_a_checkpoint_brings_it_back(self) -> None:
        agent = replace(grpo(kl=0.1), penalties=(AdaptiveEntropy(), *kl_penalty(0.1)))
        adapted = agent.adapt({"entropy": 0.1})
        assert agent.restore(adapted.state) == adapted
        assert adapted != agent

    def test_the_bonus_is_on_only_while_the_entropy_is_low(self) -> None:
        batch = make([[0.0, 1.0]], 3, 1)
        for entropy, on in ((0.1, True), (2.0, False)):
            penalty = AdaptiveEntropy(coefficient=0.1, target=0.5, last_entropy=entropy)
            agent = replace(grpo(), penalties=(penalty,))
            assert (batch.loss(agent) != batch.loss(grpo())).item() is on

    def test_an_agent_without_one_stays_as_it_is(self) -> None:
        assert grpo().adapt({"entropy": 0.1}) == grpo()
        assert grpo().state == ()


class TestKL:
    def test_the_importance_weighted_k3_has_the_gradient_of_the_reverse_kl(self) -> None:
        new = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
        old, reference = new.detach() + 0.3, new.detach() - 0.7
        value = KL_ESTIMATORS["k3_is"](reference - new, new - old).sum()
        (gradient,) = torch.autograd.grad(value, new)
        ratio = (new - old).exp()
        torch.testing.assert_close(gradient, (ratio * (new - reference)).detach())

    def test_a_far_reference_does_not_overflow(self) -> None:
        x = torch.tensor([500.0, -500.0], requires_grad=True)
        for kind in ("k3", "k3_is", "k3_plus"):
            value = KL_ESTIMATORS[kind](x, torch.zeros_like(x)).sum()
            assert value.isfinite()
            assert torch.autograd.grad(value, x)[0].isfinite().all()

    def test_none_is_none(self) -> None:
        assert kl_penalty(0.0) == ()
        assert not grpo().needs.reference
        assert grpo(kl=0.1).needs.reference


class TestCorrections:
    def test_masked_tokens_can_leave_the_denominator(self) -> None:
        batch = make([[0.0, 1.0, 0.5]], 4, 2).signals
        inside = replace(grpo(), corrections=(MIS(1.1, 0.9, "token"),)).credit(batch)
        outside = replace(
            grpo(), corrections=(MIS(1.1, 0.9, "token", masked_in_denominator=False),)
        )
        credit = outside.credit(batch)
        assert outside.needs.old
        assert inside.mask.sum() > credit.mask.sum()
        assert batch.old is not None
        assert batch.behaviour is not None
        ratio = (batch.old - batch.behaviour).exp()
        assert credit.mask.equal(batch.mask & (ratio >= 0.9) & (ratio <= 1.1))

    def test_a_ratio_that_is_anchored_at_the_behaviour_policy_is_not_corrected_twice(self) -> None:
        from grpo_agents import dppo

        batch = make([[0.0, 1.0, 0.5]], 4, 2)
        corrected = replace(dppo(), corrections=(TIS(),))
        torch.testing.assert_close(batch.loss(corrected), batch.loss(dppo()))

    def test_the_share_of_top_entropy_tokens(self) -> None:
        batch = make([[0.0, 1.0, 0.5, 0.2]], 5, 3).signals
        for share in (0.2, 0.5, 1.0):
            keep = TopEntropy(share).keep(batch, batch.mask)
            assert keep.sum() == pytest.approx(share * batch.mask.sum(), abs=1)
        with pytest.raises(UsageError, match="out of range"):
            TopEntropy(1.5)


def test_whitened_advantages_have_mean_zero_and_variance_one() -> None:
    batch = make([[0.0, 1.0, 0.5], [1.0, 0.2]], 5, 4).signals
    advantages = Whitened(GAE())(batch)[batch.mask]
    assert advantages.mean() == pytest.approx(0, abs=1e-12)
    assert advantages.var() == pytest.approx(1, abs=1e-6)


def test_the_token_ratio_is_clamped_at_twenty() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    new, old = torch.tensor([[-1.0, -90.0]]), torch.tensor([[-90.0, -1.0]])
    terms = Terms(mask=mask, advantages=new, logprobs=new, old=old)
    assert token_log_ratio(terms).tolist() == [[20.0, -20.0]]
