"""Fine-tuning on questions with exchanged names.

A reader that is fine-tuned on few questions soon memorizes which names are
answers, and no longer reads the text. In a renamed example, the wordpieces of
names are permuted, both in the question and in its blocks. The text then says
the same about other names, and the answer can only be found by reading it.
"""

import collections
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32

from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models.components import Components
from realm_jax.training.encoder_inputs import Candidates, EncoderInputs
from realm_jax.training.stages.open_qa import OpenQa, OpenQaBatch
from realm_jax.training.stages.paths import PathReading, PathRetrieval
from realm_jax.training.stages.reranking import Reranking
from realm_jax.training.stages.stage import (
  ExampleArrays,
  Features,
  Stage,
  StageContext,
  StepBatch,
)
from realm_jax.training.stages.text_to_text import TextToText
from realm_jax.training.stages.two_hop_qa import TwoHopQa

# Enough blocks to find nearly every name, in seconds.
_MAX_BLOCKS = 200_000
# A wordpiece belongs to names if at least this share of its occurrences does.
_MIN_SHARE = 0.5
# Positions in a name: within, at the end, at the start, or alone.
_NUM_PLACES = 4
# A batch of open QA with renamed blocks, and the reader's version of questions.
RenamedBatch = collections.namedtuple(
  "RenamedBatch", (*OpenQaBatch._fields, "read_query")
)


@dataclasses.dataclass(frozen=True)
class RenamingOpenQa(OpenQa):
  """Open QA that exchanges names for the reader, but not for the retriever."""

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    plain, metrics = super().features(batch, found, context)
    query, blocks = _renamed(context.corpus, batch, plain.query, plain.blocks)
    return RenamedBatch(*plain._replace(blocks=blocks), query), metrics

  def dummy_batch(self, shapes: ExampleArrays) -> StepBatch:
    return RenamedBatch(*super().dummy_batch(shapes), shapes.query)

  def inputs(self, components: Components, batch: StepBatch) -> EncoderInputs:
    searched = super().inputs(components, batch)
    renamed = batch._replace(query=batch.read_query)
    read = super().inputs(components, renamed).reader
    return searched._replace(reader=read)


class RenamingTwoHopQa(TwoHopQa):
  """Open QA of two hops that also exchanges names for the retriever.

  A question of two hops shares no name with the block that answers it. With
  only a few hundred names, a retriever memorizes this block, and finds it
  without the first hop.
  """

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    plain, metrics = super().features(batch, found, context)
    arrays = plain.query, plain.hop_queries, plain.candidates.tokens, plain.read
    query, hop_queries, tokens, read = _renamed(context.corpus, batch, *arrays)
    renamed = {"query": query, "hop_queries": hop_queries, "read": read}
    candidates = Candidates.of(tokens)
    renamed["read_query"] = query
    return plain._replace(candidates=candidates, **renamed), metrics


class _RenamingQueriesAndTexts(Stage):
  """A stage whose model reads queries and texts with exchanged names.

  Attributes:
    texts: Field of the batch with the texts that are read.
  """

  texts: ClassVar[str] = "blocks"

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    # The stage that the class is combined with.
    stage: Any = super()
    plain, metrics = stage.features(batch, found, context)
    read = plain.query, getattr(plain, self.texts)
    query, texts = _renamed(context.corpus, batch, *read)
    return plain._replace(**{"query": query, self.texts: texts}), metrics


class RenamingReranking(_RenamingQueriesAndTexts, Reranking):
  """Training of a cross-encoder with exchanged names."""


class RenamingPathRetrieval(_RenamingQueriesAndTexts, PathRetrieval):
  """Training of a path retriever with exchanged names."""


class RenamingPathReading(_RenamingQueriesAndTexts, PathReading):
  """Training of a path reader with exchanged names."""

  texts = "paths"


class RenamingTextToText(TextToText):
  """Training of a reader that writes, with names exchanged only for the reader.

  The reader must use the corpus's wordpieces, without its own view.
  """

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    plain, metrics = super().features(batch, found, context)
    candidates = plain.candidates
    read = plain.prompts, candidates.passages, plain.targets
    prompts, passages, targets = _renamed(context.corpus, batch, *read)
    candidates = candidates._replace(passages=passages)
    renamed = {"candidates": candidates, "prompts": prompts}
    return plain._replace(**renamed, targets=targets), metrics


def _renamed(
  corpus: Corpus, batch: Batch, *arrays: Int32[np.ndarray, "b ..."]
) -> list[Int32[np.ndarray, "b ..."]]:
  """Exchanges the wordpieces of names, differently in each example.

  Wordpieces are only exchanged if they have the same position in names. For
  example, "New" before "York" becomes another word that begins names, if there
  is one. So the reader still sees where a name begins and ends.
  """
  renamed = [ids.copy() for ids in arrays]
  for row, position in enumerate(batch.positions.tolist()):
    generator = np.random.default_rng(position)
    new_ids = np.arange(corpus.vocab_size, dtype=np.int32)
    for group in _name_groups(corpus):
      new_ids[group] = generator.permutation(group)
    for ids in renamed:
      ids[row] = new_ids[ids[row]]
  return renamed


@functools.lru_cache(maxsize=2)
def _name_groups(corpus: Corpus) -> tuple[Int[np.ndarray, " _"], ...]:
  """Returns ids of wordpieces, grouped by kind of span and position in it.

  A wordpiece belongs to the kind and position in which it occurs most often,
  unless it is frequent outside of spans.

  Raises:
    RealmError: No word of the corpus is a name.
  """
  size = corpus.vocab_size
  total = np.zeros(size, np.int64)
  in_spans = np.zeros((len(corpus.span_kinds), _NUM_PLACES, size), np.int64)
  for row in range(min(corpus.num_blocks, _MAX_BLOCKS)):
    block = corpus.block(row)
    body = block.body_token_ids
    np.add.at(total, body, 1)
    spans = zip(block.salient_spans, block.salient_span_kinds, strict=True)
    for (start, limit), kind in spans:
      is_first = np.arange(start, limit) == start
      is_last = np.arange(start, limit) == limit - 1
      np.add.at(in_spans[kind], (2 * is_first + is_last, body[start:limit]), 1)
  in_spans = in_spans.reshape(-1, size)
  is_name = (total > 0) & (in_spans.sum(axis=0) >= _MIN_SHARE * total)
  if not is_name.any():
    raise RealmError(
      "no word of the corpus is a name: it has no salient spans, or none with "
      "words that only occur in names; train with `open_qa.OpenQa`"
    )
  places = in_spans.argmax(axis=0)
  places_of_names = np.unique(places[is_name])
  return tuple(np.flatnonzero(is_name & (places == p)) for p in places_of_names)
