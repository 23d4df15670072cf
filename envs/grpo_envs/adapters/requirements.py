"""Other people's packages: imported when they are needed, with a word on what to install."""

import importlib.util
from importlib import import_module, metadata
from types import ModuleType

from grpo_gym.errors import UsageError


def require(module: str, distribution: str, extra: str = "", version: str = "") -> None:
    """Make sure that a package is there, without importing it.

    Args:
        module: what is imported.
        distribution: what is installed.
        extra: the extra of this project that brings it; "" for none.
        version: the only version that will do; "" for any.

    Raises:
        UsageError: It is not installed, or has another version.
    """
    wanted = f"{distribution}=={version}" if version else distribution
    install = f"pip install '{f'grpo-gym[{extra}]' if extra else wanted}'"
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{distribution} is not installed: {install}")
    if version:
        try:
            found = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found = "unknown"
        if found != version:
            raise UsageError(f"{distribution} {version} is needed, not {found}: {install}")


def load(module: str, distribution: str, extra: str = "") -> ModuleType:
    """Import a module of another package.

    Raises:
        UsageError: It is not installed, or cannot be imported here.
    """
    require(module.partition(".")[0], distribution, extra)
    try:
        return import_module(module)
    except Exception as error:  # whatever goes wrong while somebody's module is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{distribution} cannot be imported: {reason}") from error
