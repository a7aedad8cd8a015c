"""Two ways of choosing inputs: by coverage of our bytecode (atheris over libFuzzer), and by mutation alone."""

import faulthandler
import importlib.util
import mmap
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutated, stretched
from tests.fuzz.trial import Trial
from tests.hostile.target import FuzzTarget, target_at

# What atheris instruments: coverage of other code would only slow it down.
PACKAGES = ["gateway", "tiers", "inference_core", "quality", "classifier"]
# An input that has not ended after so many seconds of the clock, on however busy a machine, does not end.
HANG_SECONDS = 60
_MOST_KEPT = 2000
# Most inputs are short, so that there are many of them; one in so many is as long as its target allows.
_SHORT_BYTES, _LONG_EVERY = 4096, 500


def has_atheris() -> bool:
    """Whether the coverage-guided engine is installed."""
    return importlib.util.find_spec("atheris") is not None


def mutate_for(trial: Trial, *, seconds: float | None = None, executions: int | None = None, seed: int) -> None:
    """Run mutations of the seeds, and of inputs whose outcome was new, until the time or the number has passed."""
    target, random = trial.target, Random(seed)
    current = _Current(trial.folder)
    corpus = list(target.seeds) or [b""]
    known: set[str | None] = set()
    for data in target.seeds:
        current.note(data)
        known.add(trial(data))
    until = time.monotonic() + seconds if seconds is not None else float("inf")
    if trial.folder is not None:
        # Its traceback is printed, then the signal ends the process, which may be stuck in native code.
        faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
    while time.monotonic() < until and (executions is None or trial.report.inputs < executions):
        data = mutation_of(target, random.choice(corpus), corpus, random)
        current.note(data)
        if trial.folder is not None:
            signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        outcome = trial(data)
        if random.randrange(_LONG_EVERY) == 0:
            _run_long(trial, current, data, random)
        if outcome is not None and outcome not in known and len(corpus) < _MOST_KEPT:
            known.add(outcome)
            corpus.append(data)
    if trial.folder is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)
    trial.save()


def mutation_of(target: FuzzTarget, data: bytes, corpus: list[bytes], random: Random) -> bytes:
    """Return another input made from `data`, which may become as long as it is."""
    most = max(_SHORT_BYTES, len(data))
    if target.mutate is not None and random.random() < 0.6:
        data = target.mutate(data, random)
        if random.random() < 0.7:
            return data[:most]
    return mutated(data, corpus, target.words, most, random)


def _run_long(trial: Trial, current: "_Current", data: bytes, random: Random) -> None:
    data = stretched(data, trial.target.most_bytes, random)
    current.note(data)
    trial(data)


def guide_by_coverage(path: str, seconds: float, folder: Path, seed: int) -> None:
    """Run libFuzzer on a target until the time has passed. Never returns; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES, enable_loader_override=False):
        target = target_at(path)
    assert isinstance(target, FuzzTarget)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(data)
    words = folder / "words"
    words.write_text("".join(_dictionary_line(word) for word in target.words if word))
    trial, random = Trial(target, folder), Random(seed)
    current = _Current(folder)
    seeds = list(target.seeds) or [b""]

    def one(data: bytes) -> None:
        current.note(data)
        trial(data)
        if trial.report.inputs % _LONG_EVERY == 0:
            _run_long(trial, current, data, random)

    def custom(data: bytes, most: int, number: int) -> bytes:
        random.seed(number)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return mutation_of(target, data, seeds, random)[:most]

    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={min(_SHORT_BYTES, target.most_bytes)}",
        f"-seed={seed + 1}",
        f"-artifact_prefix={folder}/death-",
        f"-timeout={HANG_SECONDS}",
        "-rss_limit_mb=4096",
        "-len_control=0",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    if target.words:
        options.append(f"-dict={words}")
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=custom)
    atheris.Fuzz()


def _dictionary_line(word: bytes) -> str:
    escaped = "".join(f"\\x{byte:02x}" for byte in word)
    return f'"{escaped}"\n'


class _Current:
    """The input that runs, in a file that outlives the process."""

    def __init__(self, folder: Path | None) -> None:
        self.note: Callable[[bytes], None] = lambda data: None
        if folder is not None:
            self._room = 1 << 21
            with (folder / "current").open("w+b") as file:
                file.truncate(self._room)
                self._map = mmap.mmap(file.fileno(), self._room)
            self.note = self._note

    def _note(self, data: bytes) -> None:
        self._map[:4] = len(data).to_bytes(4, "little")
        self._map[4 : 4 + len(data)] = data[: self._room - 4]


def last_input(folder: Path) -> bytes:
    """Return the input that ran when the process of `folder` ended."""
    content = (folder / "current").read_bytes()
    return content[4 : 4 + int.from_bytes(content[:4], "little")]
