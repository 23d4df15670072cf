"""Every option of a run; a TOML file and the command line say the same things."""

from grpo_gym.config.files import from_values, load_toml, nearest, to_toml
from grpo_gym.config.options import (
    EvalConfig,
    RolloutConfig,
    SamplingOptions,
    TaskOptions,
    Texts,
    TrainConfig,
    is_endpoint,
)
from grpo_gym.config.text import format_arguments, merge_arguments, parse_arguments

__all__ = [
    "EvalConfig",
    "RolloutConfig",
    "SamplingOptions",
    "TaskOptions",
    "Texts",
    "TrainConfig",
    "format_arguments",
    "from_values",
    "is_endpoint",
    "load_toml",
    "merge_arguments",
    "nearest",
    "parse_arguments",
    "to_toml",
]
