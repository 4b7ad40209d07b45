"""Evaluation of pre-training on masked statements with known answers."""

from etils import epath
from scipy.special import log_softmax

from realm_jax.evaluation.explain import require_masked_lm_head
from realm_jax.evaluation.masked_sentences import (
  best_fillings,
  masked_query,
  read_masks,
)
from realm_jax.evaluation.open_qa import block_evidence, open_questions
from realm_jax.evaluation.outputs import PREDICTIONS, EvaluationShard, Figures
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

  A statement is a question with one [MASK] in place of its answer, which is
  given the answer's number of wordpieces. The prediction is the most likely
  filling under Σ_z p(z|x) p(y|z, x), over the candidates of training, of which
  the index finds all but the null block. Retrieval is scored as by
  `evaluate_retrieval`, whose arguments are the same.

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Open-QA task with a file of statements.
    max_examples: Number of statements at the front of the file; None takes all.
    index: Index to build over the generation's blocks instead of its own. The
      retriever weighs the blocks that it finds.
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
    require_masked_lm_head(run)
    language = run.language
    for token_ids, statements in batches:
      found = run.search(token_ids, config.num_searched, rescore=False)
      for i, statement in enumerate(statements):
        references = statement.references
        masked = masked_query(
          statement.text,
          references[0],
          run.vocabulary,
          query_length=config.query_length,
          max_masks=config.max_masks,
        )
        reading = read_masks(run, masked.query, masked.positions)
        best, _ = best_fillings(
          log_softmax(reading.scores), reading.log_probs, config.num_fillings
        )
        filled = [
          masked.filling_text(run.vocabulary, ids) for ids in best.tolist()
        ]
        correct = [
          answers.is_correct(text, references, language=language)
          for text in filled
        ]
        blocks = run.blocks(found, i)
        evidence = block_evidence(run, blocks, statement)
        lines[statement.position] = statement.line(run) | {
          "prediction": filled[0],
          "correct": correct[0],
          "f1": answers.best_token_f1(filled[0], references, language),
          "answers": [
            {"text": text, "correct": is_correct}
            for text, is_correct in zip(filled, correct, strict=True)
          ],
          "evidence": [
            {**line, "read": block.row in reading.rows}
            for line, block in zip(evidence, blocks, strict=True)
          ],
        }
  return shard.report(lambda: summarize(list(lines.values())), run)
