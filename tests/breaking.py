"""An engine that breaks after some completions, in a way the caller chooses: for `--engine hf`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo_gym import jobs, sampler
from grpo_gym.engines.hf import HFEngine
from grpo_gym.types import Completion

# Modules that ask for an engine.
MAKERS: tuple[Any, ...] = (jobs, sampler)


class Breaking(HFEngine):
    """Breaks in the named call once `after` completions have been sampled."""

    after = 0
    call = "step"
    how: Any = staticmethod(lambda: time.sleep(3600))

    sampled = 0

    def step(self) -> list[tuple[int, Completion]]:
        self._break("step")
        done = super().step()
        type(self).sampled += len(done)
        return done

    def submit(self, requests: Sequence[Any]) -> None:
        if requests:
            self._break("submit")
        super().submit(requests)

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        self._break("load")
        super().load(state, version)

    def score(self, *arguments: Any) -> Any:
        self._break("score")
        return super().score(*arguments)

    def sleep(self) -> None:
        self._break("sleep")
        super().sleep()

    def abort(self) -> None:
        super().abort()
        self._break("abort")

    def _break(self, call: str) -> None:
        if self.sampled >= self.after and call in self.call.split():
            type(self).how()


def make_engine(config: Any, policy: Any, max_lanes: int, *_: Any, **__: Any) -> Breaking:
    """In the place of `sampler.make_engine`."""
    return Breaking(policy.model, policy.tokenizer, max_lanes=max_lanes)


def install() -> None:
    """For a process of its own."""
    for module in MAKERS:
        module.make_engine = make_engine
