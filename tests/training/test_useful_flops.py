"""Useful arithmetic is what the mathematics needs, by hand and by the jaxpr."""

import dataclasses

import jax
import numpy as np
import pytest

from realm_jax.models.bert import BertConfig
from realm_jax.precompilation.jaxpr_arithmetic import flops
from realm_jax.training import useful_flops
from realm_jax.training.packing.packer import padded
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.protocol import ExampleArrays
from tests.training import tiny


def test_an_encoder_counts_tokens_and_their_pairs():
  bert = BertConfig(
    hidden_size=4, num_layers=3, num_heads=2, intermediate_size=5
  )
  lengths = np.array([2, 0, 3])
  # Four projections of 4 × 4 and two of 4 × 5 for 5 tokens; scores and sums
  # over 4 dimensions for 2 × 2 and 3 × 3 pairs.
  layer = 2 * 5 * (4 * 16 + 2 * 20) + 4 * (4 + 9) * 4
  assert (
    useful_flops.encoder_flops(bert, lengths, first_only=False) == 3 * layer
  )
  # In the last layer keys and values of 5 tokens, the rest of 2.
  last = 2 * 5 * 2 * 16 + 2 * 2 * (2 * 16 + 2 * 20) + 4 * 5 * 4
  found = useful_flops.encoder_flops(bert, lengths, first_only=True)
  assert found == 2 * layer + last


@pytest.mark.parametrize("stage", tiny.STAGES)
def test_a_padded_step_of_full_sequences_computes_little_else(stage: str):
  models = Models(*tiny.models())
  stage_of_test = tiny.OF_STAGE[stage]
  if stage == "open_qa":
    stage_of_test = dataclasses.replace(
      stage_of_test, max_answer_width=tiny.WIDTH
    )
  arrays = ExampleArrays(
    query=np.zeros((tiny.BATCH, tiny.QUERY), np.int32),
    candidates=np.zeros(
      (tiny.BATCH, stage_of_test.num_candidates, tiny.BLOCK), np.int32
    ),
    num_searched=tiny.SEARCHED,
    max_masks=tiny.MASKS,
  )
  example = stage_of_test.example(arrays, ModelInputs(models))
  lengths = useful_flops.sequence_lengths(example, full=True)
  work = useful_flops.step_work(models, example, lengths)
  params = jax.eval_shape(
    lambda: jax.tree.map(
      lambda x: x.value if hasattr(x, "value") else x,
      tiny.init(stage, jax.random.key(0)),
      is_leaf=lambda x: hasattr(x, "value"),
    )
  )

  def loss(params, batch):
    return tiny.loss(stage)(params, batch, None).loss.mean

  made = jax.make_jaxpr(jax.grad(loss))(params, padded(example))
  share = work.flops / flops(made.jaxpr)
  # Open QA does not train the block tower, which it does not run either.
  assert 0.85 < share <= 1.02
  assert work.tokens == sum(map(np.sum, lengths.values()))


def test_lengths_of_a_corpus_count_tokens_alone():
  models = Models(*tiny.models())
  arrays = tiny.arrays("inverse_cloze")
  batch = tiny.OF_STAGE["inverse_cloze"].example(
    ExampleArrays(arrays["query"], arrays["block"][:, None], 0, 0),
    ModelInputs(models),
  )
  lengths = useful_flops.sequence_lengths(batch, full=False)
  assert lengths["queries"].tolist() == (arrays["query"] > 0).sum(1).tolist()
  assert lengths["blocks"].tolist() == (arrays["block"] > 0).sum(1).tolist()
