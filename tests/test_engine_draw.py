"""A token is drawn from the distribution that its log-prob is of, and by its lane's numbers alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.engines import draw as drawing
from grpo_gym.engines.base import Sampling
from grpo_gym.engines.draw import Settings, distribution, draw, truncated

CPU = torch.device("cpu")
LOGITS = st.lists(
    st.lists(st.floats(-60, 60, width=32), min_size=6, max_size=6), min_size=1, max_size=3
)
SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)


def probabilities(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """The definition, token by token, in float64."""
    scaled = [x / sampling.temperature for x in np.float64(logits)]
    weight = {i: math.exp(x - max(scaled)) for i, x in enumerate(scaled)}
    order = sorted(weight, key=lambda i: (-np.float32(logits[i]), i))
    order = order[: sampling.top_k or None]
    total = sum(weight[i] for i in order)
    kept, reached = [], 0.0
    for i in order:
        if kept and reached >= sampling.top_p:
            break
        kept.append(i)
        reached += weight[i] / total
    kept = [i for i in kept if weight[i] >= sampling.min_p * weight[order[0]]]
    total = sum(weight[i] for i in kept)
    return {i: weight[i] / total for i in kept}


def one(logits: list[float], sampling: Sampling, uniform: float) -> tuple[int, float]:
    drawn = draw(torch.tensor([logits]), Settings.of([sampling], CPU), [uniform])
    return drawn.ids[0], drawn.logprobs[0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=3),
        Sampling(top_p=0.8),
        Sampling(min_p=0.3),
        Sampling(temperature=0.7, top_k=4, top_p=0.9, min_p=0.05),
    ],
)
def test_frequencies_are_the_probabilities_and_logprobs_their_logarithms(sampling):
    logits = [0.3, -1.0, 2.0, 1.9, -4.0, 0.0]
    expected = probabilities(logits, sampling)
    grid = [(i + 0.5) / 2000 for i in range(2000)]
    settings_ = Settings.of([sampling] * len(grid), CPU)
    drawn = draw(torch.tensor([logits] * len(grid)), settings_, grid)
    for token in range(len(logits)):
        share = drawn.ids.count(token) / len(grid)
        assert share == pytest.approx(expected.get(token, 0), abs=1.1 / len(grid))
    for token, logprob in zip(drawn.ids, drawn.logprobs, strict=True):
        assert logprob == pytest.approx(math.log(expected[token]), abs=1e-5)


@settings(max_examples=80, deadline=None)
@given(LOGITS, SAMPLING, st.sampled_from([0.0, 0.5, 1 - 2**-24]))
def test_only_tokens_of_the_support_are_drawn(rows, sampling, uniform):
    settings_ = Settings.of([sampling] * len(rows), CPU)
    support = distribution(torch.tensor(rows), settings_)
    drawn = draw(torch.tensor(rows), settings_, [uniform] * len(rows))
    for row, token, logprob in zip(support, drawn.ids, drawn.logprobs, strict=True):
        assert logprob == row[token] > -math.inf
        assert float(row.exp().sum()) == pytest.approx(1, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(LOGITS, st.lists(SAMPLING, min_size=3, max_size=3))
def test_lanes_do_not_touch_each_other(rows, samplings):
    samplings, uniforms = samplings[: len(rows)], [0.2, 0.5, 0.8][: len(rows)]
    together = draw(torch.tensor(rows), Settings.of(samplings, CPU), uniforms)
    alone = [one(*lane) for lane in zip(rows, samplings, uniforms, strict=True)]
    assert list(zip(together.ids, together.logprobs, strict=True)) == alone


def test_greedy_takes_the_first_of_the_best_and_ignores_cuts():
    logits = [1.0, 3.0, 3.0, 0.0]
    token, logprob = one(logits, Sampling(temperature=0, top_k=1), 0.99)
    assert token == 1
    assert logprob == pytest.approx(3 - math.log(sum(map(math.exp, logits))))


def test_the_lowest_temperature_is_finite():
    assert one([1.0, 2.0, -300.0], Sampling(temperature=1e-4), 0.99) == (1, 0.0)


def test_half_precision_is_normalised_in_single():
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    settings_ = Settings.of([Sampling()], CPU)
    assert float(distribution(logits, settings_).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_top_logprobs_are_the_most_probable_of_the_distribution():
    rows = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 1.0]])
    samplings = [Sampling(top_logprobs=2), Sampling(top_logprobs=1, temperature=2.0)]
    drawn = draw(rows, Settings.of(samplings, CPU), [0.1, 0.1])
    assert drawn.top_ids == [[1, 2], [0, 2]]
    expected = torch.stack([rows[0].log_softmax(0), (rows[1] / 2).log_softmax(0)])
    values = torch.tensor(drawn.top_logprobs)
    assert torch.allclose(values, expected.gather(1, torch.tensor(drawn.top_ids)), atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    with pytest.raises(FloatingPointError, match="diverged"):
        one([0.0, bad, 1.0], Sampling(), 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_a_large_vocabulary_is_cut_as_by_sorting_all_of_it(seed, monkeypatch):
    generator = torch.Generator().manual_seed(seed)
    samplings = [
        Sampling(top_k=50),
        Sampling(top_k=50, top_p=0.7, temperature=0.3),
        Sampling(top_k=3000, top_p=0.5),  # more than are looked at first
        Sampling(top_p=0.3),
        Sampling(top_p=0.99),
        Sampling(min_p=0.1),
        Sampling(min_p=1e-6),
    ]
    logits = 2 * torch.randn(len(samplings), 5000, generator=generator)
    if seed > 1:
        logits = logits.round()  # many ties, at every border
    looked = truncated(logits.log_softmax(-1), samplings)
    monkeypatch.setattr(drawing, "HEAD", 5000)
    sorted_ = truncated(logits.log_softmax(-1), samplings)
    assert torch.equal(looked.isfinite(), sorted_.isfinite())
    torch.testing.assert_close(looked, sorted_, rtol=0, atol=1e-5)
