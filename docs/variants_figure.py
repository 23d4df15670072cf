"""Draws docs/variants.svg: how much gradient each trust region leaves to a token, by its ratio.

    python docs/variants_figure.py

The curves are computed by the trust regions of the package themselves, through autograd.
"""

import math
from pathlib import Path

import torch

from grpo_gym.objectives.divergences import DivergenceMask
from grpo_gym.objectives.stages import Terms, TrustRegion
from grpo_gym.objectives.trust_regions import (
    Clip,
    GeometricClip,
    SequenceKernel,
    SoftGate,
    Unbounded,
    WeightCap,
)

REGIONS: dict[str, tuple[str, TrustRegion]] = {
    "REINFORCE: none": ("#999999", Unbounded()),
    "DAPO: clip 0.2, 0.28": ("#1f77b4", Clip(0.2, 0.28)),
    "dual clip, c = 2": ("#17becf", Clip(0.2, 0.2, dual=2.0)),
    "GMPO: clip e^-0.4, e^0.4": ("#9467bd", GeometricClip()),
    "SAPO: soft gate": ("#2ca02c", SoftGate()),
    "CISPO: weight, cap 1.6": ("#ff7f0e", WeightCap(1.6)),
    "VESPO: kernel of a sequence": ("#d62728", SequenceKernel()),
    "DPPO: binary TV 0.15, at probability 0.2": ("#8c564b", DivergenceMask()),
}
BEHAVIOUR = 0.2
RATIOS = [0.01 + 2.49 * i / 249 for i in range(250)]

WIDTH, HEIGHT, LEFT, TOP, GAP = 400.0, 300.0, 52.0, 36.0, 60.0
LARGEST = 2.5


def gradient_weight(region: TrustRegion, ratio: float, advantage: float) -> float:
    """-dL/dlog pi / A of a rollout of one token; on policy it is 1."""
    old = torch.tensor([[math.log(BEHAVIOUR)]], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    terms = Terms(
        mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.full_like(old, advantage),
        logprobs=new,
        old=old,
    )
    loss = region(terms, new - old, torch.ones_like(old)).loss.sum()
    (gradient,) = torch.autograd.grad(loss, new)
    return float(-gradient) / advantage


def curve(region: TrustRegion, advantage: float) -> list[tuple[float, float]]:
    """(ratio, weight) along the axis."""
    return [(ratio, gradient_weight(region, ratio, advantage)) for ratio in RATIOS]


def _point(panel: int, ratio: float, weight: float) -> str:
    x = LEFT + panel * (WIDTH + GAP) + ratio / LARGEST * WIDTH
    y = TOP + HEIGHT - weight / LARGEST * HEIGHT
    return f"{x:.1f},{y:.1f}"


def _panel(panel: int, advantage: float, title: str) -> list[str]:
    left = LEFT + panel * (WIDTH + GAP)
    bottom = TOP + HEIGHT
    parts = [
        f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{left + WIDTH / 2}" y="{TOP - 12}" text-anchor="middle">{title}</text>',
        f'<text x="{left + WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">ratio</text>',
    ]
    for tick in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        x, y = _point(panel, tick, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 16:.1f}" text-anchor="middle">{tick:g}</text>')
        y = _point(panel, 0, tick).split(",")[1]
        parts.append(
            f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for colour, region in REGIONS.values():
        points = " ".join(_point(panel, r, min(w, LARGEST)) for r, w in curve(region, advantage))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
    return parts


def svg() -> str:
    """The figure."""
    parts = _panel(0, 1.0, "advantage above 0") + _panel(1, -1.0, "advantage below 0")
    for index, (name, (colour, _)) in enumerate(REGIONS.items()):
        x = LEFT + index % 2 * (WIDTH + GAP)
        y = TOP + HEIGHT + 62 + index // 2 * 20
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{x + 26}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{x + 34}" y="{y + 4}">{name}</text>')
    width, height = LEFT + 2 * WIDTH + GAP + 20, TOP + HEIGHT + 150
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            'font-family="sans-serif" font-size="13" fill="#222">',
            f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    Path(__file__).with_name("variants.svg").write_text(svg(), encoding="utf-8")
