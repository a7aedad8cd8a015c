"""A group whose cards fail while it loads names what failed and what serves its tiers instead."""

import asyncio
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from gateway.base.configuration import load_settings
from gateway.runtime.core_factory import core_factory, require_cards
from inference_core.device import cards
from inference_core.errors import (
    CoreGoneError,
    DeviceFailedError,
    DevicesMissingError,
    IntegrityError,
    MemoryPlanError,
    ModelFileError,
    RankLostError,
)
from inference_core.parallel import load_group as loading
from inference_core.transport.core_thread import ThreadCoreClient
from tiers.catalog.load import load_catalog

NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver."
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be reported"
COMPILER = "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.29.7"


class CompilationError(Exception):
    """As Triton raises it."""

    __module__ = "triton.compiler.errors"


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Both kinds of groups fail with `error` when they load."""

    def loads(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loading, "_on_one_card", loads)
    monkeypatch.setattr(loading, "_on_several_cards", loads)


def refused(tmp_path: Path, group: str = "gpu-8b") -> Exception:
    settings = load_settings({}, catalog="datacenter", data_dir=str(tmp_path), cache_dir=str(tmp_path))
    with pytest.raises(Exception) as raised:
        core_factory(load_catalog("datacenter"), settings, group)()
    return raised.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(NO_DRIVER), "the driver or a card failed (Found no NVIDIA driver on your system."),
        (RuntimeError(NO_IMAGE), "(CUDA error: no kernel image is available for execution on the device); nvidia-smi"),
        (RuntimeError(COMPILER), "a kernel could not be compiled (Failed to find C compiler."),
        (CompilationError("at 3:8: type mismatch"), "a kernel could not be compiled (at 3:8: type mismatch)"),
        (RuntimeError(NCCL), "the cards could not be joined by NCCL (NCCL error in:"),
        (RankLostError("rank 2: RuntimeError: CUDA error: unspecified launch failure"), "rank 2: RuntimeError: CUDA"),
        (RankLostError("rank 3: OutOfMemoryError: CUDA out of memory."), "a card ran out of memory (rank 3: Out"),
        (RankLostError("rank 1 (signal -9) ended; see its log"), "gpu-8b: rank 1 (signal -9) ended"),
    ],
)
def test_the_cause_and_what_serves_instead_are_named(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, error)
    refusal = refused(tmp_path)
    assert isinstance(refusal, DeviceFailedError)
    cause, instead = str(refusal).split("\n")
    assert cause.startswith("gpu-8b: ")
    assert said in cause
    assert "On group gpu-8b run the tiers tier-2." in instead
    assert "[tiers.remote]" in instead
    assert 'engine = "vllm"' in instead
    assert "without them tier-1, tier-3, tier-4 serve" in instead


def test_memory_that_runs_out_keeps_its_arithmetic_and_names_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    ran_out = refused(tmp_path, "gpu-70b")
    assert isinstance(ran_out, MemoryPlanError)
    assert "gpu-70b: a card ran out of memory" in str(ran_out)
    assert "On group gpu-70b run the tiers tier-3, tier-4." in str(ran_out)

    fail(monkeypatch, MemoryPlanError("nothing is left for keys and values:\n  usable: 1"))
    planned = str(refused(tmp_path))
    assert "gpu-8b: nothing is left for keys and values:\n  usable: 1\nOn group gpu-8b" in planned


def test_what_has_nothing_to_do_with_cards_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ModelFileError("cuda.gguf is damaged"), IntegrityError("a CUDA bug"), ValueError("a bug")):
        fail(monkeypatch, error)
        assert refused(tmp_path) is error


def test_on_the_host_a_lost_rank_is_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, RankLostError("rank 1 ended"))
    catalog = load_catalog("datacenter")
    groups = [replace(group, device="cpu") for group in catalog.gpu_groups]
    settings = load_settings({}, data_dir=str(tmp_path), cache_dir=str(tmp_path))
    with pytest.raises(RankLostError, match=r"^rank 1 ended$"):
        core_factory(replace(catalog, gpu_groups=groups), settings, "gpu-70b")()


def test_the_server_gives_the_cause_of_a_core_that_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, RuntimeError(NO_DRIVER))
    settings = load_settings({}, data_dir=str(tmp_path), cache_dir=str(tmp_path))
    client = ThreadCoreClient(core_factory(load_catalog("datacenter"), settings, "gpu-8b"), title="the core gpu-8b")
    with pytest.raises(CoreGoneError, match=r"the core gpu-8b died: DeviceFailedError: gpu-8b: the driver") as gone:
        asyncio.run(client.start())
    assert "On group gpu-8b run the tiers tier-2." in str(gone.value)


@pytest.mark.parametrize(
    ("cuda", "hip", "error", "said"),
    [
        (None, None, None, "torch is a build without CUDA"),
        (None, "6.3", None, "torch is a build for AMD cards"),
        ("13.0", None, RuntimeError(NO_DRIVER), "CUDA does not start: the driver or a card failed (Found no NVIDIA"),
        ("13.0", None, None, "CUDA_VISIBLE_DEVICES=7 leaves out others"),
    ],
)
def test_missing_cards_are_missing_for_a_reason(
    cuda: str | None, hip: str | None, error: Exception | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(cards, "visible_cards", lambda: 0)
    monkeypatch.setattr(cards.torch.version, "cuda", cuda)
    monkeypatch.setattr(cards.torch.version, "hip", hip)
    monkeypatch.setattr(cards.torch.cuda, "init", starts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DevicesMissingError, match=r"needs 1, card 0.*Why: ") as refusal:
        require_cards(load_catalog("datacenter"), ["gpu-8b"])
    assert said in str(refusal.value)
