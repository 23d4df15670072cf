"""Every option of a run: types, ranges, and the two ways to say them, TOML and flags."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym import UsageError
from grpo_gym.cli.options import parse_config
from grpo_gym.config import (
    EvalConfig,
    RolloutConfig,
    TrainConfig,
    format_arguments,
    from_values,
    load_toml,
    merge_arguments,
    parse_arguments,
    to_toml,
)

KINDS = (TrainConfig, EvalConfig, RolloutConfig)

# Text without lone surrogates, which neither TOML nor a command line can hold.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
shares = st.floats(0.01, 1.0)
sizes = st.integers(1, 10**6)

# What each option may be, where its type alone does not say.
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0.01, 100),
    "top_p": shares,
    "min_p": shares,
    "max_error_share": shares,
    "stop": st.lists(texts, max_size=3).map(tuple),
    "eval_k": st.just((1, 2, 8)),
    "k": st.just((1, 2, 8)),
    "n": st.integers(8, 100),
    "eval_n": st.integers(8, 100),
    "env_arg": st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), texts, max_size=3).map(
        lambda pairs: tuple(f"{name}={value}" for name, value in pairs.items())
    ),
    "patience_s": st.floats(0, allow_infinity=True, allow_nan=False),
    "resume": st.just(False),
    "lora_targets": st.sampled_from((("all-linear",), ("q_proj", "v_proj"))),
    "lora_rank": st.integers(1, 64),
    "lora_adapter": st.none(),  # it brings its own rank
}
ENGINES = ("hf", "vllm", "http://127.0.0.1:8000")
SPECIAL["agent_arg"] = SPECIAL["engine_arg"] = SPECIAL["env_arg"]


def options(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Configs with every field drawn at random."""
    hints = get_type_hints(kind)
    engines = ENGINES if kind is TrainConfig else (*ENGINES, "https://host/v1")
    drawn = {f.name: SPECIAL.get(f.name, _any(hints[f.name])) for f in fields(kind)}
    return st.builds(kind, **drawn | {"engine": st.sampled_from(engines)})


def _any(hint: Any) -> st.SearchStrategy[Any]:
    plain = {str: texts, int: sizes, float: st.floats(0.01, 1e6), bool: st.booleans()}
    if hint in plain:
        return plain[hint]
    choices = get_args(hint)
    if get_origin(hint) is tuple:
        return st.nothing()  # stands in SPECIAL
    if type(None) in choices:
        return st.none() | _any(choices[0])
    return st.sampled_from(choices)  # a Literal


def flags(config: Any) -> list[str]:
    """A config as words of the command line."""
    words = []
    for f in fields(config):
        value, option = getattr(config, f.name), f"--{f.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif f.name in ("stop", "env_arg", "agent_arg", "engine_arg"):
            words += [f"{option}={text}" for text in value]
        elif isinstance(value, tuple):
            words.append(f"{option}={','.join(map(str, value))}")
        else:
            words.append(f"{option}={value}")
    return words


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_toml_holds_every_field(kind: Any, data: st.DataObject) -> None:
    config = data.draw(options(kind))
    assert from_values(kind, tomllib.loads(to_toml(config)), "test") == config


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_flags_say_every_field(kind: Any, data: st.DataObject) -> None:
    # "None" is how the command line says that there is none, so no text can be that.
    config = data.draw(options(kind).filter(lambda c: "None" not in vars(c).values()))
    assert parse_config(kind, flags(config), "test") == config


@pytest.mark.parametrize("kind", KINDS)
def test_flags_go_over_the_file(kind: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'seed = 3\nmax_tokens = 5\nengine_arg = ["a=1", "b=2"]\n[env_arg]\nlevel = 1\nsplit = "train"\n'
    )
    words = ["--seed", "4", "--config", str(file), "--env-arg", "level=2", "--env-arg", "x=y"]
    config = parse_config(kind, [*words, "--engine-arg", "b=3"], "test")
    assert config.engine_arg == ("a=1", "b=3")
    assert (config.seed, config.max_tokens) == (4, 5)
    assert parse_arguments(config.env_arg, "x") == {"level": 2, "split": "train", "x": "y"}


def test_a_flag_can_switch_off_what_the_file_switched_on(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("gradient_checkpointing = true\n")
    words = ["--config", str(file)]
    assert parse_config(TrainConfig, words, "train").gradient_checkpointing
    off = [*words, "--no-gradient-checkpointing"]
    assert not parse_config(TrainConfig, off, "train").gradient_checkpointing
    on = [*words, "--gradient-checkpointing"]
    assert parse_config(TrainConfig, on, "train").gradient_checkpointing


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepz": 3}, "no option 'stepz'; nearest: steps"),
        ({"steps": "3"}, "steps is '3', but must be a valid integer"),
        ({"steps": 3.0}, "steps is 3.0, but must be a valid integer"),
        ({"steps": True}, "steps is True, but must be a valid integer"),
        ({"steps": None}, "steps is None, but must be a valid integer"),
        ({"learning_rate": "1e-6"}, "learning_rate is '1e-6', but must be a valid number"),
        ({"resume": 1}, "resume is 1, but must be a valid boolean"),
        ({"env": 3}, "env is 3, but must be a valid string"),
        ({"stop": "x"}, "stop is 'x', but must be a valid list"),
        ({"eval_k": ["1"]}, "eval_k is ('1',), but must be a valid integer"),
        ({"schedule": "step"}, "schedule is 'step', but must be 'constant', 'linear' or 'cosine'"),
        ({"agent_arg": {"f": object()}}, "a config cannot hold a object"),
        ({"resume": True}, "resume needs run_dir"),
    ],
)
def test_a_value_of_another_type_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=r"^here: ") as caught:
        from_values(TrainConfig, values, "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, 0, float("nan"), float("inf"))),
        *(("top_p", value) for value in (-1, 0, 1.1, float("nan"))),
        *(("env_timeout_s", value) for value in (-1, 0, float("nan"))),
        *(("engine_timeout_s", value) for value in (-1, 0, float("nan"))),
        *(("max_tokens", value) for value in (-1, 0)),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}, but must be"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0},
        {"group_size": 0},
        {"groups_per_step": 0},
        {"keep": 0},
        {"eval_n": 0},
        {"save_every": -1},
        {"kl": -0.1},
        {"kl": float("nan")},
        {"kl": float("inf")},
        {"seed": -1},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": -0.1},
        {"max_error_share": 1.5},
        {"patience_s": float("nan")},
        {"rollout_tokens": 0},
        {"stop": ("",)},
        {"eval_tasks": 1, "eval_n": 4, "eval_k": (8,)},
        {"eval_tasks": 1, "eval_k": ()},
        {"eval_tasks": 1, "eval_k": (0,)},
    ],
)
def test_training_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TrainConfig(**values)


def test_evaluation_may_be_greedy_and_training_may_not() -> None:
    assert EvalConfig(temperature=0).temperature == 0
    with pytest.raises(UsageError, match="above 0 to train"):
        TrainConfig(temperature=0)


def test_more_k_than_n_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pass@8 needs at least 8 rollouts .* but n is 4"):
        EvalConfig(n=4, k=(1, 8))


plain = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "level"]), plain))
def test_arguments_survive_as_text(arguments: dict[str, Any]) -> None:
    assert parse_arguments(format_arguments(arguments), "x") == arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 0.001),
        ("true", True),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("train.jsonl", "train.jsonl"),
        ("a = b", "a = b"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),  # a folder may be called that
        ("[2024-01-01]", "[2024-01-01]"),
        ("1\nsmuggled = 2", "1\nsmuggled = 2"),
        ("[" * 2000, "[" * 2000),
    ],
)
def test_an_argument_is_toml_if_it_can_be(text: str, value: Any) -> None:
    assert parse_arguments([f"x={text}"], "x") == {"x": value}


@pytest.mark.parametrize("pair", ["x", "=1", "a b=1", "1x=2"])
def test_an_argument_has_a_name(pair: str) -> None:
    with pytest.raises(UsageError, match="is not of the form name=value"):
        parse_arguments([pair], "--env-arg")


def test_an_argument_comes_once() -> None:
    with pytest.raises(UsageError, match="gives x twice"):
        parse_arguments(["x=1", "x=2"], "--env-arg")


def test_later_arguments_replace_earlier_ones() -> None:
    assert merge_arguments(["a=1", "b=2"], ["b=3"]) == ("a=1", "b=3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"steps = ", "not a TOML file"),
        (b"steps 3", "not a TOML file"),
        (b"\xff\xfe", "not a TOML file"),
        (b"x = " + b"[" * 100_000, "not a TOML file"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load_toml(file)
    assert str(file) in str(caught.value)


def test_a_mark_of_byte_order_before_the_file_is_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfsteps = 3\r\n")
    assert load_toml(tmp_path / "run.toml") == {"steps": 3}


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_toml(tmp_path / "run.toml")


def test_text_that_is_no_unicode_cannot_be_saved() -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        to_toml(TrainConfig(run_dir="\udcff"))


def test_a_secret_in_an_address_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="password") as refusal:
        EvalConfig(engine="https://me:hunter2@host/v1")
    assert "hunter2" not in str(refusal.value)
