"""Which checkpoint and generation an evaluation takes, and what it refuses."""

import dataclasses
import shutil

import pytest
from etils import epath

from realm_jax.checkpoints.best import BestCheckpoint, write_best
from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus import CorpusError
from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.trained_model import (
  TrainedModel,
  load_model,
  whole_batch,
)
from realm_jax.generations.manifest import GenerationError
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.open_qa import OpenQa
from tests import tiny_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def load(source):
  """`load(**changes)` loads the run for open QA."""
  return lambda **changes: load_model(
    dataclasses.replace(source, **changes), OpenQa()
  )


@pytest.fixture(scope="module")
def two_steps(world, tmp_path_factory, load) -> TrainedModel:
  """Checkpoint 20, trained with generation 10; both generations stand."""
  model_dir = tmp_path_factory.mktemp("two_steps")
  world.save_checkpoint(model_dir, step=10, seed=1, generation=10)
  world.build_generation(model_dir)
  world.save_checkpoint(model_dir, step=20, seed=2, generation=10)
  world.build_generation(model_dir)
  return load(model_dir=model_dir)


def test_the_last_checkpoint_and_the_generation_it_names(two_steps):
  assert two_steps.step == 20
  assert open_generation(two_steps).step == 10


def test_an_earlier_checkpoint_by_number_or_by_path(two_steps, load):
  model_dir = two_steps.model_dir
  assert load(model_dir=model_dir, checkpoint_step=10).step == 10
  by_path = load(model_dir=model_dir / "checkpoints" / "10")
  assert (by_path.step, by_path.model_dir) == (10, model_dir)
  with pytest.raises(CheckpointError, match=r"no .* step 15.*10, 20"):
    load(model_dir=model_dir, checkpoint_step=15)


def test_the_checkpoint_that_an_evaluation_has_named(two_steps, load):
  model_dir = two_steps.model_dir
  write_best(model_dir, BestCheckpoint("exact_match", 10, 0.5))
  assert load(model_dir=model_dir, checkpoint_step="best").step == 10
  assert load(model_dir=model_dir).step == 20


def test_the_generation_that_was_used_is_gone(two_steps, tmp_path):
  shutil.copytree(
    two_steps.model_dir / "generations" / "00000020",
    tmp_path / "generations" / "00000020",
  )
  model = dataclasses.replace(two_steps, model_dir=epath.Path(tmp_path))
  with pytest.raises(GenerationError, match=r"wants generation 10.*\[20\]"):
    open_generation(model)


def test_a_generation_of_another_corpus(world, load, tmp_path):
  other = tmp_path / "other"
  build_corpus(
    [str(world.directory / "text.jsonl")],
    other,
    vocab=str(world.directory / "vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH // 2,
  )
  model = load(corpus_dir=other, block_length=tiny_world.BLOCK_LENGTH // 2)
  with pytest.raises(GenerationError, match="is of another corpus"):
    open_generation(model)


def test_a_run_that_has_no_reader(world, load, tmp_path):
  world.save_checkpoint(tmp_path, stage=InverseCloze())
  with pytest.raises(CheckpointError, match=r"has no reader.*eval_retrieval"):
    load(model_dir=tmp_path)


def test_a_vocabulary_of_another_size(world, load, tmp_path):
  vocabulary = tmp_path / "vocab.txt"
  vocabulary.write_text("\n".join([*tiny_world.pieces(), "more"]))
  build_corpus(
    [str(world.directory / "text.jsonl")],
    tmp_path / "corpus",
    vocab=str(vocabulary),
    block_length=tiny_world.BLOCK_LENGTH,
  )
  size = len(tiny_world.pieces()) + 1
  with pytest.raises(
    CheckpointError, match=rf"(?s)does not fit.*vocabulary.*{size} wordpieces"
  ):
    load(corpus_dir=tmp_path / "corpus")


@pytest.mark.parametrize("length", [39, 41])
def test_another_block_length_than_the_corpus_has(load, length):
  with pytest.raises(CorpusError, match=r"BLOCK_LENGTH=40"):
    load(block_length=length)


def test_batches_are_shared_by_the_devices():
  # The tests have eight.
  assert [whole_batch(n) for n in (1, 8, 9, 16)] == [8, 8, 16, 16]
