"""Measures a model that others quantised, niced and on one CPU, away from serving.

Run as `python -m quality.evaluation.measure_process MODEL COMPUTE CACHE_DIR REPORT`.
"""

import os
import sys
from pathlib import Path
from typing import cast

from inference_core.model_spec import MeasuredCompute

NICENESS = 19
# Half of what `aio quality compare` measures by itself, and no continuations: these take most of its time.
TEXT_TOKENS = 1024


def main(model: str, compute: MeasuredCompute, cache_dir: Path, report: Path) -> None:
    """Compare the model with its own weights in full arithmetic, and write the report."""
    os.nice(NICENESS)
    if hasattr(os, "sched_setaffinity"):
        # The kernels take a thread for each CPU that they may use.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    # Imported here, so that loading the maths libraries is niced too.
    from inference_core.quantization.quality_report import DEFAULT_LIMITS, write_report
    from quality.evaluation.effort import Effort
    from quality.evaluation.model_outputs import Side, Variant
    from quality.evaluation.quantised_model import compare_models

    quality_report = compare_models(
        Side(model, Variant("float32", "float32")),
        Side(model, Variant(compute, "bfloat16")),
        cache_dir,
        limits=DEFAULT_LIMITS,
        effort=Effort(text_tokens=TEXT_TOKENS, generations=0),
    )
    write_report(quality_report, report)


if __name__ == "__main__":
    main(sys.argv[1], cast("MeasuredCompute", sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
