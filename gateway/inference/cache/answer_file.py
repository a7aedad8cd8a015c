"""Kept answers over a restart: what a process has in memory when it stops, the next one begins with (SPEC CA-02)."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.inference.cache.stores import AgedAnswer
from inference_core.io.atomic_file import atomic_file
from inference_core.io.json_errors import JSON_ERRORS

log = logging.getLogger(__name__)

MOST_BYTES = 256 * 2**20
"""Most bytes of answers in a file: neither end nor start of a process may take long."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    written_at: float
    answers: list[AgedAnswer]


class AnswerFile:
    """`path`, which one process writes at its end and the next one takes at its start. Nothing here raises: without the
    file a cache begins empty. `clock`: seconds, which processes share."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def write(self, answers: list[AgedAnswer]) -> None:
        """Write `answers`, the least recently used first; of more than `MOST_BYTES` the last ones."""
        room, kept = MOST_BYTES, list[AgedAnswer]()
        for answer in reversed(answers):
            room -= len(answer.value)
            if room < 0:
                break
            kept.append(answer)
        if not kept:
            return
        content = _Content(written_at=self._clock(), answers=kept[::-1])
        try:
            with atomic_file(self._path) as file:
                file.write(_encode(content))
        except OSError as error:
            log.warning("cached answers are lost with this process: %s", error)

    def take(self) -> list[AgedAnswer]:
        """Return the answers with their ages now, and delete the file, which holds texts."""
        try:
            content = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, *JSON_ERRORS) as error:
            log.warning("cached answers of the last process cannot be read: %s", error)
            content = _Content(written_at=math.inf, answers=[])
        try:
            self._path.unlink()
        except OSError as error:
            # Another start would take answers again that were replaced since.
            log.warning("cached answers of the last process are not used, since they cannot be deleted: %s", error)
            return []
        passed = self._clock() - content.written_at
        if passed < 0:  # Nothing was read, or the clock was set back: nothing is known of their ages.
            return []
        return [AgedAnswer(answer.key, answer.age_seconds + passed, answer.value) for answer in content.answers]


def answers_path(folder: Path, process: int) -> Path:
    """File of the answers of a gateway process, the `process`-th behind its port, between two runs."""
    return folder / f"answers.{process}.msgpack"


def delete_answers_beyond(folder: Path, processes: int) -> None:
    """Delete what more processes than the `processes` of this start have left, and none would take."""
    kept = {answers_path(folder, number) for number in range(processes)}
    for path in set(folder.glob("answers.*.msgpack")) - kept:
        try:
            path.unlink()
        except OSError as error:
            log.warning("cached answers of a former process cannot be deleted: %s", error)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode
