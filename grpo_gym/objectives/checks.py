"""What an agent refuses: stages in the wrong place, and signals that are missing."""

from grpo_gym.errors import UsageError
from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.objectives.stages import (
    Advantage,
    Aggregation,
    Correction,
    Penalty,
    Ratio,
    Selection,
    Shaping,
    Stage,
    TrustRegion,
)

SINGLE: dict[str, type[Stage]] = {
    "advantage": Advantage,
    "ratio": Ratio,
    "trust_region": TrustRegion,
    "aggregation": Aggregation,
}
"""Fields of an agent that hold one stage."""

SEVERAL: dict[str, type[Stage]] = {
    "corrections": Correction,
    "penalties": Penalty,
    "shaping": Shaping,
    "selection": Selection,
}
"""Fields of an agent that hold a tuple of stages."""

SIGNALS = {
    "old": "old",
    "reference": "reference",
    "behaviour": "behaviour",
    "old_entropy": "entropy",
    "critic": "values",
    "top_logprobs": "behaviour_top_ids",
    "turns": "turn_rewards",
}
"""Field of `Needs` -> field of `Signals` that answers it."""


def check_stages(agent: object) -> None:
    """Refuse a stage in the wrong field, and a stage where a tuple of them is wanted.

    Raises:
        UsageError: There is one.
    """
    for name, kind in {**SINGLE, **SEVERAL}.items():
        value = getattr(agent, name)
        if name in SEVERAL and not isinstance(value, tuple):
            raise UsageError(f"Agent.{name} is a tuple, got {value!r}; write ({value!r},)")
        for stage in value if name in SEVERAL else (value,):
            if not isinstance(stage, kind):
                raise UsageError(f"Agent.{name} takes a {kind.__name__} stage, got {stage!r}")


def require(needs: Needs, signals: Signals, max_nan_fraction: float) -> None:
    """Refuse signals that lack what is needed.

    Raises:
        UsageError: A signal was not given, or too many behaviour log-probs are unknown.
    """
    for need, signal in SIGNALS.items():
        if getattr(needs, need) and getattr(signals, signal) is None:
            raise UsageError(
                f"this agent needs Signals.{signal}, which was not given; see Agent.needs"
            )
    if needs.behaviour and signals.behaviour is not None:
        unknown = (signals.behaviour.isnan() & signals.mask).sum()
        missing = unknown / signals.mask.sum().clamp(min=1)
        if missing > max_nan_fraction:
            raise UsageError(
                f"the engine reported no log-prob for {missing:.1%} of the tokens, but this agent "
                f"needs them (max_nan_fraction={max_nan_fraction}); use an engine that reports "
                "them, or an agent without corrections"
            )
