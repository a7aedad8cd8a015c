"""A gateway asks its core for the hidden states that its classifier reads: a real core of a tiny model, no second copy
of it, and the length heuristic whenever the core cannot tell."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from classifier.encoders.hidden_state_encoder import HiddenStateEncoder
from classifier.encoders.local_hidden_states import LocalStates
from classifier.errors import ArtefactError
from classifier.features.routing_input import routing_input_of_text
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from classifier.training.recipes.train import ReadLayer, train_over_hidden_states
from classifier.training.recipes.train_static import Candidate
from gateway.base.inference_request import InferenceRequest
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.router import RoutingService
from gateway.runtime.cores.hidden_states import CoreStates, require_model
from inference_core.loading.load_core import load_core
from inference_core.transport.core_thread import ThreadCoreClient
from quality.verification.training_rows import encoder_of
from tests.classifier.synthetic_outcomes import EASY, generated_rows
from tests.classifier.tiny_model import tiny_model, tiny_spec
from tests.gateway.chats import chat
from tests.gateway.tiny_versions import tiny_catalog
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.asyncio(loop_scope="module")
TURN = f"What is the {' '.join(EASY[:8])} of case 3?"


def catalog_of(model: Path, path: Path) -> Catalog:
    """Four tiers on that one model."""
    path.write_text(tiny_catalog(model))
    return load_catalog(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def made(folder: Path) -> Candidate:
    spec = tiny_spec(tiny_model(folder / "tiny.gguf"))
    source = LocalStates(spec, folder / "cache")
    read = ReadLayer(spec.model, spec.layer)
    candidate = train_over_hidden_states(generated_rows(400), folder / "registry", read, states=(spec, source), dim=8)
    registry = ArtefactRegistry(folder / "registry")
    registry.seed(default_artefact())
    registry.promote(candidate.model.version)
    return candidate


@pytest.fixture(scope="module")
def catalog(made: Candidate, folder: Path) -> Catalog:
    return catalog_of(folder / "tiny.gguf", folder / "catalog.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def core(catalog: Catalog, folder: Path) -> AsyncIterator[ThreadCoreClient]:
    client = ThreadCoreClient(lambda: load_core(core_spec(catalog), folder / "cache"))
    await client.start()
    yield client
    await client.close()


def active_classifier(
    folder: Path, catalog: Catalog, core: ThreadCoreClient | None, seconds: float = 20.0
) -> ActiveClassifier:
    states = partial(
        CoreStates,
        catalog=CatalogInUse(catalog),
        cores={} if core is None else {"cpu": core},
        cache_dir=folder / "cache",
        seconds=seconds,
        loop=asyncio.get_running_loop(),
    )
    classifier = ActiveClassifier(folder / "registry", catalog.fingerprint, states=states)
    classifier.load()
    return classifier


def ask(turn: str = TURN) -> InferenceRequest:
    return chat(turn)


async def test_a_decision_reads_the_states_of_the_core_that_serves(
    made: Candidate, folder: Path, catalog: Catalog, core: ThreadCoreClient
) -> None:
    classifier = active_classifier(folder, catalog, core)
    routing = RoutingService(catalog, {}, classifier, None)
    await routing.prepare(ask())
    prediction = routing.route(ask()).inputs.prediction
    given = routing_input_of_text(TURN)
    assert prediction.classifier_version == made.model.version
    # The bits of a core do not depend on which core it is.
    assert (classifier.model.encode(given).embedding == made.model.encode(given).embedding).all()
    encoded = await encoder_of(lambda: classifier.model)([{"role": "user", "content": "Another turn."}])
    assert len(encoded.embedding) == 4 * 8
    model = (await core.stats()).models[0]
    assert (model.blocks_in_use, model.generated_tokens) == (0, 0)


async def test_what_was_not_computed_in_time_is_routed_by_the_length_heuristic(
    made: Candidate, folder: Path, catalog: Catalog, core: ThreadCoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    routing = RoutingService(catalog, {}, active_classifier(folder, catalog, core, seconds=1e-9), None)
    await routing.prepare(ask())
    assert routing.route(ask()).inputs.prediction.classifier_version == "heuristic"
    assert "was computed ahead" in caplog.text
    assert (await core.stats()).models[0].blocks_in_use == 0


async def test_a_core_that_is_gone_leaves_routing_to_the_length_heuristic(
    made: Candidate, folder: Path, catalog: Catalog
) -> None:
    client = ThreadCoreClient(lambda: load_core(core_spec(catalog), folder / "cache"))
    await client.start()
    routing = RoutingService(catalog, {}, active_classifier(folder, catalog, client), None)
    await client.close()
    await routing.prepare(ask())
    assert routing.route(ask()).inputs.prediction.classifier_version == "heuristic"


async def test_an_artefact_over_another_model_than_the_core_serves_is_refused(
    made: Candidate, folder: Path, core: ThreadCoreClient, tmp_path: Path
) -> None:
    other = catalog_of(tiny_model(tmp_path / "other.gguf", seed=1), tmp_path / "catalog.toml")
    assert isinstance(made.model.encoder, HiddenStateEncoder)
    with pytest.raises(ArtefactError, match=r"reads hidden states of .* which the core of catalogue 'tiny' does not"):
        require_model(made.model.encoder.spec, other, folder / "cache")
    classifier = active_classifier(folder, other, core)
    assert "reads hidden states of" in classifier.refusal
    assert classifier.serving_or_none is None


async def test_a_core_that_was_started_with_another_model_is_refused(
    made: Candidate, folder: Path, catalog: Catalog, core: ThreadCoreClient, tmp_path: Path
) -> None:
    other = catalog_of(tiny_model(tmp_path / "other.gguf", seed=1), tmp_path / "catalog.toml")
    client = ThreadCoreClient(lambda: load_core(core_spec(other), folder / "cache"))
    await client.start()
    try:
        assert "it was started with another catalogue" in active_classifier(folder, catalog, client).refusal
        assert "this gateway has no core" in active_classifier(folder, catalog, None).refusal
    finally:
        await client.close()


async def test_a_gateway_process_reads_states_without_torch() -> None:
    program = (
        "import sys, gateway.inference.classifier_versions, gateway.runtime.cores.hidden_states; "
        "print('torch' in sys.modules)"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]
