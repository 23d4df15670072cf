"""Names of made-up people and things."""

import numpy as np

_FIRST = """
Ada Amir Bela Bruno Carla Chen Dana Diego Elif Emil Farah Felix Greta Hugo Ines Ivan Jonas Kaya
Lena Luca Maya Milan Nadia Noor Omar Petra Quinn Rosa Samir Tara Uma Viktor Wanda Yusuf Zoe
"""
_LAST = """
Adler Banks Costa Dahl Ekman Fuchs Garcia Holm Ibsen Jansen Klein Lopez Moreau Novak Okafor Perez
Rossi Sato Tanaka Urban Vogel Weber Yilmaz Zhang
"""
_ADJECTIVES = """
Amber Ancient Bright Broken Calm Crimson Distant Early Frozen Gentle Golden Hidden Hollow Iron
Little Lost Quiet Rapid Silent Silver Summer Velvet Wild Winter
"""
_NOUNS = """
Anchor Bridge Canyon Compass Falcon Forest Garden Harbor Island Lantern Meadow Mirror Mountain
Orchard River Shadow Signal Spring Station Stone Thread Tower Voyage Window
"""


def people(rng: np.random.Generator, count: int) -> list[str]:
    """Different names such as "Ada Holm", 840 at most."""
    return pairs(rng, count, _FIRST.split(), _LAST.split())


def titles(rng: np.random.Generator, count: int) -> list[str]:
    """Different names such as "Silent Harbor", 576 at most."""
    return pairs(rng, count, _ADJECTIVES.split(), _NOUNS.split())


def pairs(
    rng: np.random.Generator, count: int, first: list[str], second: list[str], joint: str = " "
) -> list[str]:
    """Different pairs of a first and a second word, in random order."""
    picks = rng.permutation(len(first) * len(second))[:count]
    return [first[i // len(second)] + joint + second[i % len(second)] for i in map(int, picks)]
