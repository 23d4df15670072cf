"""Building the Gymnasium environment that a conversation is about."""

from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from grpo_gym.errors import UsageError

_PACKAGES = {"MiniGrid": "minigrid", "BabyAI": "minigrid"}


def resolve(env_id: str) -> str:
    """The id with the newest version, where it has none, after importing what registers it.

    Raises:
        UsageError: There is no such environment, or its package is not installed.
    """
    if not isinstance(env_id, str):
        raise UsageError(f"env_id is the id of an environment, not {env_id!r}")
    module, _, name = env_id.rpartition(":")
    package = next((p for start, p in _PACKAGES.items() if name.startswith(start)), module)
    try:
        if package:
            import_module(package)
    except ImportError as error:
        extra = "" if package == module else ": pip install 'grpo-gym[games]'"
        raise UsageError(f"{env_id} needs the {package} package{extra} ({error})") from error
    try:
        namespace, bare, version = parse_env_id(name)
    except gymnasium.error.Error as error:
        raise UsageError(f"no environment {env_id!r}: {error}") from error
    if version is None:
        version = find_highest_version(namespace, bare)
    resolved = get_env_id(namespace, bare, version)
    if resolved not in gymnasium.registry:
        raise UsageError(f"Gymnasium has no environment {env_id!r}{_instead(resolved)}")
    return resolved


def _instead(env_id: str) -> str:
    """What Gymnasium says of an id that it does not have: the version that there is, a similar name."""
    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        return f": {' '.join(str(error).split())}"
    return ""


def build(env_id: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """A registered environment without its registered time limit.

    Raises:
        UsageError: It cannot be made with these options.
    """
    try:
        made: gymnasium.Env[Any, Any] = gymnasium.make(
            env_id, max_episode_steps=-1, disable_env_checker=True, **options
        )
    except Exception as error:  # somebody's constructor may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{env_id} cannot be made: {reason}") from error
    return made
