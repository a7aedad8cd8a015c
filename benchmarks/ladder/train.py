"""Trains one adapter that makes a ladder of a small model: direct answers, short thoughts and longer ones.

The loop makes fresh tasks for every step, a quarter of it is everyday chat as the base model itself answers it, and it
continues where it was stopped.
"""

import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional

from benchmarks.ladder.packing import Batch, Encoder, Everyday, Source, batches, packed, packed_logits
from benchmarks.ladder.record import CARD_FILE, HeldOutLoss, LadderRecipe, LadderRecord, model_card
from benchmarks.ladder.tasks import everyday_prompts, ladder_tasks
from inference_core.io.files import JSON_ERRORS, atomic_file
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.lora.adapter_file import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.network import AdaptedDecoder, LowRank
from quality.distillation.train import (
    RECORD_FILE,
    DistillationError,
    NamedModel,
    json_bytes,
    peft_config,
    write_adapter,
)
from quality.evaluation.model_outputs import Side, Variant, greedy_continuations

Progress = Callable[[str, float], None]
log = logging.getLogger(__name__)
MODES = ("direct", "brief", "detailed")
# No text is longer: a prompt and one of its answers.
LONGEST = 1024
# A device takes a step in less time than one process needs to make its tasks.
DEVICE_PROCESSES = 3
STATE_FILE = "state.safetensors"
EVERYDAY_FILE = "everyday.json"


class _Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How far training came, stored with its tensors."""

    recipe: LadderRecipe
    base_weights: str
    started_from: LadderRecord | None = None
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = []


def train_ladder(
    base: NamedModel,
    folder: Path,
    recipe: LadderRecipe,
    *,
    start: Path | None = None,
    device: str = "cpu",
    cache_dir: Path,
    progress: Progress = lambda stage, share: None,
) -> LadderRecord:
    """Train the ladder's adapter for `base` and write it to `folder`, which must not exist.

    What is reached is kept in a folder next to it, and the next call with the same arguments continues it. `start`: the
    folder of an adapter of this recipe, at whose factors training begins, with a fresh optimiser. Raises
    DistillationError for a folder that exists, a `start` of another model, rank or alpha, a state of another recipe,
    model or start, or an adapter that is not better on held-out wordings, and ModelFileError.
    """
    if folder.exists():
        raise DistillationError(f"{folder} exists; adapters are not overwritten, choose another folder")
    checkpoint = open_checkpoint(resolve_model_path(base.path), cache_dir)
    if checkpoint.config.max_position < LONGEST:
        raise DistillationError(f"{base.name} reads {checkpoint.config.max_position} tokens; the tasks need {LONGEST}")
    encoder = Encoder(load_tokenizer(resolve_model_path(base.path)))
    unfinished = folder.with_name(f".{folder.name}.training")
    unfinished.mkdir(parents=True, exist_ok=True)
    started_from = None if start is None else _start_record(start, recipe, checkpoint.fingerprint)
    expected = _Reached(recipe=recipe, base_weights=checkpoint.fingerprint, started_from=started_from)
    # Refused here before the everyday prompts are answered, which takes minutes; `_resumed` reads what is there.
    _read_state(unfinished, expected)
    everyday = _everyday_answers(unfinished / EVERYDAY_FILE, base, encoder, recipe, cache_dir, progress)
    source = Source(base.path, everyday, recipe)
    dtype = torch.float32 if recipe.base == "float32" else torch.bfloat16
    low = LowRank(recipe.rank, recipe.alpha / recipe.rank)
    student = AdaptedDecoder(checkpoint, low, dtype, recipe.seed, longest=LONGEST).to(device)
    if start is not None:
        read_adapter(start, student.config)  # Checks names and shapes.
        tensors = load_file(start / WEIGHTS_FILE)
        for name, factor in student.named_factors():
            factor.copy_(tensors[name])
    before = held_out_losses(student, encoder, recipe)
    reached = _trained(student, source, unfinished, expected, progress)
    after = held_out_losses(student, encoder, recipe)
    losses = {
        mode: HeldOutLoss(before=sum(first) / len(first), after=sum(last) / len(last))
        for mode, first, last in zip(MODES, zip(*before, strict=True), zip(*after, strict=True), strict=True)
    }
    gains = torch.tensor(before).sum(1) - torch.tensor(after).sum(1)
    tenth = max(recipe.steps // 10, 1)
    record = LadderRecord(
        base=base.name,
        base_path=base.path,
        base_weights=checkpoint.fingerprint,
        recipe=recipe,
        everyday=len(everyday),
        held_out=len(before),
        held_out_loss=losses,
        tokens=reached.tokens,
        seconds=reached.seconds,
        first_loss=sum(reached.losses[:tenth]) / tenth,
        last_loss=sum(reached.losses[-tenth:]) / tenth,
        created_at=time.time(),
        started_from=started_from,
    )
    if not float(gains.mean()) > 1.645 * float(gains.std()) / math.sqrt(len(gains)):
        raise DistillationError(
            f"the adapter is not better on {len(before)} tasks in held-out wordings ({losses}); nothing is written. "
            f"Give more steps; {unfinished} holds what was reached"
        )
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in student.adapter_tensors().items()}
    files = {
        CONFIG_FILE: json_bytes(peft_config(base.path, recipe.rank, recipe.alpha, student.config)),
        RECORD_FILE: json_bytes(record),
        CARD_FILE: model_card(record, str(folder)).encode(),
    }
    write_adapter(folder, tensors, files, student.config)
    shutil.rmtree(unfinished)
    return record


def _start_record(start: Path, recipe: LadderRecipe, base_weights: str) -> LadderRecord:
    """The record of the adapter in `start`. Raises DistillationError if training with `recipe` cannot begin at it."""
    file = start / RECORD_FILE
    try:
        record = msgspec.json.decode(file.read_bytes(), type=LadderRecord)
    except (OSError, *JSON_ERRORS) as error:
        raise DistillationError(f"{start} is no adapter of the recipe: {file} cannot be read ({error})") from error
    earlier = record.recipe
    if (record.base_weights, earlier.rank, earlier.alpha) != (base_weights, recipe.rank, recipe.alpha):
        raise DistillationError(
            f"{start} is an adapter for {record.base} with rank {earlier.rank} and alpha {earlier.alpha:g}; it must be "
            f"for the weights of this model, with rank {recipe.rank} and alpha {recipe.alpha:g}"
        )
    return record


def held_out_losses(student: AdaptedDecoder, encoder: Encoder, recipe: LadderRecipe) -> list[tuple[float, ...]]:
    """Nats per wanted token of each task in held-out wordings, by mode in the order of `MODES`."""
    by_task: list[tuple[float, ...]] = []
    for task in ladder_tasks(recipe.seed, 1, "held-out"):
        question = encoder.task(task)
        batch = packed([question], recipe.row_tokens)
        with torch.no_grad():
            losses = _losses(student, batch)
        parts = losses.split([len(branch.wanted) for branch in question.branches])
        by_task.append(tuple(float(part.mean()) for part in parts))
    return by_task


def _trained(student: AdaptedDecoder, source: Source, folder: Path, expected: _Reached, progress: Progress) -> _Reached:
    recipe = source.recipe
    parameters = list(student.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.0)
    reached = _resumed(folder, expected, parameters, optimizer)
    device = student.embedding.device
    with closing(batches(source, reached.steps, DEVICE_PROCESSES if device.type == "cuda" else 0)) as made:
        began = time.perf_counter()
        for step, (batch, tokens) in enumerate(made, reached.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * min((step + 1) / recipe.warmup, 1 - step / recipe.steps)
            loss = (_losses(student, batch) * batch.weights.to(device)).sum() / batch.weights.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
            optimizer.step()
            reached = msgspec.structs.replace(
                reached,
                steps=step + 1,
                tokens=reached.tokens + tokens,
                seconds=reached.seconds + time.perf_counter() - began,
                losses=[*reached.losses, float(loss.detach())],
            )
            progress("training", reached.steps / recipe.steps)
            if reached.steps % recipe.checkpoint_steps == 0:
                recent = reached.losses[-recipe.checkpoint_steps :]
                log.info(
                    "step %d: loss %.4f, %d tokens in %.0f s",
                    reached.steps,
                    sum(recent) / len(recent),
                    reached.tokens,
                    reached.seconds,
                )
                _store(folder, reached, parameters, optimizer)
            began = time.perf_counter()
    return reached


def _losses(student: AdaptedDecoder, batch: Batch) -> torch.Tensor:
    """The cross-entropy at every wanted token, float32 [N]."""
    logits = packed_logits(student, batch)
    return functional.cross_entropy(logits, batch.targets.to(logits.device), reduction="none")


def _store(
    folder: Path, reached: _Reached, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for number, parameter in enumerate(parameters):
        moments = optimizer.state[parameter]
        tensors[f"{number}.value"] = parameter.detach().cpu()
        tensors |= {f"{number}.{name}": moments[name].cpu() for name in ("exp_avg", "exp_avg_sq")}
    unfinished = folder / f"{STATE_FILE}.unfinished"
    save_file(tensors, unfinished, metadata={"reached": msgspec.json.encode(reached).decode()})
    unfinished.rename(folder / STATE_FILE)


def _read_state(folder: Path, expected: _Reached) -> _Reached:
    """How far training came in `folder`. Raises DistillationError if it is another recipe's or model's state."""
    file = folder / STATE_FILE
    if not file.exists():
        return expected
    with safe_open(file, "pt") as stored:
        reached = msgspec.json.decode(stored.metadata()["reached"], type=_Reached)
    same = ("recipe", "base_weights", "started_from")
    if any(getattr(reached, name) != getattr(expected, name) for name in same):
        raise DistillationError(
            f"{folder} holds a training with another recipe, model or start, which cannot be continued with this one; "
            "delete it, or choose another folder"
        )
    return reached


def _resumed(
    folder: Path, expected: _Reached, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> _Reached:
    reached = _read_state(folder, expected)
    if reached.steps:
        with safe_open(folder / STATE_FILE, "pt") as stored, torch.no_grad():
            for number, parameter in enumerate(parameters):
                parameter.copy_(stored.get_tensor(f"{number}.value"))
                moments = {
                    name: stored.get_tensor(f"{number}.{name}").to(parameter.device)
                    for name in ("exp_avg", "exp_avg_sq")
                }
                optimizer.state[parameter] = {"step": torch.tensor(float(reached.steps)), **moments}
    return reached


def _everyday_answers(
    file: Path, base: NamedModel, encoder: Encoder, recipe: LadderRecipe, cache_dir: Path, progress: Progress
) -> list[Everyday]:
    """The base model's own greedy answers to everyday prompts; kept in `file`."""
    if file.exists():
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[Everyday])
        except JSON_ERRORS as error:
            raise DistillationError(f"{file} cannot be read ({error}); delete it") from error
    prompts = everyday_prompts(recipe.seed, recipe.everyday_prompts)
    side = Side(base.path, Variant(recipe.base, recipe.base))
    # The core has its own threads and takes torch's away.
    threads = torch.get_num_threads()
    told = greedy_continuations(
        side,
        cache_dir,
        [encoder.prompt(prompt) for prompt in prompts],
        recipe.everyday_tokens,
        lambda share: progress("everyday answers", share),
    )
    torch.set_num_threads(threads)
    made = [Everyday(prompt, answer) for prompt, answer in zip(prompts, told, strict=True) if answer]
    with atomic_file(file) as out:
        out.write(msgspec.json.encode(made))
    return made
