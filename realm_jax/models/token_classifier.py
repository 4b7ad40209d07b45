"""BERT with a label for each token, as taggers of named entities are."""

from flax import linen as nn
from jaxtyping import Array, Float

from realm_jax.models.bert import BertConfig, BertEncoder, dense
from realm_jax.models.sequences import Sequences


class TokenClassifier(nn.Module):
  """An encoder, and a linear layer over every hidden state of its last layer.

  Sequences are `[CLS] text [SEP]`, all of it of type 0.

  Attributes:
    num_labels: Number of labels that a token may have.
  """

  bert: BertConfig
  num_labels: int

  @nn.compact
  def __call__(
    self, sequences: Sequences
  ) -> Float[Array, "r t {self.num_labels}"]:
    """Returns the logits of the labels of every token."""
    encoder = BertEncoder(self.bert, name="encoder")
    hidden = encoder(sequences, typed=False)
    axes = ("embed", "label")
    return dense(self.bert, self.num_labels, axes, "classifier")(hidden)
