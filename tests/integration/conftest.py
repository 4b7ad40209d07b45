"""The commands over a tiny world, whose runs share compiled steps."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from realm_jax.training import trainer
from realm_jax.training.compiled_steps import CompiledSteps, StepSetup
from realm_jax.training.encoder_inputs import PackingLayout
from tests.integration.commands import Commands


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
  """Runs of this process that differ in MODEL_DIR alone compile one step."""
  programs: dict[str, dict[Any, Any]] = {}

  class Shared(CompiledSteps):
    def __init__(self, setup: StepSetup, layout: PackingLayout):
      super().__init__(setup, layout)
      config = dataclasses.replace(setup.config, model_dir="")
      stage = setup.number, layout
      settings = repr((config, setup.mesh, setup.num_blocks, stage))
      # A run that freezes the retriever may need another one after a restart.
      if not config.optimizer.freeze_retriever_steps:
        self.programs = programs.setdefault(settings, {})

    def compile(self, state: Any, batch: Any, searched: Any = None) -> None:
      if not self.programs or searched is not None:
        super().compile(state, batch, searched)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(trainer, "CompiledSteps", Shared)
    yield


@pytest.fixture(scope="session")
def commands(world) -> Commands:
  return Commands(world)
