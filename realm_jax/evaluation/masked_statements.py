"""Evaluation of pre-training on masked statements with known answers."""

from etils import epath

from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.explanation import Explanation
from realm_jax.evaluation.open_qa import (
  Question,
  block_evidence,
  open_questions,
)
from realm_jax.evaluation.outputs import (
  PREDICTIONS,
  EvaluationShard,
  Figures,
  Line,
)
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.evaluation.scores import summarize
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt
from realm_jax.text import answers


def evaluate_masked_statements(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  index: IndexConfig | None = None,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Fills in masked statements from retrieved blocks.

  A statement is a question with one [MASK], which stands for its answer and is
  given the answer's number of wordpieces. The prediction is the most likely
  filling under Σ_z p(z|x) p(y|z, x), over the candidates of training.

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Open-QA task with a file of statements.
    max_examples: Number of statements at the front of the file; None takes all.
    index: As in `evaluate_retrieval`; its blocks are weighted by the retriever.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Returns:
    Contents of `metrics.json`; `exact_match` is the accuracy of the fillings.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  shard = EvaluationShard(
    output_dir, config=config, data=data, max_examples=max_examples, index=index
  )
  with (
    open_questions(data, shard=shard, max_examples=max_examples) as batches,
    shard.lines(PREDICTIONS) as lines,
  ):
    run = Run.load(config, index=index, max_batch=data.batch_size)
    shard.require_same_run(run)
    for _, statements in batches:
      for statement in statements:
        explained = explain(run, statement.text, statement.references[0])
        lines[statement.position] = _prediction(run, statement, explained)
  return shard.report(lambda: summarize(list(lines.values())), run)


def _prediction(run: Run, statement: Question, explained: Explanation) -> Line:
  """Returns a line of `predictions.jsonl`, as of open QA."""
  references, language = statement.references, run.language
  fillings = [
    {
      "text": filling.text,
      "probability": round(filling.probability, 6),
      "correct": answers.is_correct(
        filling.text, references, language=language
      ),
    }
    for filling in explained.fillings
  ]
  best = fillings[0]
  # The null block, which comes first, has no text.
  blocks = [candidate.block for candidate in explained.candidates[1:]]
  return statement.line(run) | {
    "prediction": best["text"],
    "correct": best["correct"],
    "f1": answers.best_token_f1(str(best["text"]), references, language),
    "answers": fillings,
    "evidence": [
      {**block, "read": True}
      for block in block_evidence(run, blocks, statement)
    ],
  }
