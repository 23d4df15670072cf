"""The policy versions in the rollouts of a run."""

import json
from pathlib import Path


def check_versions(folder: Path, steps: int) -> None:
    """Step n, counted from 1, was sampled by the policy of n - 1 updates: each sampled token says so."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    assert len(files) == steps
    for updates, path in enumerate(files):
        for line in path.read_text().splitlines():
            rollout = json.loads(line)
            assert len(rollout["versions"]) == len(rollout["token_ids"])
            for sampled, version in zip(rollout["mask"], rollout["versions"], strict=True):
                assert version == (updates if sampled else -1)
