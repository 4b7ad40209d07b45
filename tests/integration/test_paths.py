"""Paths of two articles: retriever, beam and reader, by their recipes."""

import dataclasses
from pathlib import Path

import pytest

import realm_jax
from realm_jax.errors import RealmError
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests import linked_world
from tests.integration.commands import MODEL_FILE, Commands, call
from tests.json_lines import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]
