"""Tiled log-probs against a full log-softmax: values, gradients, odd shapes, extreme logits."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_gym.learner.logprobs import token_logprobs
from grpo_gym.learner.scores import TokenScores


def inputs(
    rows: int, columns: int, width: int = 5, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + columns)

    def draw(*shape: int) -> Tensor:
        values = torch.randn(shape, dtype=torch.float64, generator=generator) * scale
        return values.to(dtype).requires_grad_()

    targets = torch.randint(0, columns, (rows,), generator=generator)
    return draw(rows, width), draw(columns, width), draw(columns), targets


def full(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    bias: Tensor | None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    logits = hidden @ weight.t() + (0 if bias is None else bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logp = torch.log_softmax(logits / temperature, -1)
    entropy = -torch.special.xlogy(logp.exp(), logp.exp()).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy, logp


SIZES = st.integers(1, 9)


@settings(max_examples=60, deadline=None)
@given(
    rows=SIZES,
    columns=SIZES,
    tile=st.integers(1, 40),
    saved=st.sampled_from([0, 10**6]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    with_bias=st.booleans(),
    softcap=st.sampled_from([None, 0.7, 30.0]),
)
def test_any_tiling_gives_the_full_softmax_and_its_gradient(
    rows: int,
    columns: int,
    tile: int,
    saved: int,
    temperature: float,
    with_bias: bool,
    softcap: float | None,
) -> None:
    hidden, weight, bias, targets = inputs(rows, columns)
    used = bias if with_bias else None
    upstream = torch.linspace(-1, 2, 2 * rows, dtype=torch.float64).view(2, rows)
    expected = full(hidden, weight, targets, temperature, used, softcap)
    sources = [hidden, weight, *([bias] if with_bias else [])]
    slopes = torch.autograd.grad((torch.stack(expected[:2]) * upstream).sum(), sources)
    scores = token_logprobs(
        hidden, weight, targets, temperature, used, True, None, tile, saved, softcap
    )
    assert scores.entropy is not None
    both = torch.stack([scores.logprobs, scores.entropy])
    torch.testing.assert_close(both, torch.stack(expected[:2]), rtol=0, atol=1e-12)
    for actual, slope in zip(
        torch.autograd.grad((both * upstream).sum(), sources), slopes, strict=True
    ):
        torch.testing.assert_close(actual, slope, rtol=0, atol=1e-12)


@pytest.mark.parametrize("saved", [0, 10**6], ids=["recomputed", "kept"])
@pytest.mark.parametrize("what", ["logprobs", "entropy", "both"])
def test_gradcheck(saved: int, what: str) -> None:
    hidden, weight, bias, targets = inputs(4, 7)

    def call(*arguments: Tensor) -> Any:
        scores = token_logprobs(
            arguments[0], arguments[1], targets, 0.7, arguments[2], True, None, 10, saved
        )
        both = {"logprobs": scores.logprobs, "entropy": scores.entropy}
        return tuple(both.values()) if what == "both" else both[what]

    assert torch.autograd.gradcheck(call, (hidden, weight, bias))


@pytest.mark.parametrize("saved", [0, 10**6])
@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_gets_no_gradient_and_changes_none(saved: int, frozen: str) -> None:
    hidden, weight, _, targets = inputs(4, 7)
    token_logprobs(hidden, weight, targets).logprobs.sum().backward()
    expected = {"hidden": hidden.grad, "weight": weight.grad}
    hidden, weight = (x.detach().clone().requires_grad_() for x in (hidden, weight))
    {"hidden": hidden, "weight": weight}[frozen].requires_grad_(False)
    scores = token_logprobs(hidden, weight, targets, tile_elements=9, saved_elements=saved)
    scores.logprobs.sum().backward()
    for name, tensor in (("hidden", hidden), ("weight", weight)):
        if name == frozen:
            assert tensor.grad is None
        else:
            torch.testing.assert_close(tensor.grad, expected[name], rtol=0, atol=1e-12)


def test_given_tokens_are_scored_without_gradient() -> None:
    hidden, weight, bias, targets = inputs(4, 7)
    ids = torch.tensor([[0, 6, 3], [1, 1, 2], [5, 4, 0], [6, 6, 6]])
    scores = token_logprobs(hidden, weight, targets, 0.9, bias, False, ids, tile_elements=6)
    assert scores.top_logprobs is not None
    expected = full(hidden, weight, targets, 0.9, bias)[2].gather(1, ids)
    torch.testing.assert_close(scores.top_logprobs, expected.detach(), rtol=0, atol=1e-12)
    assert not scores.top_logprobs.requires_grad
    assert scores.entropy is None
    scores.logprobs.sum().backward()
    assert hidden.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True])
def test_scores_are_float32_whatever_comes_in(dtype: torch.dtype, autocast: bool) -> None:
    hidden, weight, bias, targets = inputs(6, 50, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        scores = token_logprobs(hidden, weight, targets, 1.0, bias, True)
    assert scores.logprobs.dtype == torch.float32
    exact = full(hidden.double(), weight.double(), targets, 1.0, bias.double())
    torch.testing.assert_close(scores.logprobs.double(), exact[0], rtol=0, atol=5e-6)
    scores.logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == dtype


@pytest.mark.parametrize("saved", [0, 10**6])
@pytest.mark.parametrize("tile", [3, 10**6])
def test_extreme_logits_stay_finite(saved: int, tile: int) -> None:
    """A huge logit, an impossible token, and a first tile in which every token is impossible."""
    hidden = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [0.0], [0.0], [1e4], [-1e4], [3.0]], requires_grad=True)
    bias = torch.tensor([-torch.inf, -torch.inf, -torch.inf, 0.0, 0.0, -torch.inf])
    targets = torch.tensor([3, 4])
    scores = token_logprobs(hidden, weight, targets, 1.0, bias, True, None, tile, saved)
    assert scores.entropy is not None
    assert scores.logprobs.tolist() == [0, 0]
    assert scores.entropy.tolist() == [0, 0]
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert torch.equal(hidden.grad, torch.zeros(2, 1))
    assert torch.equal(weight.grad, torch.zeros(6, 1))
    impossible = token_logprobs(hidden, weight, torch.tensor([0, 5]), 1.0, bias).logprobs
    assert impossible.tolist() == [-torch.inf, -torch.inf]


def test_no_position_gives_no_score() -> None:
    hidden, weight, _, targets = inputs(0, 7)
    scores = token_logprobs(hidden, weight, targets, entropy=True)
    assert scores.entropy is not None
    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    scores.logprobs.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    hidden, weight, _, targets = inputs(2, 3)
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(hidden, weight, targets, temperature)


def test_logits_are_never_all_there() -> None:
    """Every matrix product that makes logits is at most a tile, when what is kept is bounded too."""
    hidden, weight, _, targets = inputs(40, 300, dtype=torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple) else (result,):
                if isinstance(value, Tensor):
                    largest = max(largest, value.numel())
            return result

    with Watch():
        scores: TokenScores = token_logprobs(
            hidden, weight, targets, 1.0, None, True, None, 500, 4000
        )
        scores.logprobs.sum().backward()
    assert largest <= weight.numel()  # its gradient; the logits would be 12,000
