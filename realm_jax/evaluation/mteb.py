"""A trained run as an encoder of MTEB 2 (Muennighoff et al. 2023).

It has the methods of `mteb.models.EncoderProtocol`. The library itself is
imported only for the description of the model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import ArrayLike

from realm_jax.api import LoadedRun
from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
from realm_jax.evaluation.encoding import block_tokens
from realm_jax.models.components import embed_blocks

# Columns by name: `text`, and for passages also `title` and `body`.
_Batch = Mapping[str, Sequence[Any]]


class RunEncoder:
  """Embeds queries and passages with the towers of a run.

  Inner products of the vectors give the run's ranking. A passage has a single
  vector, and is truncated to the length of a block. Raises a `RealmError` if
  the run has no towers.
  """

  def __init__(self, run: LoadedRun):
    run.embed([])
    self._run = run

  def encode(
    self, inputs: Iterable[_Batch], *, prompt_type: str | None = None, **_: Any
  ) -> Float32[np.ndarray, "n d"]:
    """Returns the vectors of batches of texts, a row for each.

    With the `prompt_type` "document", the block tower embeds title and body as
    in a block; otherwise the query tower embeds the texts. A query without
    words that the vocabulary can spell gets a vector of zeros.
    """
    embed = self._passages if prompt_type == "document" else self._queries
    return np.concatenate([embed(batch) for batch in inputs])

  def _queries(self, batch: _Batch) -> np.ndarray:
    token_ids, refused = self._run.encode_each(batch["text"])
    vectors = np.array(self._run.embed_tokens(token_ids))
    vectors[[*refused]] = 0.0
    return vectors

  def _passages(self, batch: _Batch) -> np.ndarray:
    run, words = self._run, self._run.vocabulary
    bodies = batch.get("body", batch["text"])
    titles = batch.get("title", [""] * len(bodies))
    length = run.corpus.block_length
    token_ids = np.zeros((len(bodies), length), np.int32)
    room = length - NUM_SPECIAL_TOKENS
    for row, title, body in zip(token_ids, titles, bodies, strict=True):
      title = words.encode(title or "")[: room // 2]
      body = words.encode(body)[: room - len(title)]
      row[:] = block_tokens(words, title, body, length)
    retriever, params = run.components.retriever, run.params["retriever"]
    return run.compute(embed_blocks, retriever, params, token_ids=token_ids)

  def similarity(self, one: ArrayLike, two: ArrayLike) -> np.ndarray:
    """Returns all inner products."""
    return np.asarray(one) @ np.asarray(two).T

  def similarity_pairwise(self, one: ArrayLike, two: ArrayLike) -> np.ndarray:
    """Returns the inner product of each pair of rows."""
    return np.sum(np.asarray(one) * np.asarray(two), axis=-1)

  @property
  def mteb_model_meta(self) -> Any:
    """Description of the model, named after its MODEL_DIR."""
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    described = {"similarity_fn_name": ScoringFunction.DOT_PRODUCT}
    described["name"] = f"realm_jax/{self._run.model_dir.name}"
    described["revision"] = f"checkpoint-{self._run.step}"
    return ModelMeta.create_empty({**described, "framework": ["JAX"]})
