"""A generation some of whose blocks are edited in memory."""

import dataclasses
import functools
from collections.abc import Mapping, Set

import numpy as np
from jaxtyping import Float32, Int

from realm_jax.evaluation.trained_model import TrainedModel, whole_batch
from realm_jax.generations.loading import Generation
from realm_jax.models.retriever import embed_blocks
from realm_jax.partitioning import sharding
from realm_jax.serving.edited_corpus import EditedBlock, EditedCorpus
from realm_jax.serving.edited_index import EditedIndex

# Vectors of edited texts that are remembered.
_MAX_VECTORS = 1024


@dataclasses.dataclass(frozen=True)
class EditedGeneration(Generation):
  """A generation with the vectors of edited blocks over its own."""

  edited_vectors: Mapping[int, Float32[np.ndarray, " d"]]

  def vectors(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    stored = super().vectors(rows)
    for row, vector in self.edited_vectors.items():
      stored[np.asarray(rows) == row] = vector
    return stored


class BlockEditor:
  """Makes generations in which blocks are edited, or hidden from searches.

  Edited texts are embedded by the block tower of the checkpoint. In a run of
  open QA that is the generation's own, unless the index is refreshed; in
  pre-training the vector decides only whether the block becomes a candidate,
  whose score is computed afresh.

  Args:
    model: Checkpoint whose block tower embeds.
    generation: Generation as it was published, which stays as it is.
  """

  def __init__(self, model: TrainedModel, generation: Generation):
    self._model, self._generation = model, generation
    self._embed = sharding.jit_on_mesh(
      embed_blocks,
      model.models.retriever,
      mesh=model.mesh,
      out_shardings=sharding.replicated(model.mesh),
    )
    self._edited = functools.lru_cache(_MAX_VECTORS)(self._edit)

  @property
  def can_edit(self) -> bool:
    """Whether the index has vectors, so that blocks can be edited."""
    return self._generation.index.needs_vectors

  def generation(
    self, texts: Mapping[int, str], *, hidden: Set[int] = frozenset()
  ) -> Generation:
    """Returns the generation with other texts in some rows.

    Args:
      texts: Text of the body by row.
      hidden: Rows that no search finds.

    Raises:
      EditError: A text does not fit, or the index has no vectors.
    """
    own = self._generation
    # Refuses an index without vectors before anything is embedded.
    EditedIndex(own.index, dict.fromkeys(texts, np.zeros(0, np.float32)))
    edited = {row: self._edited(row, text) for row, text in texts.items()}
    vectors = {row: vector for row, (_, vector) in edited.items()}
    blocks = {row: block for row, (block, _) in edited.items()}
    fields = {f.name: getattr(own, f.name) for f in dataclasses.fields(own)}
    return EditedGeneration(
      **fields
      | {
        "corpus": EditedCorpus(own.corpus, blocks),
        "index": EditedIndex(own.index, vectors, hidden),
        "edited_vectors": vectors,
      }
    )

  def _edit(
    self, row: int, text: str
  ) -> tuple[EditedBlock, Float32[np.ndarray, " d"]]:
    """Returns the block of a text, and its vector as a generation stores it."""
    block = EditedBlock(self._generation.corpus, row, text)
    corpus = EditedCorpus(self._generation.corpus, {row: block})
    rows = np.full(whole_batch(1), row)
    tokens = corpus.gather(rows, self._model.source.block_length)
    on_devices = sharding.to_devices({"block": tokens}, self._model.mesh)
    params = self._model.params["retriever"]
    vector = np.asarray(self._embed(params, on_devices["block"]))[0]
    stored = vector.astype(self._generation.embeddings.dtype)
    return block, stored.astype(np.float32)
