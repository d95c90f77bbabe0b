import pytest

from qwen3_a8w8.check.repetition import find_repetition


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], None),
        ([7], None),
        (list(range(100)), None),
        ([1, 2] + [5] * 8 + [3], None),
        ([1, 2] + [5] * 9 + [3], "token 5 x 9 from 2"),
        ([5] * 30, "token 5 x 30 from 0"),
        ([1, 2, 3, 4] * 2 + [9], None),
        ([9, 8] + [1, 2, 3, 4] * 3, "phrase of 4 tokens x 3 from 2"),
        ([9] + [1, 2, 3] * 3 + [7], None),  # nine tokens: too short to matter
        ([9] + [1, 2, 3] * 5 + [7], "phrase of 3 tokens x 5 from 1"),
        (list(range(50)) * 3, "phrase of 50 tokens x 3 from 0"),
    ],
)
def test_repetition_is_found_with_its_place(ids, found):
    assert find_repetition(ids) == found
