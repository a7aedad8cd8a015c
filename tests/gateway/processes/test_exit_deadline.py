"""A process that does not end is ended at its deadline, and the log says what its threads were at."""

import subprocess
import sys

PROGRAM = """
import logging, threading
from gateway.processes.event_loop import ExitDeadline

def wait_for_a_disk():
    threading.Event().wait()

logging.basicConfig()
threading.Thread(target=wait_for_a_disk, name="writer").start()
deadline = ExitDeadline()
deadline.status = 7
deadline.begin(0.05)
"""


def test_a_process_that_hangs_ends_with_its_status_and_says_where_its_threads_are() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 7
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("writer, in ")]
    assert "< wait_for_a_disk (<string>:6) <" in line
