"""Which rows go into which mini-batch, rank and micro-batch. Groups stay whole where they can."""

from collections.abc import Sequence

import numpy as np

from grpo_gym.types import IntArray


def parts(rows: IntArray, group: IntArray, count: int) -> list[IntArray]:
    """Split `rows` into `count` parts of almost equal size, by whole groups if there are enough.

    Args:
        rows: row numbers; the parts keep their order.
        group: (B,) group of every row of the batch.
        count: how many parts; some are empty if there are fewer rows.
    """
    order = list(dict.fromkeys(group[rows].tolist()))
    if len(order) < count:
        return [np.asarray(part, dtype=np.int64) for part in np.array_split(rows, count)]
    chosen = np.array_split(np.array(order), count)
    members = {name: rows[group[rows] == name] for name in order}
    return [np.concatenate([members[name] for name in part.tolist()]) for part in chosen]


def shuffled(group: IntArray, generator: np.random.Generator) -> IntArray:
    """All rows of a batch, group after group, the groups in random order."""
    order = generator.permutation(np.unique(group))
    return np.concatenate([np.flatnonzero(group == name) for name in order]).astype(np.int64)


def micro_batches(
    rows: IntArray, group: IntArray, prompts: IntArray, lengths: IntArray, budget: int, share: bool
) -> list[IntArray]:
    """Split rows so that each part has at most `budget` tokens, padding included.

    Groups are taken from the longest to the shortest, so that what is padded together is alike. A
    group that does not fit is split, from its longest row to its shortest; a row that does not fit
    goes alone.

    Args:
        rows: row numbers.
        group: (B,) group of every row of the batch.
        prompts: (B,) tokens of each row's prompt.
        lengths: (B,) tokens of each row after the prompt, as far as they are computed.
        budget: most tokens in a part.
        share: whether the rows of a group share one prompt in the forward pass.
    """

    def cost(part: Sequence[int]) -> int:
        index = np.asarray(part)
        if not share:
            return len(part) * int((prompts[index] + lengths[index]).max())
        shared = len(set(group[index].tolist())) * int(prompts[index].max())
        return shared + len(part) * int(lengths[index].max())

    members: dict[int, list[int]] = {}
    for row in rows.tolist():
        members.setdefault(int(group[row]), []).append(row)
    for part in members.values():
        part.sort(key=lambda row: (-lengths[row], row))
    order = sorted(members.values(), key=lambda part: -int(prompts[part[0]] + lengths[part[0]]))
    out: list[list[int]] = []
    current: list[int] = []
    for part in order:
        if current and cost(current + part) <= budget:
            current += part
            continue
        out.append(current)
        current = []
        for row in part:
            if current and cost([*current, row]) > budget:
                out.append(current)
                current = []
            current.append(row)
    out.append(current)
    return [np.asarray(part, dtype=np.int64) for part in out if part]


def length_buckets(lengths: IntArray, overhead: int = 256) -> list[IntArray]:
    """Split rows into buckets of like length, so that padding each to its longest row costs least.

    Args:
        lengths: (b,) tokens of each row.
        overhead: what one more bucket costs, in tokens.

    Returns:
        Row numbers of each bucket, in ascending order. The buckets minimise the sum of rows times
        longest row, plus the overhead of each.
    """
    order = np.argsort(-lengths, kind="stable")
    longest = lengths[order]
    rows = len(order)
    best = np.zeros(rows + 1)
    start = np.zeros(rows + 1, dtype=np.int64)
    for end in range(1, rows + 1):
        costs = best[:end] + (end - np.arange(end)) * longest[:end] + overhead
        start[end] = int(costs.argmin())
        best[end] = costs[start[end]]
    out: list[IntArray] = []
    end = rows
    while end > 0:
        out.append(np.sort(order[start[end] : end]))
        end = int(start[end])
    return out[::-1]
