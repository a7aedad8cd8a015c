"""The device's counts follow the drawn tokens, whether host or device has them first."""

from typing import Any

import pytest
import torch

from inference_core.device.sampling import EditedRows, RowUpdates, row_uses
from inference_core.protocol import SamplingParams
from inference_core.step_plan import PENDING, SampleSpec

VOCABULARY = 12
CPU = torch.device("cpu")


def spec(prompt: list[int], output: list[int], **params: Any) -> SampleSpec:
    given = {"presence_penalty": 0.5} | params
    return SampleSpec(SamplingParams(**given), prompt, output, 0, len(output), (11,))


def counted(rows: EditedRows, draws: dict[str, SampleSpec], drawn: list[int], last: dict[str, int]) -> RowUpdates:
    updates = rows.place(list(draws), list(draws.values()), last)
    assert updates is not None
    rows.count(updates, torch.tensor(drawn))
    return updates


def uses(rows: EditedRows, row: int) -> list[int]:
    return rows.tables.uses[row].tolist()


@pytest.fixture
def rows() -> EditedRows:
    return EditedRows(2, VOCABULARY, CPU)


def test_a_pending_token_is_counted_from_the_draws_of_the_step_before(rows: EditedRows) -> None:
    given = spec([1, 2], [])
    counted(rows, {"a": given}, [0], {})
    given.output_token_ids.append(PENDING)
    given.position = 1
    counted(rows, {"a": given}, [9, 7], {"a": 1})
    assert uses(rows, 0) == row_uses(given, [7], VOCABULARY).tolist()
    # By now the host knows it, and the next one is pending.
    given.output_token_ids[:] = [7, PENDING]
    given.position = 2
    counted(rows, {"a": given}, [7], {"a": 0})
    assert uses(rows, 0) == row_uses(given, [7, 7], VOCABULARY).tolist()


def test_a_step_that_is_done_again_counts_nothing_twice(rows: EditedRows) -> None:
    given = spec([1], [4, 4])
    for _ in range(3):
        counted(rows, {"a": given}, [0], {})
    assert uses(rows, 0) == row_uses(given, [4, 4], VOCABULARY).tolist()


def test_a_sequence_without_a_usable_previous_token_counts_none(rows: EditedRows) -> None:
    given = spec([1], [4])
    counted(rows, {"a": given}, [0], {})
    given.output_token_ids.append(PENDING)
    given.position = 2
    counted(rows, {"a": given}, [-1], {"a": 0})
    assert uses(rows, 0) == row_uses(given, [4], VOCABULARY).tolist()


def test_a_changed_history_is_counted_again(rows: EditedRows) -> None:
    given = spec([1], [4])
    counted(rows, {"a": given}, [0], {})
    given.output_token_ids += [5, 6, 6]
    given.position = 4
    counted(rows, {"a": given}, [0], {})
    assert uses(rows, 0) == row_uses(given, [4, 5, 6, 6], VOCABULARY).tolist()
    other = spec([2], [3])
    counted(rows, {"a": other}, [0], {})
    assert uses(rows, 0) == row_uses(other, [3], VOCABULARY).tolist()


def test_after_a_fault_every_history_is_counted_again(rows: EditedRows) -> None:
    given = spec([1], [4, 5])
    counted(rows, {"a": given}, [0], {})
    rows.tables.uses.fill_(99)
    rows.forget()
    counted(rows, {"a": given}, [0], {})
    assert uses(rows, 0) == row_uses(given, [4, 5], VOCABULARY).tolist()


def test_the_least_recently_scheduled_sequence_loses_its_row(rows: EditedRows) -> None:
    specs = {name: spec([i], [i + 3]) for i, name in enumerate("abc")}
    for name, given in specs.items():
        counted(rows, {name: given}, [0], {})
    assert counted(rows, {"b": specs["b"], "c": specs["c"]}, [0, 0], {}).rows == [1, 0]
    assert uses(rows, 0) == row_uses(specs["c"], [5], VOCABULARY).tolist()


def test_the_mask_falls_once_the_least_length_is_reached(rows: EditedRows) -> None:
    given = spec([1], [], min_tokens=1, logit_bias={3: 1.0})
    counted(rows, {"a": given}, [0], {})
    assert rows.tables.num_biased.tolist() == [2, 0]
    given.output_token_ids.append(4)
    given.position = 1
    counted(rows, {"a": given}, [0], {})
    assert rows.tables.num_biased.tolist() == [1, 0]


def test_rows_that_nothing_edits_have_none(rows: EditedRows) -> None:
    plain = spec([1], [], presence_penalty=0.0)
    assert rows.place(["a"], [plain], {}) is None
    updates = rows.place(["a", "b"], [plain, spec([1], [])], {})
    assert updates is not None
    assert updates.rows == [-1, 0]


def test_rows_that_the_host_draws_have_none(rows: EditedRows) -> None:
    updates = rows.place(["a", "a", "b"], [None, None, spec([1], [])], {})
    assert updates is not None
    assert updates.rows == [-1, -1, 0]
