"""Evaluation of open QA: exact match, F1, recall and reciprocal rank."""

import dataclasses
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
from realm_jax.evaluation.questions import (
  Evidence,
  Question,
  evidence_of,
  open_questions,
)
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.inputs.config import DataConfig
from realm_jax.text import answers


@dataclasses.dataclass(frozen=True)
class AnswerPlace:
  """Where the predicted answer was found, and how likely it is."""

  block: str
  start_byte: int
  limit_byte: int
  score: float
  probability: float


@dataclasses.dataclass(frozen=True)
class Prediction:
  """One line of `predictions.jsonl`.

  Attributes:
    id: Identifier of the question.
    question: Text of the question.
    prediction: Predicted answer; empty if the blocks that were read have none.
    references: Accepted answers.
    correct: Whether the prediction is an accepted answer.
    f1: Token F1 against the best reference; None for regular expressions.
    answer: Place of the prediction; None if there is none.
    evidence: Retrieved blocks, best first.
  """

  id: str
  question: str
  prediction: str
  references: list[str]
  correct: bool
  f1: float | None
  answer: AnswerPlace | None
  evidence: list[Evidence]


def evaluate_open_qa(
  *,
  source: ModelSource,
  data: DataConfig,
  answering: AnsweringConfig | None = None,
  answer_kind: answers.AnswerKind = "string",
  max_examples: int | None = None,
  output_dir: epath.PathLike | None = None,
) -> outputs.Figures:
  """Answers the questions of a file and scores the answers.

  The checkpoint's own query tower searches the generation, the reader reads
  the best blocks, and the best span of all of them is the prediction.

  Args:
    source: Checkpoint to evaluate, with a reader.
    data: Open-QA task with its question file.
    answering: Number of blocks to search and read; None takes the defaults.
    answer_kind: Whether the task's answers are strings or regular expressions.
    max_examples: Maximum number of questions; None takes all.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`; None
      writes nothing.

  Returns:
    Contents of `metrics.json`.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  start = time.monotonic()
  answering = answering or AnsweringConfig()
  with (
    open_questions(data, max_examples=max_examples) as batches,
    outputs.lines(output_dir, outputs.PREDICTIONS) as write,
  ):
    answerer = load_answerer(source, answering)
    predictions, references, contains_answer = [], [], []
    for batch in batches:
      answered = answerer.answer(
        batch.token_ids, num_questions=len(batch.questions)
      )
      for question, answers_found in zip(
        batch.questions, answered, strict=True
      ):
        line = _prediction(answerer, question, answers_found, answer_kind)
        write(dataclasses.asdict(line))
        predictions.append(line.prediction)
        references.append(line.references)
        contains_answer.append([e.contains_answer for e in line.evidence])
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
) -> Prediction:
  place = None
  if answered.answers:
    best = answered.answers[0]
    place = AnswerPlace(
      block=answerer.corpus.block_name(best.row),
      start_byte=best.start_byte,
      limit_byte=best.limit_byte,
      score=round(best.score, 6),
      probability=round(best.probability, 6),
    )
  text, references = answered.prediction, question.references
  return Prediction(
    id=question.question_id,
    question=question.text,
    prediction=text,
    references=references,
    correct=answers.is_correct(text, references, kind=kind),
    f1=answers.best_token_f1(text, references) if kind == "string" else None,
    answer=place,
    evidence=evidence_of(
      answerer.corpus,
      answered.ranking,
      references,
      kind=kind,
      num_read=answerer.config.num_read,
    ),
  )
