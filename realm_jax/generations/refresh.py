"""A partial refresh: which vectors are copied from an earlier generation."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.store import GenerationStore
from realm_jax.generations.vectors import Embeddings
from realm_jax.partitioning.agreement import Agreement


class KnownVectors(NamedTuple):
  """Vectors that need not be embedded, for the rows of a corpus.

  Attributes:
    rows: Row of each block among the vectors; `NULL_ROW` for a new block.
    gather: Function from rows of the vectors to these, in float32.
    steps: Function from rows to the steps that they were embedded with.
    base: Generation that they are of; None if a checkpoint or an import has
      them, of which all are copied.
  """

  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], Float[np.ndarray, "n d"]]
  steps: Callable[[np.ndarray], Int[np.ndarray, " n"]]
  base: Manifest | None = None


def checkpoint_vectors(
  checkpoints: CheckpointStore, step: int, corpus: Corpus
) -> KnownVectors | None:
  """Returns the vectors of all blocks, if a run kept its own index.

  Raises:
    CheckpointError: They cannot be read.
  """
  if not checkpoints.has_vectors_of(step, corpus.fingerprint):
    if "vectors" in checkpoints.items(step):
      logging.warning(
        "checkpoint %d has the vectors of another version of the corpus: all "
        "%d blocks are embedded",
        *(step, corpus.num_blocks),
      )
    return None
  item = checkpoints.restore(step, items=("vectors",))["vectors"]
  return KnownVectors(
    rows=np.arange(corpus.num_blocks, dtype=np.int32),
    gather=lambda rows: item["vectors"][rows].astype(np.float32),
    steps=lambda rows: item["steps"][rows],
  )


def known_vectors(
  store: GenerationStore,
  step: int,
  *,
  corpus: Corpus,
  model: str,
  dtype: str,
  agreement: Agreement,
) -> KnownVectors | None:
  """Returns the vectors of the newest generation, if they can be copied.

  It is of an earlier step, or of the same step on another version of the
  corpus: then only blocks that have changed are embedded. The `step`, `corpus`,
  `model` and `dtype` are those of the new generation. All processes of the
  agreement call this, and copy from the same one.
  """

  def newest() -> int | None:
    steps = [other for other in store.steps() if other <= step]
    if step in steps and (
      store.manifest(step).corpus_fingerprint == corpus.fingerprint
    ):
      steps.remove(step)
    return max(steps, default=None)

  def opened(step: int) -> KnownVectors:
    base = store.manifest(step)
    if (base.model, base.dtype) != (model, dtype):
      raise GenerationError(f"generation {step} is of another model or dtype")
    version = corpus.at(base.corpus_version, base.corpus_fingerprint)
    files = store.files(base)
    vectors = Embeddings.of(files, base)
    if files.is_copied:  # Then each is verified when it is copied.
      files.verify(vectors.paths(), checksums=False)
    else:
      files.get(vectors.paths())
    # Vectors follow from the text: a block with another one is another block.
    hashes = version.content_hashes
    order = np.argsort(hashes, kind="stable")
    place = np.searchsorted(hashes, corpus.content_hashes, sorter=order)
    found = order[np.minimum(place, len(hashes) - 1)]
    is_same = hashes[found] == corpus.content_hashes
    rows = np.where(is_same, found, NULL_ROW).astype(np.int32)
    return KnownVectors(rows, vectors.gather, vectors.steps, base)

  errors = GenerationError, CorpusError
  try:
    base = agreement.on_process_0("base", newest, errors)
    if base is not None:
      return agreement.on_all_processes(
        "vectors of the base", lambda: opened(base), errors
      )
  except errors as error:
    logging.warning("generation %d copies no vector: %s", step, error)
  logging.info("generation %d embeds every block", step)
  return None


def rows_to_embed(
  known: KnownVectors | None,
  *,
  step: int,
  costs: Int[np.ndarray, " N"],
  fraction: float | None = None,
  max_age_steps: int | None = None,
) -> tuple[Bool[np.ndarray, " N"], dict[str, float] | None]:
  """Chooses the rows to embed: new and overdue ones, then the oldest.

  They cost the `fraction` of all tokens, which `costs` has by row, or more
  where new and overdue rows alone do. All are embedded if the new ones do, and
  where no vectors are known. Returns whether each row is embedded, and the
  record of a partial refresh, if any.
  """
  if known is None:
    return np.ones(len(costs), bool), None
  chosen = known.rows == NULL_ROW
  if known.base is None or fraction is None:
    return chosen, None
  num_new, budget = int(chosen.sum()), fraction * costs.sum()
  if costs[chosen].sum() > budget:
    return np.ones(len(costs), bool), None
  interval = step - known.base.step
  if max_age_steps is None and interval:
    max_age_steps = round(interval / fraction)
  ages = np.zeros(len(costs), np.int64)
  ages[~chosen] = step - known.steps(known.rows[~chosen])
  if max_age_steps is not None:
    chosen |= ages > max_age_steps
  if interval:  # Otherwise the corpus alone has changed.
    # Without the shuffle, the first blocks would always be younger.
    rest = np.random.default_rng(step).permutation(np.flatnonzero(~chosen))
    rest = rest[np.argsort(-ages[rest], kind="stable")]
    fits = np.cumsum(costs[rest]) <= budget - costs[chosen].sum()
    chosen[rest[fits]] = True
  return chosen, {
    "base": known.base.step,
    "embedded_blocks": int(chosen.sum()),
    "embedded_share": round(float(costs[chosen].sum() / costs.sum()), 4),
    "new_blocks": num_new,
  }
