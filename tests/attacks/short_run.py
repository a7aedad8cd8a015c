"""`python -m tests.attacks` in a short form, for tests: some targets each, so that they run side by side."""

import os
import subprocess
import sys


def found_by_attacks(*targets: str, inputs: int) -> str:
    """Attack `targets` with about `inputs` inputs; return what is printed if anything was found, else nothing."""
    command = [sys.executable, "-m", "tests.attacks", "--inputs", str(inputs)]
    for target in targets:
        command += ["--on", target]
    # Other tests load the machine.
    command.append("--ignore-stalls")
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}, timeout=560
    )
    return "" if done.returncode == 0 else done.stdout[-8000:] + done.stderr[-2000:]
