"""A resumable training loop: AdamW, warm-up and decay, early stopping, state on disk."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file

SAVE_SECONDS = 60.0
_TENSORS = "state.safetensors"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The optimisation schedule: `steps` of AdamW (Loshchilov and Hutter, 2019); the rate rises over `warmup` of them
    and falls linearly to 0. The valid loss is measured every `measure_every` steps; after `patience` measurements
    without a better one training stops. The best parameters are kept."""

    steps: int
    measure_every: int
    patience: int
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


class Progress(msgspec.Struct, kw_only=True):
    """The state of a run."""

    key: str
    step: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    stopped: bool = False
    losses: list[tuple[int, float]] = []
    """Valid loss of every measurement, as (step, loss)."""


class ResumableLoop:
    """Trains `module` by `loss_of(step)`. Dropout is seeded per step, so that a resumed run gives the same result.

    `work`: folder for the state, or None. `key` identifies model and data; a state with another key is ignored.
    """

    def __init__(
        self,
        module: Any,
        groups: Sequence[tuple[Sequence[str], float]],
        schedule: Schedule,
        *,
        key: str,
        work: Path | None = None,
    ) -> None:
        """`groups`: (prefixes of parameter names, peak learning rate); a parameter is of the first matching group."""
        self.module, self.schedule, self.work = module, schedule, work
        self.state = Progress(key=key)
        self._names = {name: p for name, p in module.named_parameters() if p.requires_grad}
        sorted_in: list[list[tuple[str, Any]]] = [[] for _ in groups]
        for name, parameter in self._names.items():
            index = next(i for i, (prefixes, _) in enumerate(groups) if name.startswith(tuple(prefixes)))
            sorted_in[index].append((name, parameter))
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for _, p in members if (p.ndim > 1) == decays], "lr": rate, "weight_decay": decay}
                for members, (_, rate) in zip(sorted_in, groups, strict=True)
                for decays, decay in ((True, schedule.weight_decay), (False, 0.0))
            ]
        )
        self._peaks = [group["lr"] for group in self._optimizer.param_groups]
        self._best: dict[str, Any] = {}
        self._resume()

    def run(
        self,
        loss_of: Callable[[int], Any],
        measure: Callable[[], float],
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Train to the end or until stopped early; leave the best parameters in the module, in evaluation mode."""
        schedule, state, saved = self.schedule, self.state, time.monotonic()
        while state.step < schedule.steps and not state.stopped:
            self._step(loss_of)
            if state.step % schedule.measure_every == 0 or state.step == schedule.steps:
                self.module.eval()
                with torch.inference_mode():
                    self._weigh(measure())
                report(state)
            if time.monotonic() - saved > SAVE_SECONDS:
                self._save()
                saved = time.monotonic()
        self._save()
        with torch.no_grad():
            for name, parameter in self._names.items():
                parameter.copy_(self._best[name])
        self.module.eval()
        return state

    def _step(self, loss_of: Callable[[int], Any]) -> None:
        schedule, step = self.schedule, self.state.step
        torch.manual_seed(schedule.seed * 1_000_003 + step)
        share = _rate(step, schedule)
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share
        self.module.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss_of(step).backward()
        torch.nn.utils.clip_grad_norm_(list(self._names.values()), schedule.clip)
        self._optimizer.step()
        self.state.step += 1

    def _weigh(self, loss: float) -> None:
        state = self.state
        state.losses = [*state.losses, (state.step, loss)]
        if not self._best or (math.isfinite(loss) and (state.best is None or loss < state.best)):
            state.best, state.best_step, state.stale = loss, state.step, 0
            self._best = {name: parameter.detach().clone() for name, parameter in self._names.items()}
        else:
            state.stale += 1
            state.stopped = state.stale >= self.schedule.patience

    def _save(self) -> None:
        if self.work is None:
            return
        self.work.mkdir(parents=True, exist_ok=True)
        tensors = {f"now.{name}": p.detach().contiguous() for name, p in self._names.items()}
        tensors |= {f"best.{name}": value.contiguous() for name, value in self._best.items()}
        for name, parameter in self._names.items():
            for moment, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}.{name}"] = torch.as_tensor(value).detach().clone().contiguous()
        # The progress is in the header of the same file, so the two are always consistent.
        metadata = {"state": msgspec.json.encode(self.state).decode()}
        part = self.work / f".{_TENSORS}"
        save_file(tensors, part, metadata=metadata)
        part.replace(self.work / _TENSORS)

    def _resume(self) -> None:
        path = None if self.work is None else self.work / _TENSORS
        if path is None or not path.is_file():
            return
        state = _saved_state(path)
        if state is None or state.key != self.state.key:
            return
        tensors = load_file(path)
        with torch.no_grad():
            for name, parameter in self._names.items():
                parameter.copy_(tensors[f"now.{name}"])
                moments = {
                    moment: tensors[f"{moment}.{name}"]
                    for moment in ("step", "exp_avg", "exp_avg_sq")
                    if f"{moment}.{name}" in tensors
                }
                if moments:
                    self._optimizer.state[parameter] = moments
                if f"best.{name}" in tensors:
                    self._best[name] = tensors[f"best.{name}"]
        self.state = state


def _rate(step: int, schedule: Schedule) -> float:
    warm = max(1, round(schedule.steps * schedule.warmup))
    if step < warm:
        return (step + 1) / warm
    return max(0.0, (schedule.steps - step) / max(1, schedule.steps - warm))


def _saved_state(path: Path) -> Progress | None:
    """Return the state in the header of a safetensors file (8 bytes of length, then JSON), or None."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    try:
        return msgspec.json.decode(header["__metadata__"]["state"], type=Progress)
    except (KeyError, msgspec.MsgspecError):
        return None
