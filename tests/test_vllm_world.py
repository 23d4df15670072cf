"""vLLM's groups of processes beside those of the learner, in one process."""

import pytest
import torch
import torch.distributed as dist

from grpo_gym.engines.vllm_world import OwnWorld


def new_world() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_vllm_finds_no_group_and_leaves_those_of_the_learner() -> None:
    new_world()
    try:
        ours, own = dist.group.WORLD, dist.new_group([0])
        for _ in range(2):
            world = OwnWorld()
            with world.starting():
                assert not dist.is_initialized()
                new_world()
                theirs, more = dist.group.WORLD, dist.new_group([0])
            assert dist.group.WORLD is ours
            with world.ending():
                assert not dist.is_initialized(), "else vLLM would end all groups"
                dist.destroy_process_group(more)
            assert dist.group.WORLD is ours
            with pytest.raises(ValueError, match="Invalid process group"):  # it is gone
                dist.destroy_process_group(theirs)
        for group in (None, own):
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            assert value.item() == 1
    finally:
        dist.destroy_process_group()


def test_an_engine_that_does_not_start_leaves_them_too() -> None:
    new_world()
    try:
        ours = dist.group.WORLD
        try:
            with OwnWorld().starting():
                new_world()
                raise MemoryError
        except MemoryError:
            pass
        assert dist.group.WORLD is ours
    finally:
        dist.destroy_process_group()


def test_alone_vllm_makes_and_ends_the_only_group() -> None:
    world = OwnWorld()
    with world.starting():
        new_world()
    assert dist.is_initialized()
    with world.ending():
        dist.destroy_process_group()
    assert not dist.is_initialized()
