"""The training process: niced, single-threaded, away from serving; progress as JSON lines, the result as a file.

Run as `python -m quality.retraining.process_main FOLDER`, where FOLDER holds `order.json` and `rows.safetensors`; it
writes `result.json` there, whole or not at all, and the candidate into the registry that the order names.
"""

import os
import sys
from pathlib import Path

import msgspec

from quality.retraining.training_process import ORDER, RESULT, ROWS, Order, Progress

NICENESS = 10


def main(folder: Path) -> None:
    """Carry out the order in `folder`."""
    os.nice(NICENESS)
    # Imported here, so that loading the maths libraries is niced too.
    from quality.retraining.train_candidate import carry_out

    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=Order)
    result = carry_out(order, folder / ROWS, _tell)
    temporary = folder / f".{RESULT}"
    temporary.write_bytes(msgspec.json.encode(result))
    temporary.replace(folder / RESULT)
    _tell("done", 1.0)


def _tell(step: str, share: float) -> None:
    print(msgspec.json.encode(Progress(step=step, share=share)).decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
