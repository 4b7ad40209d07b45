"""A page's service over the tiny world, whose two heads are both random."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.explaining.explainer import (
  Explainer,
  ExplainingConfig,
  load_explainer,
)
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.serving.service import SENTENCE, Service
from tests import tiny_world


@pytest.fixture(scope="session")
def served_run(world) -> Path:
  """Checkpoint 0 with random parameters, and its index."""
  run = world.directory / "served"
  world.save_checkpoint(run, generation=0)
  world.build_generation(run)
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
    config = ExplainingConfig(num_candidates=6)
    return load_explainer(source=source, config=config)

  return explainer


@pytest.fixture(scope="module")
def explainer(load, one_device) -> Explainer:
  return load()


@pytest.fixture(scope="module")
def service(explainer) -> Service:
  return Service(explainer, examples={SENTENCE: ["Ada was born in [MASK]."]})


@pytest.fixture(scope="session")
def edited_world(world, tmp_path_factory) -> Callable[[dict[int, str]], Corpus]:
  """`edited_world(texts)` builds a corpus in which documents are edited."""

  def build(texts: dict[int, str]) -> Corpus:
    articles = [
      {**article, "text": texts.get(number, article["text"])}
      for number, article in enumerate(tiny_world.documents())
    ]
    corpus_dir = tiny_world.write_corpus(
      tmp_path_factory.mktemp("edited"),
      articles,
      vocab=world.directory / "vocab.txt",
    )
    return Corpus.open(corpus_dir)

  return build
