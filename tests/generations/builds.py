"""Checkpoints of a tiny retriever, and generations that are built of them."""

import contextlib
import functools
import threading
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.generations.build import sidecar as builder
from realm_jax.generations.build.artifacts import EmbeddingConfig
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
CONFIG = EmbeddingConfig(
  tokens_per_batch=2048,
  query_length=16,
  recall_queries=32,
  recall_at=(1, 8, 1000),
)


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
  apply = jax.jit(retriever(corpus).apply, static_argnames="method")
  return np.asarray(apply({"params": params}, token_ids, method=method))


def save(model_dir, corpus, *steps, generation=-1, keep=100):
  """Writes checkpoints as a trainer does."""
  store = CheckpointStore(model_dir, keep=keep, read_only=False)
  for step in steps:
    store.save(
      step,
      {
        "retriever": params_of(corpus, step),
        "loop": {"generation": np.int64(generation), "seed": np.int64(0)},
      },
    )
  store.close()


def build(model_dir, corpus, **settings):
  """What `realm_jax.build_index --once` does, unless told otherwise."""
  defaults = {"index": ExactConfig(), "config": CONFIG, "once": True}
  return builder.build_index(
    model_dir=model_dir,
    corpus_dir=corpus.directory,
    poll_seconds=0.02,
    **({"retriever": RETRIEVER} | defaults | settings),
  )


def build_until_idle(model_dir, corpus, **settings):
  """A sidecar, which is stopped once it has nothing to do."""
  idle = threading.Event()
  with (
    mock.patch.object(builder._Waiting, "say", lambda *_: idle.set()),
    mock.patch.object(
      builder, "stop_on_sigterm", lambda: contextlib.nullcontext(idle)
    ),
  ):
    return build(model_dir, corpus, once=False, **settings)
