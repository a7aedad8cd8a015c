"""`python -m tests.inference_core.parallel.taped_rank`: a rank of a mesh on the CPU that replays its small steps from
tapes. It writes what it did to the folder that TAPES names."""

import json
import os
import sys
from pathlib import Path

from inference_core.parallel import rank
from inference_core.parallel.__main__ import main
from tests.inference_core.device.tape_graphs import TapeGraphs


def tapes_for(spec: object, device: object) -> type[TapeGraphs]:
    """What `graphs_of` gives to ranks on the CPU here."""
    return TapeGraphs


def replays() -> dict[str, int]:
    """How many steps were recorded and how many replayed in this process."""
    return {
        "recorded": sum(len(graphs.captured) for graphs in TapeGraphs.made),
        "replayed": sum(graphs.replays for graphs in TapeGraphs.made),
    }


if __name__ == "__main__":
    rank.graphs_of = tapes_for
    status = main()
    Path(os.environ["TAPES"], f"rank-{os.environ['RANK']}.json").write_text(json.dumps(replays()))
    sys.exit(status)
