"""A generative reader: a T5 over the candidates of a query.

Fusion-in-Decoder (Izacard and Grave 2021, arXiv 2007.01282) encodes each
candidate with the query, and its decoder attends to all of them at once.
Otherwise each candidate has its own decoder, as in RAG (Lewis et al. 2020,
arXiv 2005.11401).
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray
from realm_jax.models.decoding import Texts, generate
from realm_jax.models.packing import TokenSequences
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences, padded
from realm_jax.models.t5 import (
  T5,
  CrossAttention,
  Memory,
  T5Config,
  cross_attention,
  log_likelihood,
)
from realm_jax.settings import PositiveInt


class TextInputs(NamedTuple):
  """Inputs and targets of the reader, ordered by query, then candidate.

  Attributes:
    tokens: Prompt and passage of each candidate, with the end token, or their
      layout in bins.
    targets: Target text of each query, with the end token, padded.
  """

  tokens: TokenSequences | Sequences
  targets: Int[AnyArray, "b t"]


class Likelihoods(NamedTuple):
  """log p of the target's tokens, 0 at padding.

  Attributes:
    fused: log p(y_j|x, all candidates, y_<j); None for a reader without fusion.
    single: log p(y_j|z, x, y_<j) of each candidate z; None if not requested.
    is_best: Whether each token is the most likely one, given all candidates or
      the first.
  """

  fused: Float[Array, "b t"] | None
  single: Float[Array, "b k t"] | None
  is_best: Bool[Array, "b t"]


class GenerativeReader(nn.Module):
  """A T5 that reads a query with its candidates, and writes a text.

  Attributes:
    t5: Sizes of the T5.
    view: View of the corpus that the reader reads (`build_corpus --view`); None
      is the corpus's own wordpieces.
    fusion: Whether a decoder attends to all candidates at once (`decoder`) or
      to one of them (`marginal`).
    prompt: Template of the query; for the null block, it is the whole input.
    passage: Template of a block, after the prompt.
    target: Template of the target; Atlas has a sentinel before `{answer}`.
    input_length: Maximum number of tokens of prompt, passage and end.
    target_length: Maximum number of tokens of a target, including its end.
    num_beams: Number of beams in the search for an answer; 1 is greedy.
    length_penalty: Exponent in the penalty for long answers; see
      `decoding.generate`.
  """

  t5: T5Config
  view: str | None = "t5"
  fusion: Literal["decoder", "marginal"] = "decoder"
  prompt: str = "question: {query}"
  passage: str = "title: {title} context: {text}"
  target: str = "{answer}"
  input_length: PositiveInt = 256
  target_length: PositiveInt = 32
  num_beams: PositiveInt = 1
  length_penalty: float = 1.0

  def setup(self) -> None:
    self.model = T5(self.t5)

  @property
  def num_heads(self) -> int:
    """Number of attention heads."""
    return self.t5.num_heads

  @property
  def dropout_rate(self) -> float:
    """Dropout rate in training."""
    return self.t5.dropout_rate

  @property
  def end_id(self) -> int:
    """Id of the end token."""
    return self.t5.end_id

  @property
  def vocab_size(self) -> int | None:
    """Number of token ids; None before `for_vocabulary`."""
    return self.t5.vocab_size

  def likelihoods(self, inputs: TextInputs, *, single: bool) -> Likelihoods:
    """Returns the likelihoods of the targets.

    Args:
      inputs: Inputs, laid out.
      single: Whether to compute likelihoods for single candidates. A reader
        without fusion always does.
    """
    assert isinstance(inputs.tokens, Sequences)
    targets = jnp.asarray(inputs.targets)
    memory = self.model.encode_memory(inputs.tokens)
    batch, num_candidates = len(targets), len(memory.hidden) // len(targets)
    fused = likelihood = logits = None
    if self.fusion == "decoder":
      logits = self.model.decode(memory.fused(num_candidates), targets)
      fused = log_likelihood(logits, targets)
    if single or fused is None:
      repeated = jnp.repeat(targets, num_candidates, axis=0)
      single_logits = self.model.decode(memory, repeated)
      likelihood = log_likelihood(single_logits, repeated)
      likelihood = likelihood.reshape(batch, num_candidates, -1)
      if logits is None:
        logits = single_logits.reshape(
          batch, num_candidates, *single_logits.shape[1:]
        )[:, 0]
    assert logits is not None
    return Likelihoods(fused, likelihood, jnp.argmax(logits, -1) == targets)

  @nn.nowrap
  def cross_attention(
    self, params: Params, inputs: TextInputs
  ) -> CrossAttention:
    """Returns the attention of a fused decoder to each candidate, [b k].

    Computed without dropout.
    """
    assert isinstance(inputs.tokens, Sequences)
    model, variables = T5(self.t5), {"params": params["model"]}
    memory = model.apply(variables, inputs.tokens, method="encode_memory")
    assert isinstance(memory, Memory)
    number = len(memory.hidden) // len(inputs.targets)
    return cross_attention(
      *(model, params["model"], memory.fused(number)),
      jnp.asarray(inputs.targets),
      fused=number,
    )

  @nn.nowrap
  def write(
    self, params: Params, token_ids: Int[AnyArray, "b k l"]
  ) -> tuple[Texts, Float[Array, "b m k"]]:
    """Writes the best texts about queries, from their candidates.

    Without fusion, a text is written for each candidate separately.

    Returns:
      The texts: `num_beams` for each query, the best first, or the best one for
      each candidate. And log p(y|z, x) of each text and candidate.
    """
    batch, num_candidates, _ = token_ids.shape
    memory = self._memory(params, token_ids)
    fuses = self.fusion == "decoder"
    read = memory.fused(num_candidates) if fuses else memory
    written = generate(
      *(T5(self.t5), params["model"], read),
      max_tokens=self.target_length,
      num_beams=self.num_beams,
      num_texts=self.num_beams if fuses else 1,
      length_penalty=self.length_penalty,
    )
    texts = Texts(*(x.reshape(batch, -1, *x.shape[2:]) for x in written))
    return texts, self._scored(params, memory, texts.token_ids)

  @nn.nowrap
  def score(
    self,
    params: Params,
    token_ids: Int[AnyArray, "b k l"],
    targets: Int[AnyArray, "b m t"],
  ) -> tuple[Float[Array, "b m"] | None, Float[Array, "b m k"]]:
    """Returns log p(y|x, all candidates), and log p(y|z, x), of given texts.

    Without fusion, the first result is None.
    """
    num_candidates = token_ids.shape[1]
    memory = self._memory(params, token_ids)
    single = self._scored(params, memory, targets)
    if self.fusion == "marginal":
      return None, single
    fused = self._scored(params, memory.fused(num_candidates), targets)
    return fused[..., 0], single

  @nn.nowrap
  def _memory(
    self, params: Params, token_ids: Int[AnyArray, "b k l"]
  ) -> Memory:
    """Encodes padded candidates, each for its own decoder."""
    rows = jnp.asarray(token_ids).reshape(-1, token_ids.shape[-1])
    memory = T5(self.t5).apply(
      {"params": params["model"]}, padded(rows), method="encode_memory"
    )
    assert isinstance(memory, Memory)
    return memory

  @nn.nowrap
  def _scored(
    self, params: Params, memory: Memory, targets: Int[AnyArray, "b m t"]
  ) -> Float[Array, "b m k"]:
    """Returns log p of each of m texts, by each of a query's k decoders."""
    model, variables = T5(self.t5), {"params": params["model"]}
    number = len(memory.hidden) // len(targets)

    def of_text(text: Int[Array, "b t"]) -> Float[Array, "b k"]:
      repeated = jnp.repeat(text, number, axis=0)
      logits = model.apply(variables, memory, repeated, method="decode")
      assert isinstance(logits, jax.Array)
      return log_likelihood(logits, repeated).sum(-1).reshape(-1, number)

    scores = jax.lax.map(of_text, jnp.asarray(targets).swapaxes(0, 1))
    return jnp.moveaxis(scores, 0, 1)

  def __call__(self, inputs: TextInputs) -> Likelihoods:
    """Returns the likelihoods of the targets."""
    return self.likelihoods(inputs, single=False)

  @nn.nowrap
  def init_parameters(
    self, key: jax.Array, *, query_length: int, block_length: int
  ) -> Params:
    """Initializes the parameters, in Flax's boxes."""
    del query_length, block_length
    return {"model": T5(self.t5).init_parameters(key)}

  def for_vocabulary(
    self,
    *,
    vocab_size: int,
    separator_id: int,
    views: Mapping[str, int] = MappingProxyType({}),
  ) -> "GenerativeReader":
    """Returns this reader for its view of a corpus.

    Raises:
      RealmError: The corpus has no such view, or the model has too few
        embeddings.
    """
    t5 = self.t5
    if self.view is None:
      # Texts in the corpus's own wordpieces end with [SEP].
      t5 = dataclasses.replace(t5, end_id=separator_id)
    elif self.view in views:
      vocab_size = views[self.view]
    elif views or t5.vocab_size is None:
      raise RealmError(
        f"the reader reads the view {self.view!r}, and the corpus has "
        f"{', '.join(views) or 'none'}; add it with `python -m "
        f"realm_jax.build_corpus --update --view={self.view}:spiece.model "
        "--output_dir=CORPUS_DIR`"
      )
    else:
      # There is no corpus, as in `precompile`.
      return self
    return self.clone(t5=t5.for_vocabulary(vocab_size))
