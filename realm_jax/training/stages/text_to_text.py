"""A reader that writes: questions, masked sentences or any text-to-text task.

A query's candidates are retrieved as in pre-training; the reader reads its text
beside each of them, and learns to write the target.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs import reader_texts
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.generative_reader import TextInputs
from realm_jax.models.packing import TokenSequences
from realm_jax.models.sequences import PAD_ID
from realm_jax.objectives.marginal import FORMS, Evidence, Form, reader_loss
from realm_jax.objectives.masked_lm import OBJECTIVES
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import NonNegativeInt, OfRun, PositiveFloat, PositiveInt
from realm_jax.training import encoder_inputs
from realm_jax.training.encoder_inputs import Candidates, EncoderInputs
from realm_jax.training.retrieval import Retrieval, at_places
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class TextBatch(NamedTuple):
  """Queries with their candidates, in the vocabularies of both components.

  Attributes:
    query: Queries, as the retriever reads them.
    candidates: Blocks, as the retriever reads them.
    read: Prompt and passage of each candidate, as the reader reads them.
    targets: What the reader is to write.
  """

  query: Int[AnyArray, "b q"]
  candidates: Candidates
  read: Int[AnyArray, "b k l"]
  targets: Int[AnyArray, "b t"]


@dataclasses.dataclass(frozen=True)
class TextToText(Stage):
  """A text, the blocks that the index retrieves, and a text to write.

  With the null block as its only candidate (closed book), nothing is retrieved,
  and the reader alone is trained.

  Attributes:
    num_read: Number of candidates, the null block included.
    num_spare: Number of blocks that are searched beside the candidates and the
      source, so that verbatim copies of the source can be dropped.
    objective: What the retriever learns from: `emdr2`, `perplexity`,
      `leave_one_out`, `replug`, or of a fused reader its attention (`fid_kd`,
      `attention_norm`). `marginal` is for a reader that is not fused.
    loss_form: Form of the losses: of the text as a whole, `joint`, or
      `per_token`.
    target_temperature: Temperature of the target of p(z|x). None is the
      paper's.
    mean_likelihood: Whether a target is made of the mean of a text's log p
      over its tokens, as in Atlas' code, and not of their sum.
    freeze_reader: Whether the reader stays as it is, and has no dropout.
    null_block: Whether the first candidate is the null block.
    drop_source: Whether the block that a sentence is from and its verbatim
      copies are no candidates. Questions have no source.
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower.
  """

  num_read: Annotated[PositiveInt, OfRun()] = 20
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  objective: Annotated[str, OfRun()] = "emdr2"
  loss_form: Annotated[Form, OfRun()] = "joint"
  target_temperature: Annotated[PositiveFloat | None, OfRun()] = None
  mean_likelihood: bool = False
  freeze_reader: bool = False
  null_block: Annotated[bool, OfRun()] = False
  drop_source: Annotated[bool, OfRun()] = False
  current_queries: bool = True
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.objective not in OBJECTIVES:
      raise RealmError(
        f"OBJECTIVE={self.objective!r}; want one of {', '.join(OBJECTIVES)}; "
        "name the module that adds another by --modules"
      )
    if self.loss_form not in FORMS:
      raise RealmError(f"LOSS_FORM={self.loss_form!r}; want one of {FORMS}")

  @property
  def frozen(self) -> tuple[str, ...]:
    reader = ("reader",) if self.freeze_reader else ()
    return reader if self.retrieval else ("retriever", *reader)

  @property
  def num_candidates(self) -> int:
    return self.num_read

  @property
  def retrieval(self) -> Retrieval | None:
    num_kept = self.num_read - self.null_block
    if not num_kept:
      return None
    return Retrieval(
      num_kept,
      setting="NUM_READ",
      num_spare=self.num_spare,
      drop_source=self.drop_source,
      null_block=self.null_block,
      current_queries=self.current_queries,
    )

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    query, reader = batch.array("query"), context.components.text_reader
    if found is None or self.retrieval is None:
      rows = np.full((len(query), 1), NULL_ROW)
    else:
      places = context.places(self.retrieval, batch, found.rows)
      rows = np.asarray(at_places(found.rows, places))
    view = context.corpus.view(reader.view)
    examples = context.examples or context.corpus
    texts, targets = reader_texts.texts_of(batch, examples)
    made = TextBatch(
      query,
      Candidates.of(context.gather(rows)),
      reader_texts.input_ids(reader, view, texts, rows),
      reader_texts.target_ids(reader, view, targets),
    )
    return made, {}

  def dummy_batch(self, shapes: ExampleArrays) -> TextBatch:
    reader = shapes.components.text_reader
    shape = shapes.candidates.shape[:2]
    return TextBatch(
      shapes.query,
      Candidates.of(shapes.candidates),
      np.zeros((*shape, reader.input_length), np.int32),
      np.zeros((len(shapes.query), reader.target_length), np.int32),
    )

  def inputs(self, components: Components, batch: TextBatch) -> EncoderInputs:
    length = batch.read.shape[-1]
    tokens = TokenSequences(jnp.asarray(batch.read).reshape(-1, length))
    read = TextInputs(tokens, batch.targets)
    if self.retrieval is None:
      return EncoderInputs(reader=read)
    retriever = components.retriever
    blocks, index = encoder_inputs.distinct_blocks(retriever, batch.candidates)
    queries = TokenSequences(retriever.query_input(batch.query))
    return EncoderInputs(queries, blocks, index, read)

  def loss(
    self, encoders: Encoders, batch: TextBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the objective over the candidates, all embedded anew.

    The metric `exact_targets` is the share of targets whose every token is the
    most likely one, given the tokens before it.
    """
    objective = OBJECTIVES[self.objective]
    reader = encoders.components.text_reader
    fuses = reader.fusion == "decoder"
    if fuses and self.objective == "marginal" and self.retrieval is not None:
      raise RealmError(
        "OBJECTIVE='marginal' is the likelihood of each candidate by itself; "
        "choose FUSION = 'marginal', or another OBJECTIVE such as 'emdr2'"
      )
    log_prior = jnp.zeros((len(batch.read), 1))
    if self.retrieval is not None:
      scores = encoders.candidate_scores(inputs)
      log_prior = jax.nn.log_softmax(scores, axis=-1)
    drops = "reader" in encoders.dropout_keys and reader.dropout_rate > 0
    has_own_pass = objective.target == "likelihood" and drops
    single = self.retrieval is not None and not has_own_pass
    single &= objective.target in (None, "likelihood")
    found = encoders.apply(
      "reader", inputs.reader, single=single, method="likelihoods"
    )
    weights = (jnp.asarray(batch.targets) != PAD_ID).astype(jnp.float32)
    own = found
    if has_own_pass:
      # A target is made of a reader without dropout.
      own = encoders.frozen("reader").apply(
        "reader", inputs.reader, single=True, method="likelihoods"
      )
    likelihood = found.single if found.single is not None else own.single
    if likelihood is None:
      likelihood = jnp.broadcast_to(
        found.fused[:, None], (*log_prior.shape, weights.shape[1])
      )
    evidence = Evidence(
      log_prior,
      likelihood,
      weights,
      self._target(encoders, inputs, own.single, weights, log_prior),
      found.fused,
    )
    settings: dict[str, Any] = {"form": self.loss_form}
    if self.target_temperature is not None and objective.has_target:
      settings["temperature"] = self.target_temperature
    if self.retrieval is None:
      reading = reader_loss(evidence, form=self.loss_form)
      lost = WeightedLoss(reading, {})
    else:
      lost = objective.loss(evidence, **settings)
    is_exact = (found.is_best | (weights == 0)).all(axis=-1)
    prior = jax.lax.stop_gradient(log_prior)
    entropy = -jnp.sum(jnp.exp(prior) * prior, axis=-1)
    metrics = {
      "exact_targets": Average.of(is_exact),
      "token_accuracy": Average.of(found.is_best, weights),
      "candidate_entropy": Average.of(entropy),
    }
    if found.fused is not None:
      metrics["log_likelihood"] = Average.of(found.fused, weights)
    return WeightedLoss(lost.loss, {**metrics, **lost.metrics})

  def _target(
    self,
    encoders: Encoders,
    inputs: EncoderInputs,
    single: Float[Array, "b k t"] | None,
    weights: Float[Array, "b t"],
    log_prior: Float[Array, "b k"],
  ) -> Float[Array, "b k"]:
    """Returns what a target of p(z|x) is made of, without a gradient."""
    kind = OBJECTIVES[self.objective].target
    if kind is None or self.retrieval is None:
      return jnp.zeros_like(log_prior)
    if kind == "likelihood":
      assert single is not None
      target = jnp.sum(single * weights[:, None], axis=-1)
      if self.mean_likelihood:
        target /= jnp.maximum(weights.sum(axis=-1, keepdims=True), 1.0)
    else:
      reader = encoders.components.text_reader
      params = jax.lax.stop_gradient(encoders.params["reader"])
      target = getattr(reader.cross_attention(params, inputs.reader), kind)
    return jax.lax.stop_gradient(target)
