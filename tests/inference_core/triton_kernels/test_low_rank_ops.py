"""The op of low-rank adapters: torch's contract holds, and on the CPU each row gains what its adapter's weights say."""

import torch

from inference_core.triton_kernels.ops import add_low_rank
from tests.inference_core.triton_kernels.low_rank_batch import RANKS, rows_of, slots_of

CPU = torch.device("cpu")
BORDERS = (0, 24, 32, 40)
GIVEN = [2, -1, 0, 1, 2, 3]


def test_the_op_says_truly_what_it_writes_and_traces() -> None:
    slots, batch = slots_of(48, BORDERS, torch.float32, CPU), rows_of(GIVEN, 16, CPU)
    # Numbers everywhere: traced results are compared, and what is none equals nothing.
    tensors = (slots.down.nan_to_num(), slots.up.nan_to_num(), slots.scales, slots.ranks)
    arguments = (torch.zeros(6, 40), torch.randn(6, 48), *tensors, list(BORDERS), batch.rows, batch.tiles, 16)
    torch.library.opcheck(torch.ops.aio.add_low_rank.default, arguments)


def test_each_row_gains_its_adapters_product() -> None:
    slots, batch = slots_of(48, BORDERS, torch.float32, CPU), rows_of(GIVEN, 16, CPU)
    x, out = torch.randn(6, 48), torch.ones(6, 40)

    add_low_rank(out, x, slots, batch)

    for row, slot in enumerate(GIVEN):
        want = torch.ones(40)
        for part in range(3) if slot >= 0 else ():
            rank, columns = RANKS[slot][part], slice(BORDERS[part], BORDERS[part + 1])
            delta = slots.up[slot, :rank, columns].T @ slots.down[slot, part, :rank] * slots.scales[slot, part]
            want[columns] += delta @ x[row]
        torch.testing.assert_close(out[row], want, rtol=1e-4, atol=1e-4)
