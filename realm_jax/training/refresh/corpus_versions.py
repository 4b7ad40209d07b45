"""Which corpus version a run reads, and which it searches.

Its examples come from the version that it began with, until it ends, so that
their order stays the same. They may come from another corpus than the one that
is searched (X and Z in the paper's section 3.4). Each generation is searched in
the version that it was built on. Block ids, not rows, identify blocks across
versions.
"""

import contextlib

from etils import epath
from jax.sharding import Mesh

from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation, load_generation
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.training.checkpointing import read_loop_item


def examples_of_run(
  model_dir: epath.PathLike, examples_dir: epath.PathLike
) -> Corpus:
  """Opens the version that a run began with, or the newest for a new run.

  Raises:
    CorpusError: There is no corpus, or the version was removed.
    CheckpointError: The run is of another vocabulary, or its checkpoint cannot
      be read.
  """
  newest = Corpus.open(examples_dir)
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    if not store.steps():
      return newest
    step = store.latest()
    store.require_vocabulary(step, newest.vocab_sha256)
    item = read_loop_item(store, step)
  version = int(item["corpus_version"])
  try:
    return newest.at(version, bytes(item["corpus_fingerprint"]).hex())
  except CorpusError as error:
    raise CheckpointError(
      f"{store.directory}/{step} reads its examples from version "
      f"{version} of the corpus, and cannot be continued exactly: {error}. "
      "Restore that version, or give another MODEL_DIR and this one as "
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
  reads_vectors: bool = True,
) -> Generation:
  """Loads the generation of a step, to be searched for so many blocks a query.

  It may be of another version of the run's corpus. Where an index is given, it
  replaces the generation's own. A stage that does not read the vectors itself
  leaves those unread that its index does not need.

  Raises:
    GenerationError: It is missing, damaged, of another corpus, or too small.
  """
  generation = load_generation(
    generations_dir,
    step,
    corpus=corpus,
    mesh=mesh,
    index=index,
    beside_training=True,
    reads_vectors=reads_vectors,
  )
  if generation.num_blocks < num_searched:
    raise GenerationError(
      f"generation {step} has {generation.num_blocks} blocks since version "
      f"{generation.corpus.version} of the corpus, and every query of this run "
      f"searches for {num_searched}: add blocks, or start a run with fewer "
      "(NUM_CANDIDATES or NUM_SEARCHED)"
    )
  return generation
