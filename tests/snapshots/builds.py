"""Checkpoints of a tiny retriever, and snapshots that are built of them."""

import functools
import threading

import flax
import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.indexes.exact import ExactConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.index_builder import IndexBuilderConfig, build_index

_BERT = BertConfig(
  hidden_size=16,
  num_layers=1,
  num_heads=2,
  intermediate_size=32,
  max_positions=64,
)
RETRIEVER = BertRetriever(_BERT, projection_size=8, shared_towers=False)


def retriever(corpus):
  """The towers, for the words of a corpus."""
  return RETRIEVER.for_vocabulary(vocab_size=corpus.vocab_size, separator_id=3)


@functools.cache
def _initial(retriever):
  """One initial value, compiled once; a step's parameters are drawn near."""
  tokens = jnp.zeros((1, 4), jnp.int32)
  boxed = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)["params"]
  return jax.device_get(flax.linen.unbox(boxed))


def params_of(corpus, step):
  """The parameters of a checkpoint, which its step draws."""
  rng = np.random.default_rng(step)
  return jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape).astype(x.dtype),
    _initial(retriever(corpus)),
  )


def embed(corpus, params, token_ids, method):
  """What the towers make of tokens, without any builder."""
  apply = functools.partial(retriever(corpus).apply, method=method)
  return np.asarray(jax.jit(apply)({"params": params}, token_ids))


def save(model_dir, corpus, *steps, keep=100, **loop):
  """Writes checkpoints as a trainer does."""
  store = CheckpointStore(model_dir, keep=keep)
  values = {"snapshots": [-1], "seed": 0, **loop}
  for step in steps:
    store.save(
      step,
      {
        "retriever": params_of(corpus, step),
        "loop": {name: np.array(value) for name, value in values.items()},
      },
    )
  store.close()


def snapshot_config(**settings):
  """Settings of snapshots of the tiny retriever."""
  defaults = {
    "retriever": RETRIEVER,
    "index": ExactConfig(),
    "tokens_per_batch": 2048,
    "num_lengths": 2,
    "query_length": 16,
    "recall_queries": 32,
    "recall_at": (8, 1000),
  }
  return SnapshotConfig(**(defaults | settings))


def build(model_dir, corpus, *, snapshots_dir=None, **settings):
  """What `realm_jax.build_index --once` does."""
  return build_index(
    model_dir=model_dir,
    corpus_dir=corpus.source,
    snapshots_dir=snapshots_dir,
    snapshot=snapshot_config(**settings),
    builder=IndexBuilderConfig(poll_seconds=0.02),
    once=True,
  )


class StopAfterWaits(threading.Event):
  """A stop event that is set at the n-th wait for something.

  Attributes:
    timeouts: How long each wait was to last.
    actions: Functions that waits call, one each.
  """

  def __init__(self, count=1, *, actions=()):
    super().__init__()
    self._count = count
    self.timeouts = []
    self._actions = list(actions)

  def wait(self, timeout=None):
    self.timeouts.append(timeout)
    if self._actions:
      self._actions.pop(0)()
    if len(self.timeouts) >= self._count:
      self.set()
    return self.is_set()
