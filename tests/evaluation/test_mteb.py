"""A run as an encoder of MTEB, by its protocol."""

import dataclasses

import numpy as np
import pytest

from realm_jax.api import LoadedRun
from realm_jax.evaluation.mteb import RunEncoder
from tests import tiny_world


@pytest.mark.slow
def test_queries_and_passages_have_the_vectors_of_the_run(run_config):
  run = LoadedRun.load(dataclasses.replace(run_config, reader=None))
  encoder = RunEncoder(run)
  questions = [one["question"] for one in tiny_world.questions()]
  blocks = [run.corpus.block(row) for row in range(run.corpus.num_blocks)]
  # Batches as a DataLoader gives them; `text` joins title and body.
  passages = [
    {
      "text": [f"{one.title} {one.text}" for one in part],
      "title": [one.title for one in part],
      "body": [one.text for one in part],
    }
    for part in (blocks[:5], blocks[5:])
  ]
  task = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
  queries, documents = (
    encoder.encode(batches, prompt_type=prompt_type, batch_size=5, **task)
    for batches, prompt_type in (
      ([{"text": [*questions, " "]}], "query"),
      (passages, "document"),
    )
  )
  np.testing.assert_allclose(queries[:-1], run.embed(questions), rtol=1e-5)
  stored = run.snapshot.vectors(np.arange(len(blocks)))
  np.testing.assert_allclose(documents, stored, rtol=1e-4, atol=1e-5)
  scores = encoder.similarity(queries, documents)
  assert not scores[-1].any()
  np.testing.assert_allclose(
    encoder.similarity_pairwise(queries[:2], documents[:2]),
    np.diagonal(scores)[:2],
    rtol=1e-5,
  )
  for own, found in zip(scores, run.retrieve(questions, k=1), strict=False):
    assert own.argmax() == found[0].block.row
  # A title may be missing, and a text longer than a block.
  long = {"text": ["bridge " * 500], "title": [None], "body": ["bridge " * 500]}
  (vector,) = encoder.encode([long], prompt_type="document", **task)
  assert np.isfinite(vector).all()
