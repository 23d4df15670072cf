"""Functions of lists, with the ways in which they can be broken."""

from grpo_envs.code.function import (
    Function,
    integers,
    intervals,
    sorted_and_target,
    sorted_lists,
    square,
)

OF_LISTS: tuple[Function, ...] = (
    Function(
        "count_above",
        "count the numbers of a list that are greater than <M>.",
        """def count_above(numbers):
    count = 0
    for number in numbers:
        if number > <M>:
            count += 1
    return count
""",
        (("> <M>", ">= <M>"), ("count = 0", "count = 1"), ("count += 1", "count += number")),
        integers(0, 14, least=3),
    ),
    Function(
        "running_sums",
        "give the sums of the first one, two, three, ... numbers of a list.",
        """def running_sums(numbers):
    total, sums = 0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums
""",
        (
            (
                "total += number\n        sums.append(total)",
                "sums.append(total)\n        total += number",
            ),
            ("total += number", "total = number"),
            ("return sums", "return total"),
        ),
        integers(-9, 10, least=2),
    ),
    Function(
        "second_largest",
        "give the second largest of the different numbers in a list, or None where there is none.",
        """def second_largest(numbers):
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return None
    return ordered[-2]
""",
        (("sorted(set(numbers))", "sorted(numbers)"), ("[-2]", "[1]"), ("< 2", "< 3")),
        integers(0, 5, most=5),
    ),
    Function(
        "rotate",
        "move the first <K> items of a list to its end; in a shorter list, go round as often as it takes.",
        """def rotate(items):
    if not items:
        return []
    shift = <K> % len(items)
    return items[shift:] + items[:shift]
""",
        (
            ("<K> % len(items)", "<K>"),
            ("items[shift:] + items[:shift]", "items[:shift] + items[shift:]"),
            ("items[shift:] + items[:shift]", "items[-shift:] + items[:-shift]"),
        ),
        integers(0, 10),
    ),
    Function(
        "chunks",
        "cut a list into pieces of <K> items, of which the last may be shorter.",
        """def chunks(items):
    pieces = []
    for start in range(0, len(items), <K>):
        pieces.append(items[start:start + <K>])
    return pieces
""",
        (
            ("range(0, len(items), <K>)", "range(0, len(items) - <K> + 1, <K>)"),
            ("start + <K>", "start + <K> - 1"),
            ("range(0, len(items), <K>)", "range(0, len(items))"),
        ),
        integers(0, 10, most=11, least=2),
    ),
    Function(
        "first_index",
        "find the first place of a target in an ordered list, or -1 if it is not there.",
        """def first_index(numbers, target):
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < target:
            low = middle + 1
        else:
            high = middle
    if low < len(numbers) and numbers[low] == target:
        return low
    return -1
""",
        (
            ("numbers[middle] < target", "numbers[middle] <= target"),
            ("return low", "return middle"),
            ("low < len(numbers) and ", ""),
            ("high = middle", "high = middle - 1"),
        ),
        sorted_and_target,
    ),
    Function(
        "diagonals",
        "give the sums of the two diagonals of a square matrix, from the top left one first.",
        """def diagonals(matrix):
    size = len(matrix)
    down = sum(matrix[i][i] for i in range(size))
    up = sum(matrix[i][size - 1 - i] for i in range(size))
    return down, up
""",
        (
            ("size - 1 - i", "i - 1"),
            ("return down, up", "return up, down"),
            ("range(size)", "range(size - 1)"),
        ),
        square,
    ),
    Function(
        "merge_intervals",
        "merge intervals that overlap or touch, and give them in order.",
        """def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
""",
        (
            ("max(end, merged[-1][1])", "end"),
            ("start <= merged", "start < merged"),
            ("sorted(intervals)", "intervals"),
        ),
        intervals,
    ),
    Function(
        "merge_sorted",
        "merge two ordered lists into one that is in order.",
        """def merge_sorted(first, second):
    merged, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]
""",
        (
            (" + first[i:] + second[j:]", ""),
            (" + second[j:]", ""),
            ("first[i] <= second[j]", "first[i] >= second[j]"),
        ),
        sorted_lists,
    ),
    Function(
        "window_maxima",
        "give the greatest number of every <K> neighbours in a list.",
        """def window_maxima(numbers):
    maxima = []
    for start in range(len(numbers) - <K> + 1):
        maxima.append(max(numbers[start:start + <K>]))
    return maxima
""",
        (
            (" - <K> + 1", " - <K>"),
            ("max(", "min("),
            ("start + <K>", "start + <K> - 1"),
            (" - <K> + 1", ""),
        ),
        integers(0, 30, most=9, least=6),
    ),
)
