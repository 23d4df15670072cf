"""Plug-ins: modules that entry points name. One that is broken is left out with a warning."""

import importlib
import importlib.util
import sys
import warnings
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType


@cache
def plugins(group: str, builtin: str) -> tuple[ModuleType, ...]:
    """The modules of an entry-point group; the built-in one also from a bare checkout."""
    _find_checkout(builtin)
    modules = []
    points = {point.value: point.name for point in entry_points(group=group)}
    for value, name in ({builtin: "builtin"} | points).items():
        try:
            modules.append(importlib.import_module(value))
        except Exception as error:  # one broken plug-in must not take the others with it
            if (
                value == builtin
                and isinstance(error, ModuleNotFoundError)
                and error.name == builtin
            ):
                continue
            warnings.warn(
                f"plug-in {name!r} of {group} is left out: importing {value} failed with "
                f"{type(error).__name__}: {error}",
                stacklevel=3,
            )
    return tuple(modules)


def _find_checkout(package: str) -> None:
    """Make a package importable that lies beside this one in a checkout that is not installed."""
    if importlib.util.find_spec(package) is None:
        root = Path(__file__).parents[1]
        folders = (root / "envs", root / "agents")
        sys.path.extend(str(folder) for folder in folders if (folder / package).is_dir())
