"""Models that others quantised: each is measured once on this machine, in the background, and serves as "not measured"
until then (SPEC QM-12).

It is compared with its own weights in full arithmetic, on the package's prose and short questions, by a process of its
own that takes one thread and is niced. The report is kept by the content of the weights and the arithmetic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import prod
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.io.files import tried_lock
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.native.control_groups import available_memory
from quality.child_process import child_process
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.quality_gate import OthersModel, models_of_others

log = logging.getLogger(__name__)

Compare = Callable[[OthersModel, Path], Awaitable[None]]
"""Compares a model, with its cache folder, and writes the report. Raises `MeasuringError`."""

_OTHERS_LOOK_SECONDS = 60.0
# The weights in float32 and as they are served, at most as many bytes again, and what is computed with them.
_BYTES_PER_WEIGHT, _WORKING_BYTES = 6, 2**30


class MeasuringError(RuntimeError):
    """A model could not be measured; the message says why."""


class OthersModels:
    """What is known of the quality of the catalogue's models that others quantised. `measures`: whether those that
    nothing is known of are measured."""

    def __init__(
        self, catalog: CatalogInUse, cache_dir: Path, *, measures: bool, compare: Compare | None = None
    ) -> None:
        self._catalog, self._cache_dir, self._measures = catalog, cache_dir, measures
        self._compare = run_comparison if compare is None else compare
        self._failed: dict[Path, str] = {}
        self._changed = asyncio.Event()
        self.doubts: dict[str, str] = {}
        """By the name of a model, why its quality is not known to be good enough: it was not measured, or loses too
        much."""
        catalog.follow(lambda _: self._changed.set())

    async def follow(self) -> None:
        """Measure what the catalogue has now, and what later ones have, one model at a time."""
        while True:
            self._changed.clear()
            models = await self._look()
            waiting = [model for model in models if model.report is None and model.report_path not in self._failed]
            if not waiting or not self._measures:
                await self._changed.wait()
            elif not await self._measure(waiting[0]):
                # Another process measures it.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _OTHERS_LOOK_SECONDS)

    async def _look(self) -> list[OthersModel]:
        models = await asyncio.to_thread(models_of_others, self._catalog.current, self._cache_dir)
        doubts = {model.name: self._doubt(model) for model in models}
        self.doubts = {name: doubt for name, doubt in doubts.items() if doubt is not None}
        return models

    def _doubt(self, model: OthersModel) -> str | None:
        if model.report is not None or not self._measures:
            return model.doubt
        return f"{model.doubt}; {self._failed.get(model.report_path, 'it is being measured')}"

    async def _measure(self, model: OthersModel) -> bool:
        """Measure a model, unless another process does: then return False."""
        try:
            model.report_path.parent.mkdir(parents=True, exist_ok=True)
            with tried_lock(model.report_path.with_suffix(".lock")) as is_ours:
                if not is_ours:
                    return False
                await asyncio.to_thread(_require_memory, model, self._cache_dir)
                await self._compare(model, self._cache_dir)
        except (MeasuringError, ModelFileError, OSError) as error:
            self._failed[model.report_path] = str(error)
            log.warning("model '%s', which others quantised, was not measured: %s", model.name, error)
            return True
        doubt = next((self._doubt(seen) for seen in await self._look() if seen.name == model.name), None)
        log.log(
            logging.INFO if doubt is None else logging.WARNING,
            "model '%s', which others quantised: %s",
            model.name,
            doubt or "measured here, it is good enough for chats",
        )
        return True


async def run_comparison(model: OthersModel, cache_dir: Path) -> None:
    """Compare in a process that ends with its caller. Raises `MeasuringError`."""
    arguments = (str(model.path), model.compute, str(cache_dir), str(model.report_path))
    async with child_process("quality.evaluation.measure_process", *arguments) as process:
        _, errors = await process.communicate()
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise MeasuringError(f"the comparison ended with status {process.returncode}: {last}")


def _require_memory(model: OthersModel, cache_dir: Path) -> None:
    """Raise `MeasuringError` where the comparison would take memory that serving needs."""
    weights = sum(prod(tensor.shape) for tensor in open_checkpoint(model.path, cache_dir).tensors.values())
    needed, free = weights * _BYTES_PER_WEIGHT + _WORKING_BYTES, available_memory()
    if free is not None and needed > free:
        raise MeasuringError(
            f"measuring takes {format_bytes(needed)} of memory, and {format_bytes(free)} are free; measure it "
            f"elsewhere: aio quality compare FULL_PRECISION {model.path} --compute {model.compute} "
            f"--report {model.path}.{model.compute}.quality.json"
        )
