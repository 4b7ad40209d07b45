"""Evaluation of open QA: exact match, F1, recall and reciprocal rank."""

import time

from etils import epath

from realm_jax.evaluation import metrics, outputs
from realm_jax.evaluation.answering import (
  Answered,
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.questions import (
  Question,
  contains_answer,
  evidence_of,
  open_questions,
)
from realm_jax.evaluation.shares import Share
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.inputs.config import DataConfig
from realm_jax.text import answers


def evaluate_open_qa(
  *,
  source: ModelSource,
  data: DataConfig,
  answering: AnsweringConfig,
  answer_kind: answers.AnswerKind = "string",
  max_examples: int | None = None,
  output_dir: epath.PathLike | None = None,
) -> outputs.Figures:
  """Answers the questions of a file and scores the answers.

  The checkpoint's own query tower searches the generation, the reader reads
  the best blocks, and the best span of all of them is the prediction. Returns
  the contents of `metrics.json`.

  Args:
    source: Checkpoint to evaluate, with a reader.
    data: Open-QA task with its question file.
    answering: Number of blocks to search and read.
    answer_kind: Whether the task's answers are strings or regular expressions.
    max_examples: Number of questions at the front of the file; None takes all.
      Those that the task drops count.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  start = time.monotonic()
  share = Share(
    source=source,
    data=data,
    answering=answering,
    answer_kind=answer_kind,
    max_examples=max_examples,
  )
  with (
    open_questions(data, share=share, max_examples=max_examples) as batches,
    outputs.lines(output_dir, "predictions.jsonl", share) as lines,
  ):
    answerer = load_answerer(source, answering)
    share.require_same(answerer.model, answerer.generation)
    for token_ids, questions in batches:
      answered = answerer.answer(token_ids, num_questions=len(questions))
      for question, found in zip(questions, answered, strict=True):
        evidence = evidence_of(
          answerer.corpus,
          found.ranking,
          question.references,
          kind=answer_kind,
          num_read=answering.num_read,
        )
        line = _prediction(answerer, question, found, answer_kind)
        lines[question.position] = line | {"evidence": evidence}
  return outputs.report(
    lambda: {
      **metrics.answer_metrics(
        [line["prediction"] for line in lines.values()],
        [line["references"] for line in lines.values()],
        kind=answer_kind,
      ),
      **metrics.retrieval_metrics(contains_answer(lines.values())),
      "num_questions": len(lines),
      "split": data.split,
      "task": data.task,
      "candidates": answering.candidates,
      "num_searched": answerer.num_searched,
      "num_read": answering.num_read,
    },
    answerer.model,
    answerer.generation,
    start=start,
    output_dir=output_dir,
    share=share,
  )


def _prediction(
  answerer: Answerer,
  question: Question,
  answered: Answered,
  kind: answers.AnswerKind,
) -> outputs.Figures:
  """Returns a line of `predictions.jsonl`, but for the evidence.

  Without an answer, its `prediction` is empty and its `answer` None. Regular
  expressions have no `f1`.
  """
  place: outputs.Figures | None = None
  if answered.answers:
    best = answered.answers[0]
    place = {
      "block": answerer.corpus.block_name(best.row),
      "start_byte": best.start_byte,
      "limit_byte": best.limit_byte,
      "score": round(best.score, 6),
      "probability": round(best.probability, 6),
    }
  text, references = answered.prediction, question.references
  return {
    "id": question.id,
    "question": question.text,
    "prediction": text,
    "references": references,
    "correct": answers.is_correct(text, references, kind=kind),
    "f1": answers.best_token_f1(text, references) if kind == "string" else None,
    "answer": place,
  }
