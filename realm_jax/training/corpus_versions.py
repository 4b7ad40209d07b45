"""Which version of the corpus a run reads, and which it searches.

Its examples come from the version that it began with, for as long as it runs,
so that their order stays. Each generation is searched in the version that it
was built on. Ids of blocks, not rows, go from one to the other.
"""

import contextlib

from etils import epath
from jax.sharding import Mesh

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation, load_generation
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.training.resume import recorded_corpus


def corpus_of_run(
  model_dir: epath.PathLike, corpus_dir: epath.PathLike
) -> Corpus:
  """The version that a run began with; the newest, for one that begins.

  Raises:
    CorpusError: there is no corpus, or the version is gone.
    CheckpointError: the run is of another vocabulary, or its checkpoint
      cannot be read.
  """
  newest = Corpus.open(corpus_dir)
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    steps = store.steps()
    if not steps or "loop" not in store.items(steps[-1]):
      return newest
    require_vocabulary(store, steps[-1], newest.vocab_sha256)
    version, fingerprint = recorded_corpus(store, steps[-1])
  try:
    return newest.at(version, fingerprint)
  except CorpusError as error:
    raise CheckpointError(
      f"{store.directory}/{steps[-1]} reads its examples from version "
      f"{version} of the corpus, and could not go on as it was: {error}. Put "
      "that version back, or give another MODEL_DIR and this one as "
      "INITIAL_CHECKPOINT"
    ) from error


def load_for_run(
  generations_dir: epath.PathLike,
  step: int,
  *,
  corpus: Corpus,
  num_searched: int,
  mesh: Mesh,
  index: IndexConfig | None = None,
) -> Generation:
  """Loads the generation of a step for a run.

  Args:
    generations_dir: where generations lie.
    step: which.
    corpus: the run's; the generation's may be another version of it.
    num_searched: blocks that each query of the run wants.
    mesh: of the run.
    index: another index to search it with; None takes its own.

  Raises:
    GenerationError: it is missing, damaged, of another corpus, or too small.
  """
  generation = load_generation(
    generations_dir,
    step,
    corpus=corpus,
    mesh=mesh,
    index=index,
    low_priority=True,
    separate_process=True,
  )
  if generation.num_blocks < num_searched:
    raise GenerationError(
      f"generation {step} has {generation.num_blocks} blocks since version "
      f"{generation.corpus.version} of the corpus, and every query of this run "
      f"searches for {num_searched}: add blocks, or start a run with fewer "
      "(NUM_CANDIDATES or NUM_SEARCHED)"
    )
  return generation
