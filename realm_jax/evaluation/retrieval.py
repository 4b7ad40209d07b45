"""Evaluation of a retriever without a reader: recall@k, reciprocal rank."""

import time

from etils import epath

from realm_jax.evaluation import outputs
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.questions import evidence_of, open_questions
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.scoring.summary import summarize
from realm_jax.evaluation.shares import Share
from realm_jax.evaluation.trained_model import ModelSource, load_model
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt
from realm_jax.training.stages.inverse_cloze import InverseCloze


def evaluate_retrieval(
  *,
  source: ModelSource,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  index: IndexConfig | None = None,
  num_searched: PositiveInt = 100,
  output_dir: epath.PathLike | None = None,
) -> outputs.Figures:
  """Retrieves blocks for questions with a retriever of any stage.

  After pre-training this gives the zero-shot recall@5 of the paper's Table 2.
  Arguments that are not listed are those of `evaluate_open_qa`.

  Args:
    source: Checkpoint to evaluate. If it names no generation, the one built
      from this checkpoint is preferred to the one it was trained with.
    index: Index to build over the generation's blocks instead of its own. One
      that needs no vectors, such as BM25, ranks by its own scores.
    num_searched: Number of blocks to retrieve. The reciprocal rank counts a
      block beyond them as missing.
    output_dir: Directory of `metrics.json` and `retrieved.jsonl`, if any.
  """
  start = time.monotonic()
  share = Share(
    source=source,
    data=data,
    max_examples=max_examples,
    index=index,
    num_searched=num_searched,
  )
  with (
    open_questions(data, share=share, max_examples=max_examples) as batches,
    outputs.lines(output_dir, "retrieved.jsonl", share) as lines,
  ):
    model = load_model(source, InverseCloze())
    generation = open_generation(model, prefer_own=True, index=index)
    share.require_same(model, generation)
    ranker = BlockRanker(
      model,
      generation,
      num_searched=num_searched,
      by_index_order=not generation.index.needs_vectors,
    )
    for token_ids, questions in batches:
      ranking = ranker.rank(token_ids)
      for i, question in enumerate(questions):
        evidence = evidence_of(generation.corpus, ranking.of_query(i), question)
        lines[question.position] = question.line() | {"evidence": evidence}
  return outputs.report(
    lambda: {
      **summarize(list(lines.values())),
      "split": data.split,
      "task": data.task,
      "num_searched": ranker.num_searched,
    },
    model,
    generation,
    start=start,
    output_dir=output_dir,
    share=share,
  )
