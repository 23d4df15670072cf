"""Recipes: the settings of each paper, as options of the trainer."""

from pathlib import Path

_PLACES = (Path(__file__).parent / "recipes", Path(__file__).parents[1] / "recipes")


def recipe_files() -> dict[str, Path]:
    """Name of an agent -> the TOML file with its paper's settings.

    The files lie inside the installed package, or beside it in a checkout.
    """
    folder = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
