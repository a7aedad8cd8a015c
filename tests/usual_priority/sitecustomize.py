"""Training processes of tests keep the tests' priority: at their own low one a busy machine lets them wait for minutes.

Python imports this module at the start of each process of the tests (see `tests.conftest`).
"""

import os
import sys

if "quality.retraining.process_main" in sys.orig_argv:
    os.nice = lambda _: 0  # type: ignore[assignment]
