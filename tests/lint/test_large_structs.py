"""A struct of many fields is cut by who reads them: its size only falls, and no function reads it whole."""

import subprocess
from pathlib import Path

from tests.lint.large_structs import Read, Structs

PACKAGES = ("gateway/", "classifier/", "tiers/", "inference_core/", "quality/", "migrations/")
MOST_FIELDS = 20
LARGE = {
    # Each base is what one step of a decision reads; `PolicyInputs` is recorded whole.
    "classifier/decision.py::Overrides": 25,
    "classifier/decision.py::PolicyInputs": 33,
    "classifier/decision.py::SessionStep": 26,
    "gateway/base/inference_request.py::InferenceRequest": 22,
    # One table of names for users, of which each part reads a few.
    "gateway/base/settings.py::Settings": 96,
    # OpenAI's form.
    "gateway/batches/batch.py::Batch": 25,
    # Its bases are the options that count, and that compare with one memory.
    "gateway/cli/planning/kv_calc.py::KvOptions": 23,
    "gateway/inference/api/chat_socket.py::SocketChat": 48,
    "gateway/inference/api/messages/schemas.py::ShownMessages": 23,
    # One table of names for operators; a function reads at most six.
    "gateway/inference/routing_knobs.py::RoutingKnobs": 29,
    # A row that the API and the overview show as it is.
    "gateway/telemetry/overview.py::TierNow": 23,
    # The keys of other people's files.
    "inference_core/loaders/huggingface/hf_config.py::_Config": 46,
    # Beside its parts, sizes that most readers take together, and single switches.
    "inference_core/model_config.py::ModelConfig": 23,
    # Operators name each knob in settings, commands and requests, and cores store it by that name.
    "inference_core/protocol/commands.py::Knobs": 27,
    # Travels between versions, and is a row of an API and of its CSV; every family of metrics reads a few columns.
    "inference_core/protocol/outputs.py::ModelStats": 37,
    # The columns of a table, which no function reads.
    "quality/estimates/served.py::StepRow": 25,
    # Their bases are what every request has recorded, and what an attempt cost.
    "quality/records/record.py::Attempt": 27,
    "quality/records/record.py::Record": 29,
    # Tables of aio.toml, whose fields are names for users; each is checked and read by a few functions of its own.
    "tiers/catalog/catalog.py::TargetSpec": 26,
    "tiers/catalog/tier_spec.py::RemoteSpec": 25,
    "tiers/catalog/tier_spec.py::TierSpec": 25,
    # Its base is what a tier is asked for; the others say how the request is served and recorded.
    "tiers/conversation.py::ReadRequest": 31,
    # Forms of providers' APIs.
    "tiers/dialects/chat_chunk.py::ChatUsage": 23,
    "tiers/dialects/chat_schemas.py::ChatRequest": 46,
    "tiers/dialects/chat_schemas.py::CompletionRequest": 27,
    "tiers/dialects/chat_schemas.py::Sampling": 22,
    "tiers/dialects/messages.py::MessagesRequest": 23,
    "tiers/dialects/responses_schemas.py::ResponsesRequest": 31,
    # What a tier is asked: its base is what a template or a server's dialect writes, and the base of that the answer
    # that is wanted, as a caller's dialect reads it. Parts inside would put a name before each field of each dialect.
    "tiers/tier.py::GenerationRequest": 35,
    "tiers/tier.py::ModelRequest": 21,
}
"""Fields of each struct with more than `MOST_FIELDS` of them. A struct that stays large has the reason beside it."""
READ_WHOLE: list[str] = []
"""Functions that read more than `MOST_FIELDS` fields of a struct."""


def test_large_structs_and_functions_that_read_them_whole_become_fewer() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    structs = Structs({path: Path(path).read_text(encoding="utf-8") for path in listed if path.startswith(PACKAGES)})
    large = structs.large(MOST_FIELDS)
    assert {struct: len(fields) for struct, fields in large.items()} == LARGE, "cut it by who reads which fields"
    assert [read.function for read in structs.reads(large, MOST_FIELDS)] == READ_WHOLE, "pass it the part that it reads"


SHAPES = """
from typing import ClassVar

class Sized:
    width: int

class Box(Sized):
    sides: ClassVar[int] = 6
    height: int
    lid: "Box | None"

    def copy(self): ...
    def volume(self): return self.width * self.height * self.copy().depth
"""
SHELF = """
from shop.shapes import Box
from collections.abc import Sequence

class Shelf:
    def __init__(self, boxes: list[Box]):
        self._boxes = {0: boxes}

    def widths(self):
        return [box.width for box in self._boxes[0]] + [lid.height for box in self._boxes.values() if (lid := box.lid)]

def largest(shelf: Shelf) -> Box: ...
def rows(shelf): return [row.width for row in shelf]

def area(shelf: Shelf, other: Sequence[int]):
    if True:
        box = largest(shelf)
    def height(): return box.height
    return box.width * height() * other.lid
"""


def test_fields_of_bases_count_and_those_of_the_class_itself_do_not() -> None:
    structs = Structs({"shop/shapes.py": SHAPES})
    assert structs.large(1) == {"shop/shapes.py::Box": {"width", "height", "lid"}}
    assert structs.large(3) == {}


def test_reads_are_followed_through_annotations_attributes_loops_and_results() -> None:
    structs = Structs({"shop/shapes.py": SHAPES, "shop/shelf.py": SHELF})
    box = "shop/shapes.py::Box"
    assert structs.reads(structs.large(2), 1) == [
        Read("shop/shapes.py::Box.volume", box, frozenset({"width", "height"})),
        Read("shop/shelf.py::Shelf.widths", box, frozenset({"width", "height", "lid"})),
        Read("shop/shelf.py::area", box, frozenset({"width", "height"})),
    ]
    assert [read.function for read in structs.reads(structs.large(2), 2)] == ["shop/shelf.py::Shelf.widths"]
