"""A span reader that also predicts whether a path has the answer."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.models import sequences
from realm_jax.models.bert import dense
from realm_jax.models.reader import BertReader, JointInputs, Spans


class PathReader(BertReader):
  """Reads each path as one block (Asai et al. 2020, section 3.2).

  P(answer in path z | x) = sigmoid(w · BERT_[CLS](x, z) + b).
  """

  def setup(self) -> None:
    super().setup()
    self.path_head = dense(self.bert, 1, ("embed", "label"), "path_head")

  def paths_and_spans(
    self, inputs: JointInputs, *, num_starts: int
  ) -> tuple[Float[Array, "b k"], Spans]:
    """Returns the logits of the paths, and the spans of each path."""
    joint = inputs.sequences
    hidden = self.encoder(joint)
    places = jnp.zeros((joint.starts.size, 1), jnp.int32)
    first = sequences.gather(joint, hidden, places)[:, 0]
    logits = self.path_head(first).astype(jnp.float32)
    spans = super().spans(inputs, hidden, num_starts=num_starts)
    return logits.reshape(inputs.body_start.shape), spans

  def spans(
    self,
    inputs: JointInputs,
    hidden: Float[Array, "r l d"] | None = None,
    *,
    num_starts: int,
  ) -> Spans:
    """Returns the spans of the best path; spans of others are invalid."""
    del hidden
    scores, spans = self.paths_and_spans(inputs, num_starts=num_starts)
    has_words = spans.is_span.any(axis=(2, 3))
    best = jnp.argmax(jnp.where(has_words, scores, -jnp.inf), axis=1)
    is_best = jnp.arange(scores.shape[1])[None] == best[:, None]
    return spans._replace(is_span=spans.is_span & is_best[..., None, None])
