"""Checkpoints of a tiny retriever, and generations that are built of them."""

import dataclasses
import functools
import threading

import flax
import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.build import GenerationConfig
from realm_jax.generations.sidecar import SidecarConfig, build_index
from realm_jax.indexes.exact import ExactConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever

_BERT = BertConfig(
  hidden_size=16,
  num_layers=1,
  num_heads=2,
  intermediate_size=32,
  max_positions=64,
)
RETRIEVER = Retriever(_BERT, projection_size=8, shared_towers=False)
# As many as the corpus of these tests has blocks.
_ROWS_AT_ONCE = 150
_SETTINGS = {
  "tokens_per_batch": 2048,
  "num_lengths": 2,
  "query_length": 16,
  "recall_queries": 32,
  "recall_at": (8, 1000),
}


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


@functools.cache
def _applied(retriever, method):
  return jax.jit(functools.partial(retriever.apply, method=method))


def embed(corpus, params, token_ids, method):
  """What the towers make of tokens, without any builder."""
  # One shape is compiled, however many rows there are.
  rows = np.zeros((_ROWS_AT_ONCE, token_ids.shape[1]), np.int32)
  rows[: len(token_ids)] = token_ids
  apply = _applied(retriever(corpus), method)
  return np.asarray(apply({"params": params}, rows))[: len(token_ids)]


def save(model_dir, corpus, *steps, generation=-1, keep=100):
  """Writes checkpoints as a trainer does."""
  store = CheckpointStore(model_dir, keep=keep)
  for step in steps:
    store.save(
      step,
      {
        "retriever": params_of(corpus, step),
        "loop": {"generation": np.int64(generation), "seed": np.int64(0)},
      },
    )
  store.close()


def generation_config(**settings):
  """Settings of generations of the tiny retriever."""
  defaults = {"retriever": RETRIEVER, "index": ExactConfig(), **_SETTINGS}
  return GenerationConfig(**(defaults | settings))


_OF_GENERATION = {field.name for field in dataclasses.fields(GenerationConfig)}


def build(model_dir, corpus, *, generations_dir=None, stop=None, **settings):
  """What `realm_jax.build_index --once` does, unless told otherwise."""
  own = {k: v for k, v in settings.items() if k in _OF_GENERATION}
  others = {k: v for k, v in settings.items() if k not in _OF_GENERATION}
  return build_index(
    model_dir=model_dir,
    corpus_dir=corpus.source,
    generation=generation_config(**own),
    generations_dir=generations_dir,
    sidecar=SidecarConfig(**{"once": True, "poll_seconds": 0.02} | others),
    stop=stop,
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


def follow_until_idle(model_dir, corpus, *, stop=None, **settings):
  """A sidecar, which is stopped once it has nothing to do."""
  return build_index(
    model_dir=model_dir,
    corpus_dir=corpus.source,
    generation=generation_config(),
    sidecar=SidecarConfig(**settings),
    stop=stop or StopAfterWaits(),
  )
