"""`aio init` on machines with GPUs, by inventories of a fake NVML: catalogues that load and that the planner accepts."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.operations.cli import main
from gateway.operations.setup import card_inventory
from gateway.operations.setup.card_inventory import read_cards
from gateway.operations.setup.card_models import known_models
from gateway.operations.setup.card_plan import SEQUENCES
from gateway.telemetry.gpus import Gpus
from inference_core.device.spec import DeviceGroupSpec
from inference_core.loaders.hub_model import HubModel, Pin
from tests.gateway.telemetry.fake_nvml import FakeNvml
from tests.inference_core.tiny_hf import write_hf_folder
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import group_spec
from tiers.catalog.hardware_check import require_servable
from tiers.catalog.load import load_catalog
from tiers.catalog.providers import PROVIDERS
