"""Values of Hugging Face's embedder, scorer and knowledge-augmented encoder."""

import numpy as np
import torch
from transformers.models.realm.modeling_realm import (
  RealmEmbedder,
  RealmKnowledgeAugEncoder,
  RealmScorer,
)

from benchmarks.peers.hf_realm_random import RandomRealm
from benchmarks.peers.random_inputs import Tokens
from benchmarks.peers.tensors import as_inputs, gradients, randomize

_NOT_SCORED = -100  # A label that torch's cross entropy ignores.


def make_embedder(realm: RandomRealm) -> None:
  """Computes vectors of queries and blocks."""
  model = randomize(RealmEmbedder(realm.config))
  realm.save("embedder", model)
  queries = realm.queries()
  blocks = [*realm.blocks(4), realm.inputs.null_block]
  with torch.no_grad():
    query_vectors = model(**realm.bert_inputs(queries)).projected_score
    block_vectors = model(**realm.bert_inputs(blocks)).projected_score
  realm.expect(
    "embedder",
    query=realm.padded_queries(queries),
    block=realm.padded_candidates([blocks])[0],
    query_vectors=query_vectors,
    block_vectors=block_vectors,
  )


def make_two_towers(realm: RandomRealm) -> None:
  """Computes relevance with a separate embedder for queries."""
  model = RealmScorer(realm.config, RealmEmbedder(realm.config))
  randomize(model)
  realm.save("two_towers", model)
  queries, candidates = realm.queries(), realm.candidates()
  with torch.no_grad():
    relevance = _score(realm, model, queries, candidates)
  realm.expect(
    "two_towers",
    query=realm.padded_queries(queries),
    candidates=realm.padded_candidates(candidates),
    relevance=relevance,
  )


def make_scorer_and_encoder(realm: RandomRealm) -> None:
  """Computes REALM's loss, and the gradient of every parameter.

  The last mask of the last query is not scored, as in a sentence with fewer
  masks than others.
  """
  scorer = randomize(RealmScorer(realm.config))
  encoder = randomize(RealmKnowledgeAugEncoder(realm.config))
  realm.save("scorer", scorer, same=(r"query_embedder\..*",))
  realm.save("encoder", encoder)
  queries, candidates = realm.queries(), realm.candidates()
  positions, targets = _mask(realm, queries)
  weights = np.ones(positions.shape, np.float32)
  weights[-1, -1] = 0
  joint = _joint_inputs(realm, queries, candidates)
  labels = np.full((len(queries), joint["input_ids"].shape[-1]), _NOT_SCORED)
  for row, scored in enumerate(weights > 0):
    labels[row, positions[row, scored]] = targets[row, scored]
  relevance = _score(realm, scorer, queries, candidates)
  output = encoder(
    **joint,
    relevance_score=relevance,
    labels=torch.from_numpy(labels),
    mlm_mask=torch.from_numpy(labels != _NOT_SCORED),
  )
  output.loss.backward()
  logits = output.logits.detach().reshape(*joint["input_ids"].shape, -1)
  common = {
    "query": realm.padded_queries(queries),
    "candidates": realm.padded_candidates(candidates),
    "relevance": relevance,
    "loss": output.loss,
  }
  realm.expect("scorer", **common, **gradients(scorer))
  realm.expect(
    "encoder",
    **common,
    mask_positions=positions,
    mask_targets=targets,
    mask_weights=weights,
    logits=np.stack([logits[i][:, at] for i, at in enumerate(positions)]),
    **gradients(encoder),
  )


def _mask(
  realm: RandomRealm, queries: list[Tokens]
) -> tuple[np.ndarray, np.ndarray]:
  """Masks queries; returns the masks' positions and targets, [b, m]."""
  positions = np.stack(
    [
      np.sort(
        realm.inputs.rng.choice(
          np.arange(1, len(query) - 1), realm.sizes.masks, replace=False
        )
      )
      for query in queries
    ]
  )
  targets = np.take_along_axis(realm.padded_queries(queries), positions, axis=1)
  for query, places in zip(queries, positions, strict=True):
    for place in places:
      query[place] = realm.inputs.mask_id
  return positions, targets


def _joint_inputs(
  realm: RandomRealm, queries: list[Tokens], candidates: list[list[Tokens]]
) -> dict[str, torch.Tensor]:
  """Joins each query with the body of each of its candidates, [b, k, j]."""
  length = realm.sizes.query + realm.sizes.block
  joints = [
    realm.inputs.joint(query, block, length)
    for query, blocks in zip(queries, candidates, strict=True)
    for block in blocks
  ]
  shape = (len(queries), realm.sizes.candidates, -1)
  flat = realm.bert_inputs(joints)
  return {name: value.reshape(shape) for name, value in flat.items()}


def _score(
  realm: RandomRealm,
  model: RealmScorer,
  queries: list[Tokens],
  candidates: list[list[Tokens]],
) -> torch.Tensor:
  blocks = as_inputs(
    realm.inputs,
    [block for blocks in candidates for block in blocks],
    realm.sizes.block,
  )
  shape = (len(queries), realm.sizes.candidates, -1)
  return model(
    **realm.bert_inputs(queries),
    **{f"candidate_{k}": v.reshape(shape) for k, v in blocks.items()},
  ).relevance_score
