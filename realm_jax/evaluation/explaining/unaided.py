"""A masked language model without retrieval, to compare with."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.core import meta
from jax.sharding import Mesh
from scipy.special import log_softmax

from realm_jax.checkpoints.store import CheckpointError, locate
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.explaining import fillings as best
from realm_jax.evaluation.explaining import programs
from realm_jax.evaluation.explaining.masked_text import MaskLimits, masked_query
from realm_jax.evaluation.explaining.results import Filling, Unaided
from realm_jax.evaluation.trained_model import whole_batch
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.partitioning import sharding
from realm_jax.storage.access import require_readable
from realm_jax.text.wordpieces import WordpieceVocabulary

_VOCABULARY = "vocab.txt"


class UnaidedModel:
  """Fills in sentences by BERT alone, which reads `[CLS] x [SEP]`.

  It has a vocabulary of its own, by which it reads sentence and answer.

  Args:
    model_dir: Directory of its run.
    step: Step of its checkpoint.
    reader: Reader, of which the masked-LM head is used.
    params: Parameters of the reader.
    words: Vocabulary.
    limits: Lengths of what it reads.
    mesh: Mesh of the devices that hold the parameters.
  """

  def __init__(
    self,
    model_dir: epath.Path,
    step: int,
    reader: Reader,
    params: Params,
    words: WordpieceVocabulary,
    limits: MaskLimits,
    mesh: Mesh,
  ):
    self.model_dir, self.step = model_dir, step
    self._words, self._limits = words, limits
    self._mesh, self._params = mesh, params
    self._logits = sharding.jit_on_mesh(
      programs.unaided_logits,
      reader,
      mesh=self._mesh,
    )

  def fill(self, text: str, answer: str | None, num_fillings: int) -> Unaided:
    """Fills in a sentence; an answer is for its one place to fill in.

    Raises:
      ExplanationError: The sentence or the answer does not fit this model.
    """
    masked = masked_query(text, answer, self._words, self._limits)
    rows = whole_batch(1)
    query = masked.query(self._words, self._limits.query_length)
    positions = masked.mask_positions(self._limits.max_masks)
    batch = {
      "query": np.tile(query, (rows, 1)),
      "positions": np.tile(positions, (rows, 1)),
    }
    logits = self._logits(
      self._params, **sharding.to_devices(batch, self._mesh)
    )
    log_probs = log_softmax(
      np.asarray(logits, np.float64)[:1, : masked.num_masks], axis=-1
    )
    log_likelihood = None
    if masked.target_ids is not None:
      by_token = best.log_likelihoods(log_probs, np.array([masked.target_ids]))
      log_likelihood = float(by_token.sum())
    found = best.best_fillings(np.zeros(1), log_probs, num_fillings)
    return Unaided(
      model_dir=str(self.model_dir),
      checkpoint=self.step,
      wordpieces=[self._words.pieces[i] for i in masked.target_ids or ()],
      log_likelihood=log_likelihood,
      fillings=[
        Filling(
          masked.filling_text(self._words, token_ids.tolist()),
          float(np.exp(log_probability)),
        )
        for token_ids, log_probability in zip(
          found.token_ids, found.log_probabilities, strict=True
        )
      ],
    )


def load_unaided(
  *,
  model_dir: epath.PathLike,
  reader: Reader,
  corpus: Corpus,
  limits: MaskLimits,
  mesh: Mesh,
) -> UnaidedModel:
  """Loads the reader of a run as a masked language model.

  Its vocabulary is `vocab.txt` in its directory, which an import writes, or
  else that of the corpus.

  Args:
    model_dir: MODEL_DIR of a run of reading or of an import, or a checkpoint.
    reader: Its reader.
    corpus: Corpus whose vocabulary it has unless it brings its own.
    limits: Lengths of what it reads.
    mesh: Mesh of this process's devices.

  Raises:
    CheckpointError: There is no such checkpoint, it has no reader, or it was
      trained over another vocabulary.
  """
  require_readable(model_dir)
  store, step = locate(model_dir)
  with contextlib.closing(store):
    own = store.directory.parent / _VOCABULARY
    if own.exists():
      words = WordpieceVocabulary(own)
    else:
      words = corpus.vocabulary
    try:
      store.require_vocabulary(step, words.sha256)
    except CheckpointError as error:
      raise CheckpointError(
        f"{error}; or put the vocabulary that it was trained with into {own}"
      ) from error
    reader = reader.for_vocabulary(
      vocab_size=words.vocab_size, separator_id=words.sep_id
    )
    abstract = jax.eval_shape(
      functools.partial(_init, reader, limits.query_length)
    )
    like = {"reader": sharding.abstract_replicated(meta.unbox(abstract), mesh)}
    params = store.restore(step, items=("reader",), like=like)["reader"]
    return UnaidedModel(
      store.directory.parent, step, reader, params, words, limits, mesh
    )


def _init(reader: Reader, query_length: int) -> Params:
  query = jnp.ones((1, query_length), jnp.int32)
  variables = reader.init(
    jax.random.key(0), query, query[:, None], query[:, :1]
  )
  return variables["params"]
