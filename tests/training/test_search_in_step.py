"""Candidates found inside a program are those of the host's path."""

import functools

import jax
import numpy as np

from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.models.packing import content_numbers
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import search_in_step
from realm_jax.training.encoder_rows import (
  hash_words,
  with_null,
  without_source,
)
from realm_jax.training.search_in_step import load_blocks
from tests import tiny_world

_LENGTH = tiny_world.BLOCK_LENGTH
_BATCH, _SEARCHED, _KEPT = 8, 5, 3


def test_candidates_are_those_of_the_host(world):
  corpus = world.corpus
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(corpus.num_blocks, 8)).astype(np.float32)
  queries = rng.normal(size=(_BATCH, 8)).astype(np.float32)
  # Half of the queries have their best block as their source, and three of the
  # five that the first one finds are verbatim copies.
  best = np.argsort(-queries @ vectors.T, axis=1)
  hashes = corpus.content_hashes.copy()
  copies = best[0, [0, 1, 3]]
  hashes[copies] = hashes[copies[0]]
  vars(corpus)["content_hashes"] = hashes
  sources = hashes[best[:, 0]]
  sources[_BATCH // 2 :] = 1
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  index = ExactIndex(vectors, ExactConfig(), mesh=mesh)
  find = functools.partial(
    search_in_step.find_candidates,
    plan=index.plan(_SEARCHED, num_queries=_BATCH),
    num_kept=_KEPT,
    mesh=mesh,
  )
  found = jax.jit(find)(
    *sharding.to_devices((queries, hash_words(sources)), mesh),
    index.vectors,
    index.count,
    load_blocks(corpus, block_length=_LENGTH, mesh=mesh),
  )
  tokens = np.zeros((_BATCH, 1), np.int32)
  rows = index.search(QueryBatch(tokens, queries), _SEARCHED).rows
  is_source = hashes[rows] == sources[:, None]
  assert is_source.sum(axis=1).tolist() == [3, 1, 1, 1, 0, 0, 0, 0]
  kept = with_null(without_source(rows, is_source, num_kept=_KEPT))
  assert kept[0, -1] == -1
  expected = corpus.gather(kept, _LENGTH)
  np.testing.assert_array_equal(found.tokens, expected)
  np.testing.assert_array_equal(found.numbers, content_numbers(expected))
