"""Evaluation of open QA: exact match, F1, recall and reciprocal rank."""

import time

import numpy as np
from etils import epath

from realm_jax.evaluation import metrics, outputs
from realm_jax.evaluation.answering import (
  Answered,
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.questions import Question, evidence_of, open_questions
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
    max_examples: Maximum number of questions; None takes all.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  start = time.monotonic()
  with (
    open_questions(data, max_examples=max_examples) as batches,
    outputs.lines(output_dir, "predictions.jsonl") as write,
  ):
    answerer = load_answerer(source, answering)
    predictions, references, contains_answer = [], [], []
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
        write(question.position, line | {"evidence": evidence})
        predictions.append(found.prediction)
        references.append(question.references)
        contains_answer.append([block["contains_answer"] for block in evidence])
  return outputs.report(
    {
      **metrics.answer_metrics(predictions, references, kind=answer_kind),
      **metrics.retrieval_metrics(np.array(contains_answer)),
      "num_questions": len(predictions),
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
