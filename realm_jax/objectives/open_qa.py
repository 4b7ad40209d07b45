"""The open-QA loss of ORQA (section 5): retriever beam and reader beam."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from realm_jax.models import AnyArray
from realm_jax.objectives.weighted import Average, WeightedLoss


def marginal_log_likelihood(
  scores: Float[Array, "b n"],
  correct: Bool[AnyArray, "b n"],
  allowed: Bool[AnyArray, "b n"],
  *,
  best_alone: bool = False,
) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
  """Returns the log probability of the correct choices among the allowed.

  With `best_alone`, it is that of the best correct choice instead of all.

  Returns:
    The log likelihood, 0 where nothing is correct, and whether anything is.

  Example:
    >>> scores = jnp.log(jnp.array([[1.0, 2.0, 1.0]]))
    >>> correct = jnp.array([[True, True, False]])
    >>> log_p, found = marginal_log_likelihood(scores, correct, correct | True)
    >>> print(jnp.exp(log_p), found)
    [0.75] [ True]
  """
  correct = correct & allowed
  any_correct = jnp.any(correct, axis=-1)
  # Where nothing is correct, or allowed at all (no block has a body), the
  # gradient must be 0 and not NaN.
  denominator_mask = allowed | ~any_correct[:, None]
  numerator_mask = jnp.where(any_correct[:, None], correct, denominator_mask)

  def log_sum(mask: Bool[AnyArray, "b n"]) -> Float[Array, " b"]:
    return jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), axis=-1)

  if best_alone:
    numerator = jnp.max(jnp.where(numerator_mask, scores, -jnp.inf), axis=-1)
  else:
    numerator = log_sum(numerator_mask)
  log_likelihood = numerator - log_sum(denominator_mask)
  return log_likelihood * any_correct.astype(jnp.float32), any_correct


def open_qa_loss(
  retriever_scores: Float[Array, "b n"],
  has_answer: Bool[AnyArray, "b n"],
  span_logits: Float[Array, "b k l w"],
  is_span: Bool[Array, "b k l w"],
  is_answer: Bool[AnyArray, "b k l w"],
  *,
  hard_em: bool = False,
) -> WeightedLoss:
  """Returns the retriever's loss over n blocks plus the reader's over spans.

  L = −log Σ_{z with an answer} p(z|x) − log Σ_{spans that match} p(span|x),
  where a span's score is its logit plus its block's retriever score, and both
  terms are 0 for an example with nothing correct. The loss and all metrics
  are means over the examples.

  With `hard_em`, the reader's term takes the correct span that is most likely
  now instead of the sum: −log max p(span|x) (Min et al. 2019, arXiv
  1909.04849). The retriever's term remains the sum.

  `retriever_scores` are f(x, z) of the retrieved blocks, best first. Spans are
  those of the first k of these; the ones outside of a body have no `is_span`.

  Example:
    >>> has_answer = jnp.array([[False, True]])
    >>> is_answer = has_answer[..., None, None]  # One span in each block.
    >>> spans = 2.0 * is_answer, is_answer | True, is_answer
    >>> loss = open_qa_loss(jnp.zeros((1, 2)), has_answer, *spans)
    >>> for name in ("retriever_loss", "reader_loss"):
    ...   print(name, loss.metrics[name].mean)
    retriever_loss 0.693
    reader_loss 0.127
  """
  num_read = span_logits.shape[1]
  retriever_likelihood, retriever_found = marginal_log_likelihood(
    retriever_scores, has_answer, jnp.ones_like(has_answer)
  )
  span_scores = span_logits + retriever_scores[:, :num_read, None, None]
  retriever_loss = Average.of(-retriever_likelihood)
  reader = span_loss(span_scores, is_span, is_answer, hard_em=hard_em)
  return WeightedLoss(
    reader.loss._replace(total=retriever_loss.total + reader.loss.total),
    {
      "retriever_loss": retriever_loss,
      "recall_searched": Average.of(retriever_found),
      **reader.metrics,
    },
  )


def span_loss(
  span_scores: Float[Array, "b k l w"],
  is_span: Bool[Array, "b k l w"],
  is_answer: Bool[AnyArray, "b k l w"],
  *,
  hard_em: bool = False,
) -> WeightedLoss:
  """Returns the reader's part of the loss: −log Σ_{spans that match} p(span|x).

  It is 0 for an example without a span that matches. `hard_em` is that of
  `open_qa_loss`.

  Example:
    >>> scores = jnp.log(jnp.array([[[[1.0], [3.0]]]]))  # [b, k, l, w]
    >>> is_answer = jnp.array([[[[False], [True]]]])
    >>> loss = span_loss(scores, is_answer | True, is_answer)
    >>> jnp.exp(-loss.loss.mean)
    Array(0.75, dtype=float32)
  """
  batch = len(span_scores)
  scores = span_scores.reshape(batch, -1)
  correct = (is_answer & is_span).reshape(batch, -1)
  allowed = is_span.reshape(batch, -1)
  likelihood, any_correct = marginal_log_likelihood(
    scores, correct, allowed, best_alone=hard_em
  )
  best = jnp.argmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
  is_correct = jnp.take_along_axis(correct, best[:, None], axis=-1)[:, 0]
  loss = Average.of(-likelihood)
  return WeightedLoss(
    loss,
    {
      "reader_loss": loss,
      "recall_read": Average.of(any_correct),
      "span_accuracy": Average.of(is_correct),
    },
  )
