"""Where the masked words of sentences stand in the blocks that are read.

A reader that also learns to point at them, beside filling them in, needs fewer
questions later, because BERT's pre-training does not train the span head. It
costs little: the encoder runs once for both.
"""

import numpy as np
from jaxtyping import Int

from realm_jax.models.reader import Reader
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.training.batches import MaskTargets, SpanTargets
from realm_jax.training.stages.model_inputs import JointRows


def masked_spans(
  joint: JointRows, masks: MaskTargets, *, num_starts: int, max_width: int
) -> SpanTargets:
  """Finds the masked tokens of each query in the bodies of its blocks.

  They count where they occur in the same order, one after the other, as the
  masked tokens of one salient span do.

  Args:
    joint: Joint inputs, ordered by query, then candidate.
    num_starts: Number of tokens of a body at which a span may start.
    max_width: Number of tokens of the longest span.
  """
  is_answer = np.zeros((*joint.body_start.shape, num_starts, max_width), bool)
  tokens = joint.rows.token_ids.reshape(*joint.body_start.shape, -1)
  for query, starts in enumerate(joint.body_start):
    bodies = [
      tokens[query, block, start : start + joint.body_length[query, block]]
      for block, start in enumerate(starts.tolist())
    ]
    offsets = np.cumsum([0, *map(len, bodies)])
    size = int(masks.weights[query].sum())
    if size > max_width:
      continue
    answer = masks.token_ids[query, :size].tolist()
    spans = find_token_spans(np.concatenate(bodies), offsets, [answer])
    is_answer[query, spans.block, spans.start, spans.width - 1] = True
  return SpanTargets(joint.body_start, joint.body_length, is_answer)


def no_spans(
  joint: JointRows, candidates: Int[np.ndarray, "b k l"], *, max_width: int
) -> SpanTargets:
  """Returns targets of the same shapes and types, without an answer."""
  is_answer = np.zeros((*candidates.shape, max_width), bool)
  return SpanTargets(joint.body_start, joint.body_length, is_answer)


def require_width(reader: Reader, max_width: int, stage: str) -> None:
  """Raises a ValueError unless a stage's widest span is the reader's."""
  if reader.max_answer_width != max_width:
    raise ValueError(
      f"Reader.max_answer_width={reader.max_answer_width}, but "
      f"{stage}.max_answer_width={max_width}; bind both to the same"
    )
