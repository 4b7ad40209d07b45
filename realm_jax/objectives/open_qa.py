"""The open-QA loss of ORQA (section 5): retriever beam and reader beam."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def marginal_log_likelihood(
  scores: Float[Array, "b n"],
  correct: Bool[Array, "b n"],
  allowed: Bool[Array, "b n"],
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
  """log of the probability of the correct among the allowed, and where it is.

  Returns:
    The log likelihood, 0 where nothing is correct, and 1.0 where something
    is.
  """
  correct = correct & allowed
  any_correct = jnp.any(correct, axis=-1)
  # Where nothing is correct, or allowed at all (no block has a body), the
  # gradient must be 0 and not NaN.
  denominator_mask = allowed | ~any_correct[:, None]
  numerator_mask = jnp.where(any_correct[:, None], correct, denominator_mask)

  def log_sum(mask):
    return jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), axis=-1)

  log_likelihood = log_sum(numerator_mask) - log_sum(denominator_mask)
  found = any_correct.astype(jnp.float32)
  return log_likelihood * found, found


def open_qa_loss(
  retriever_scores: Float[Array, "b n"],
  has_answer: Bool[Array, "b n"],
  span_logits: Float[Array, "b k l w"],
  is_span: Bool[Array, "b k l w"],
  is_answer: Bool[Array, "b k l w"],
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Retriever loss over n blocks, reader loss over the spans of the first k.

  L = −log Σ_{z with an answer} p(z|x) − log Σ_{spans that match} p(span|x),
  where a span's score is its logit plus its block's retriever score and both
  are 0 for an example with nothing correct.

  Args:
    retriever_scores: f(x, z) of the retrieved blocks, best first.
    has_answer: whether a block's text contains an answer.
    span_logits: of the spans of the first k of those blocks.
    is_span: which spans exist.
    is_answer: which spans match an answer.

  Returns:
    The loss and the metrics.
  """
  batch, num_read = span_logits.shape[:2]
  retriever_likelihood, retriever_found = marginal_log_likelihood(
    retriever_scores, has_answer, jnp.ones_like(has_answer)
  )
  span_scores = span_logits + retriever_scores[:, :num_read, None, None]
  flat_scores = span_scores.reshape(batch, -1)
  flat_answer = (is_answer & is_span).reshape(batch, -1)
  flat_allowed = is_span.reshape(batch, -1)
  reader_likelihood, reader_found = marginal_log_likelihood(
    flat_scores, flat_answer, flat_allowed
  )
  retriever_loss = -jnp.mean(retriever_likelihood)
  reader_loss = -jnp.mean(reader_likelihood)
  best = jnp.argmax(jnp.where(flat_allowed, flat_scores, -jnp.inf), axis=-1)
  is_correct = jnp.take_along_axis(flat_answer, best[:, None], axis=-1)
  loss = retriever_loss + reader_loss
  return loss, {
    "loss": loss,
    "retriever_loss": retriever_loss,
    "reader_loss": reader_loss,
    "recall_searched": jnp.mean(retriever_found),
    "recall_read": jnp.mean(reader_found),
    "span_accuracy": jnp.mean(is_correct),
  }
