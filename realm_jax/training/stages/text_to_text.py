"""A reader that writes: questions, masked sentences or any text-to-text task.

A query's candidates are retrieved as in pre-training; the reader reads the
query with each of them, and learns to write the target.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int, UInt32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs import reader_texts
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components, TextReader
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.generative_reader import TextInputs
from realm_jax.models.packing import TokenSequences
from realm_jax.models.retriever import relevance
from realm_jax.models.sequences import PAD_ID, padded
from realm_jax.objectives.marginal import Form, ObjectiveInputs, reader_loss
from realm_jax.objectives.masked_lm import (
  OBJECTIVES,
  Objective,
  require_objective,
)
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import NonNegativeInt, OfRun, PositiveFloat, PositiveInt
from realm_jax.training import encoder_inputs
from realm_jax.training.encoder_inputs import (
  Candidates,
  EncoderInputs,
  to_words,
)
from realm_jax.training.retrieval import Retrieval, take_candidates
from realm_jax.training.stages import masked_words
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
    query: Queries, in the retriever's vocabulary.
    candidates: Blocks, in the retriever's vocabulary, and their passages, in
      the reader's; None if the step does its own retrieval.
    prompts: Queries, in the reader's vocabulary.
    targets: Texts that the reader learns to write.
    source_hash: Content hash of each query's source, in two words, if the step
      does its own retrieval; zeros if no source is dropped.
  """

  query: Int[AnyArray, "b q"]
  candidates: Candidates | None
  prompts: Int[AnyArray, "b l"]
  targets: Int[AnyArray, "b t"]
  source_hash: UInt32[AnyArray, "b 2"] | None = None


@dataclasses.dataclass(frozen=True)
class TextToText(Stage):
  """A text, the blocks that the index retrieves, and a text to write.

  If the only candidate is the null block (closed book) or the source of a
  sentence, nothing is retrieved, and only the reader is trained.

  Attributes:
    num_read: Number of candidates, including the null block.
    num_reranked: Number of retrieved blocks that are embedded again, with the
      current parameters, to choose the candidates, as in Atlas' code. None
      keeps the candidates as retrieved.
    rerank_depth: Number of retrieved blocks from which a frozen cross-encoder,
      the component `reranker` of the initial checkpoint, chooses the
      candidates. p(z|x) is still the retriever's. 0 disables it.
    num_spare: Number of additional blocks to search for, so that verbatim
      copies of the source can be dropped.
    objective: Objective of the retriever: `emdr2`, `perplexity`,
      `leave_one_out`, `replug`, or the attention of a fused reader (`fid_kd`,
      `attention_norm`). `marginal` is for a reader that is not fused.
    loss_form: Form of the losses, for the text as a whole (`joint`) or
      `per_token`.
    target_temperature: Temperature of the target of p(z|x). None is the
      paper's.
    mean_likelihood: Whether targets use the mean of log p over a text's tokens,
      as in Atlas' code, instead of the sum.
    freeze_reader: Whether the reader is frozen, without dropout.
    null_block: Whether the first candidate is the null block.
    read_source: Whether the only candidate is the source of a sentence, so that
      a reader with random initial weights learns to read first.
    read_gold: Whether blocks with the masked words come first among the
      candidates. Only tasks that mask sentences have such words.
    drop_source: Whether the source of a sentence and its verbatim copies are
      dropped. Questions have no source.
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower.
  """

  num_read: Annotated[PositiveInt, OfRun()] = 20
  num_reranked: Annotated[PositiveInt | None, OfRun()] = None
  rerank_depth: Annotated[NonNegativeInt, OfRun()] = 0
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  objective: Annotated[str, OfRun()] = "emdr2"
  loss_form: Annotated[Form, OfRun()] = "joint"
  target_temperature: Annotated[PositiveFloat | None, OfRun()] = None
  mean_likelihood: bool = False
  freeze_reader: bool = False
  null_block: Annotated[bool, OfRun()] = False
  drop_source: Annotated[bool, OfRun()] = False
  read_source: bool = False
  read_gold: bool = False
  current_queries: bool = True
  reads_passages = True
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    require_objective(
      self.objective,
      num_candidates=self.num_read,
      temperature=self.target_temperature,
      setting="NUM_READ",
    )
    setting, number = self._retrieved
    if setting != "NUM_READ" and (number < self.num_read or self.null_block):
      raise RealmError(
        f"{setting}={number} with NUM_READ={self.num_read} and "
        f"NULL_BLOCK={self.null_block}; want as many blocks as are read or "
        "more, and NULL_BLOCK = False"
      )
    if self.rerank_depth and self.num_reranked:
      raise RealmError(
        f"NUM_RERANKED={self.num_reranked} has the retriever choose what is "
        f"read, and RERANK_DEPTH={self.rerank_depth} a cross-encoder; set one"
      )

  @property
  def _retrieved(self) -> tuple[str, int]:
    """Setting and number of the blocks to retrieve."""
    if self.rerank_depth:
      return "RERANK_DEPTH", self.rerank_depth
    if self.num_reranked is not None:
      return "NUM_RERANKED", self.num_reranked
    return "NUM_READ", self.num_read

  @property
  def components(self) -> tuple[str, ...]:
    reranker = (RERANKER,) if self.rerank_depth else ()
    return (*super().components, *reranker)

  @property
  def frozen(self) -> tuple[str, ...]:
    retriever = () if self.retrieval else ("retriever",)
    reader = ("reader",) if self.freeze_reader else ()
    reranker = (RERANKER,) if self.rerank_depth else ()
    return (*retriever, *reader, *reranker)

  @property
  def num_candidates(self) -> int:
    return 1 if self.read_source else self._retrieved[1]

  @property
  def retrieval(self) -> Retrieval | None:
    setting, number = self._retrieved
    num_kept = number - self.null_block
    if not num_kept or self.read_source:
      return None
    return Retrieval(
      num_kept,
      setting=setting,
      num_spare=self.num_spare,
      drop_source=self.drop_source,
      null_block=self.null_block,
      current_queries=self.current_queries,
      # A compiled step cannot look for masked words in the blocks.
      in_step=not self.read_gold,
    )

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    query, reader = batch.array("query"), context.components.text_reader
    examples = context.examples or context.corpus
    corpus, rows = context.corpus, None
    if self.read_source:
      corpus = examples
      rows = corpus.rows_of(batch.array("source_id"))[:, None]
    elif self.retrieval is None:
      rows = np.full((len(query), 1), NULL_ROW)
    elif found is not None:
      gold = None
      if self.read_gold:
        gold = masked_words.has_masked_words(batch, found.rows, corpus)
      rows = context.candidate_rows(self.retrieval, batch, found.rows, gold)
    view = corpus.view(reader.view)
    texts, targets = reader_texts.texts_of(batch, examples)
    features = TextBatch(
      query,
      None,
      reader_texts.prompt_ids(reader, view, texts),
      reader_texts.target_ids(reader, view, targets),
    )
    if rows is None:
      hashes = np.zeros(len(query), np.int64)
      if self.drop_source:
        hashes = batch.array("source_hash")
      return features._replace(source_hash=to_words(hashes)), {}
    candidates = Candidates.of(
      corpus.gather(rows, context.block_length),
      reader_texts.passage_ids(reader, view, rows),
    )
    return features._replace(candidates=candidates), {}

  def dummy_batch(self, shapes: ExampleArrays) -> TextBatch:
    reader = self._reader(shapes.components)
    count, number = shapes.candidates.shape[:2]
    length, passages = reader.input_length, shapes.passages
    if passages is None:
      passages = np.zeros((count, number, length), np.int32)
    # A prompt is about as long as its query.
    prompts = np.zeros((count, length), np.int32)
    width = min(length, shapes.query.shape[1])
    prompts[:, :width] = shapes.query[:, :width]
    return TextBatch(
      shapes.query,
      Candidates.of(shapes.candidates, passages),
      prompts,
      np.zeros((count, reader.target_length), np.int32),
    )

  def rerank(self, encoders: Encoders, batch: TextBatch) -> TextBatch:
    """Keeps the `num_read` best candidates.

    They are chosen by the cross-encoder, or else by the current towers.
    """
    if self.retrieval is None or self._retrieved[0] == "NUM_READ":
      return batch
    assert batch.candidates is not None
    tokens = batch.candidates.tokens
    if self.rerank_depth:
      scores = encoders.pair_scores(batch.query, tokens, at_once=self.num_read)
    else:
      retriever = encoders.components.retriever
      flat = jnp.asarray(tokens).reshape(-1, tokens.shape[-1])
      queries, blocks = encoders.frozen("retriever").apply(
        "retriever",
        padded(jnp.asarray(retriever.query_input(batch.query))),
        padded(jnp.asarray(retriever.block_input(flat))),
      )
      blocks = blocks.reshape(*tokens.shape[:2], -1)
      scale = retriever.score_scale
      scores = relevance(queries, blocks, score_scale=scale)
    # Null blocks, which have no passage, replace missing candidates.
    is_block = jnp.asarray(batch.candidates.passages).any(axis=-1)
    scores = jnp.where(is_block, scores, -jnp.inf)
    _, best = lax.top_k(scores, self.num_read)
    return batch._replace(candidates=take_candidates(batch.candidates, best))

  def inputs(self, components: Components, batch: TextBatch) -> EncoderInputs:
    reader, candidates = self._reader(components), batch.candidates
    assert candidates is not None and candidates.passages is not None
    # Candidates are reranked by now, unless only their lengths are wanted.
    candidates = jax.tree.map(lambda x: x[:, : self.num_read], candidates)
    read = reader_texts.joined(
      *(jnp.asarray(batch.prompts), jnp.asarray(candidates.passages)),
      end_id=reader.end_id,
    )
    tokens = TokenSequences(read.reshape(-1, read.shape[-1]))
    read = TextInputs(tokens, batch.targets)
    if self.retrieval is None:
      return EncoderInputs(reader=read)
    inputs = encoder_inputs.retriever_inputs(
      components.retriever, batch.query, candidates
    )
    return inputs._replace(reader=read)

  def loss(
    self, encoders: Encoders, batch: TextBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the objective over the candidates, which are embedded again.

    The metric `exact_targets` is the share of targets whose every token is the
    most likely one, given the tokens before it.
    """
    reader, objective = self._reader(encoders.components), self._objective
    drops = "reader" in encoders.dropout_keys and reader.dropout_rate > 0
    # The likelihoods of single candidates train the retriever. If they are its
    # target, they come from a reader without dropout.
    has_own_pass = drops and objective.target == "likelihood"
    is_compared = objective.target in (None, "likelihood")
    likelihoods = encoders.apply(
      "reader",
      inputs.reader,
      single=is_compared and not has_own_pass and self.retrieval is not None,
      method="likelihoods",
    )
    weights = (jnp.asarray(batch.targets) != PAD_ID).astype(jnp.float32)
    metrics = {
      "exact_targets": Average.of(
        (likelihoods.is_best | (weights == 0)).all(axis=-1)
      ),
      "token_accuracy": Average.of(likelihoods.is_best, weights),
    }
    if likelihoods.fused is not None:
      metrics["log_likelihood"] = Average.of(likelihoods.fused, weights)
    log_prior = jnp.zeros((len(weights), 1))
    if self.retrieval is not None:
      scores = encoders.candidate_scores(inputs)
      log_prior = jax.nn.log_softmax(scores, axis=-1)
    single = likelihoods.single
    if has_own_pass:
      single = (
        encoders.frozen("reader")
        .apply("reader", inputs.reader, single=True, method="likelihoods")
        .single
      )
    if single is None:
      # A fused reader does not read single candidates.
      single = jnp.zeros((*log_prior.shape, weights.shape[1]))
    target = jnp.sum(single * weights[:, None], axis=-1)
    if self.mean_likelihood:
      target /= jnp.maximum(weights.sum(axis=-1, keepdims=True), 1.0)
    if not is_compared:
      params = lax.stop_gradient(encoders.params["reader"])
      attended = reader.cross_attention(params, inputs.reader)
      target = getattr(attended, str(objective.target))
    values = ObjectiveInputs(
      log_prior,
      single if likelihoods.single is None else likelihoods.single,
      weights,
      lax.stop_gradient(target),
      likelihoods.fused,
    )
    if self.retrieval is None:
      return WeightedLoss(reader_loss(values, form=self.loss_form), metrics)
    weighted = objective.of(self.loss_form, self.target_temperature)(values)
    prior = lax.stop_gradient(log_prior)
    entropy = -jnp.sum(jnp.exp(prior) * prior, axis=-1)
    metrics["candidate_entropy"] = Average.of(entropy)
    return WeightedLoss(weighted.loss, {**metrics, **weighted.metrics})

  @property
  def _objective(self) -> Objective:
    return OBJECTIVES[self.objective]

  def _reader(self, components: Components) -> TextReader:
    """Returns the reader, or raises a `RealmError` if it does not fit."""
    reader, fused = components.text_reader, self._objective.target
    needs_fusion = fused not in (None, "likelihood")
    fuses = reader.fusion == "decoder"
    is_wrong = fuses if self.objective == "marginal" else needs_fusion > fuses
    if is_wrong and self.retrieval is not None:
      raise RealmError(
        f"OBJECTIVE={self.objective!r} is not for a reader with "
        f"FUSION={reader.fusion!r}: 'marginal' is for 'marginal', 'fid_kd' and "
        "'attention_norm' are for 'decoder', and others for both"
      )
    return reader
