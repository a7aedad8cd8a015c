"""Builds the core of a device group: one card in this process, several as a mesh that this process leads."""

import logging
from pathlib import Path

import torch
from msgspec.structs import replace

from inference_core.device.cards import failure_cause, profile_cuda, profile_host
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.errors import CoreError, DeviceFailedError, MemoryPlanError, RankLostError
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import available_memory
from inference_core.model_spec import DeviceGroupSpec
from inference_core.parallel.leader import load_device_mesh
from inference_core.parallel.local_ranks import THIS_MACHINE, RankHosts
from inference_core.parallel.mesh import Mesh

logger = logging.getLogger(__name__)


def load_group(
    spec: DeviceGroupSpec, cache_dir: Path, *, knobs_file: Path | None = None, hosts: RankHosts = THIS_MACHINE
) -> Core:
    """Load the group's models over its cards, spread evenly over the machines of `hosts`.

    Call it on the thread that will drive the core.

    `knobs_file` stores knob changes that outlast the process. `Core.close` ends the ranks of a group of several cards.
    Raises ModelFileError, MeshError, MemoryPlanError with the arithmetic, or, for cards whose driver, kernels or links
    fail, DeviceFailedError with the cause.
    """
    try:
        if spec.cards == 1:
            return _on_one_card(spec, cache_dir, knobs_file)
        return _on_several_cards(spec, cache_dir, knobs_file, hosts)
    except MemoryPlanError as error:
        raise MemoryPlanError(f"{spec.name}: {error}") from None
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(f"{spec.name}: {failure_cause(error)}") from None
    except RankLostError as error:
        if spec.device == "cpu":
            raise
        # The rank's own report is the message; what failed there failed on a card.
        raise DeviceFailedError(f"{spec.name}: {failure_cause(error) or error}") from error
    except Exception as error:
        cause = failure_cause(error) if spec.device == "cuda" and not isinstance(error, CoreError) else None
        if cause is None:
            raise
        raise DeviceFailedError(f"{spec.name}: {cause}") from error


def _on_one_card(spec: DeviceGroupSpec, cache_dir: Path, knobs_file: Path | None) -> Core:
    checkpoints = {m.name: open_checkpoint(resolve_model_path(m.path), cache_dir) for m in spec.core.models}
    if spec.device == "cpu":
        _require_host_memory(spec)
        return load_device_core(
            spec.core,
            checkpoints,
            torch.device("cpu"),
            cache_dir,
            profile=profile_host(spec.card_bytes),
            title=spec.name,
            knobs_file=knobs_file,
        )
    device = torch.device("cuda", spec.first_card)
    # Kernels are launched on the thread's current device, which is card 0 by default.
    torch.cuda.set_device(device)
    _compare_card(spec, device)
    return load_device_core(
        spec.core, checkpoints, device, cache_dir, profile=profile_cuda, title=spec.name, knobs_file=knobs_file
    )


def _on_several_cards(spec: DeviceGroupSpec, cache_dir: Path, knobs_file: Path | None, hosts: RankHosts) -> Core:
    here = spec.cards // hosts.nodes
    if spec.device == "cpu":
        _require_host_memory(replace(spec, cards=here))
    mesh = load_device_mesh(
        spec.core,
        range(spec.first_card, spec.first_card + here),
        cache_dir,
        device=spec.device,
        card_bytes=spec.card_bytes,
        mesh=Mesh(tensor=spec.cards // spec.pipeline, pipeline=spec.pipeline),
        knobs_file=knobs_file,
        hosts=hosts,
    )
    mesh.core.call_at_close(mesh.close)
    return mesh.core


def _require_host_memory(spec: DeviceGroupSpec) -> None:
    available = available_memory()
    if spec.cards * spec.card_bytes > available:
        each = "its card is" if spec.cards == 1 else f"each of its {spec.cards} cards is"
        raise MemoryPlanError(
            f"{each} {format_bytes(spec.card_bytes)} of this machine's memory, of which {format_bytes(available)} "
            "are available; make card_bytes smaller"
        )


def _compare_card(spec: DeviceGroupSpec, device: torch.device) -> None:
    """Log a warning if the card is smaller than planned; the KV arena is sized from the real card."""
    properties = torch.cuda.get_device_properties(device)
    logger.info("%s: card %d is %s, %s", spec.name, spec.first_card, properties.name,
                format_bytes(properties.total_memory))  # fmt: skip
    if properties.total_memory < spec.card_bytes:
        logger.warning("%s: the plan counts on %s a card", spec.name, format_bytes(spec.card_bytes))
