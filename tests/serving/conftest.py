"""A page's service over the tiny world, whose two heads are both random."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_jax import configuration
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.explaining.explainer import (
  Explainer,
  ExplainingConfig,
  load_explainer,
)
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.files.kept_configuration import keep_configuration
from realm_jax.serving.service import SENTENCE, Service
from tests import tiny_world


def _keep_record(recipe: str, run: Path, corpus_dir: Path) -> None:
  """Keeps what `realm_jax.train` would of a recipe."""
  given = {"MODEL_DIR": "elsewhere", "CORPUS_DIR": str(corpus_dir)}
  if recipe == "open_qa":
    given["TRAIN_QUESTIONS"] = "train.jsonl"
  with configuration.parsed(
    [f"gin/runs/{recipe}.gin", "tests/integration/tiny.gin"],
    [f"{name} = {value!r}" for name, value in given.items()],
  ):
    keep_configuration(run, configuration.text())


@pytest.fixture(scope="session")
def served_run(world) -> Path:
  """Checkpoint 0 of open QA with random parameters, and its index."""
  run = world.directory / "served"
  world.save_checkpoint(run, generation=0)
  world.build_generation(run)
  _keep_record("open_qa", run, world.corpus_dir)
  return run


@pytest.fixture(scope="session")
def masked_run(world, served_run) -> Path:
  """The same checkpoint and index, as a run of pre-training."""
  run = world.directory / "masked"
  run.mkdir()
  for folder in ("checkpoints", "generations"):
    (run / folder).symlink_to(served_run / folder)
  _keep_record("pretrain", run, world.corpus_dir)
  return run


@pytest.fixture(scope="session")
def load(world, served_run) -> Callable[..., Explainer]:
  """`load(**changes)` loads an explainer, from another source if it says so."""

  def explainer(**changes) -> Explainer:
    given = {"model_dir": served_run, "corpus_dir": world.corpus_dir, **changes}
    source = ModelSource(
      retriever=tiny_world.RETRIEVER,
      reader=tiny_world.READER,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
      **given,
    )
    return load_explainer(source=source, config=ExplainingConfig())

  return explainer


@pytest.fixture(scope="module")
def explainer(load, one_device) -> Explainer:
  return load()


@pytest.fixture(scope="module")
def service(explainer) -> Service:
  return Service(explainer, examples={SENTENCE: ["Ada was born in [MASK]."]})


@pytest.fixture(scope="session")
def edited_world(world, tmp_path_factory) -> Callable[[dict[int, str]], Corpus]:
  """`edited_world(texts)` builds a corpus in which rows have other texts."""

  def build(texts: dict[int, str]) -> Corpus:
    corpus = world.corpus
    bodies: dict[str, list[str]] = {}
    for row in range(corpus.num_blocks):
      text = texts.get(row, corpus.body(row))
      bodies.setdefault(corpus.document_id(row), []).append(text)
    articles = [
      {**article, "text": " ".join(bodies[article["id"]])}
      for article in tiny_world.documents()
    ]
    corpus_dir = tiny_world.write_corpus(
      tmp_path_factory.mktemp("edited"),
      articles,
      vocab=world.directory / "vocab.txt",
    )
    return Corpus.open(corpus_dir)

  return build
