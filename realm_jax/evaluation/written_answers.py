"""Answers of a reader that writes, and how much each block says for them.

For a fused reader, p(y|x) is the likelihood of the text given all blocks at
once. Beside it stand the likelihoods of the text given each block alone,
p(y|z, x), and each block's term p(z|x) p(y|z, x) in the sum of EMDR². For a
reader that reads the blocks one by one, p(y|x) is this sum.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy.special import log_softmax, logsumexp, softmax

from realm_jax.answers.normalize import normalize_answer
from realm_jax.evaluation.result import Answer, Hit, Result
from realm_jax.inputs import reader_texts
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import PAD_ID
from realm_jax.settings import Asked

if TYPE_CHECKING:
  from realm_jax.evaluation.run import TrainedRun

_KIND: Asked = "question"


def answer_by_writing(
  reader: GenerativeReader,
  run: "TrainedRun",
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  answer: str | None = None,
) -> list[Result]:
  """Answers questions by texts: see `answer_from_blocks`."""
  del token_ids
  view = run.corpus.view(reader.view)
  rows = np.array([[hit.block.row for hit in group] for group in hits])
  blocks = [hit.block for group in hits for hit in group]
  texts = {
    number: block.text
    for number, block in enumerate(blocks)
    if block.row in run.edits or len(block.parts) > 1
  }
  read = reader_texts.input_ids(reader, view, questions, rows, texts)
  params = run.params["reader"]
  written = run.compute(_write, reader, params, read=read)
  scored: Any = None
  if answer is not None:
    target = reader_texts.target_ids(reader, view, [answer] * len(questions))
    scored = run.compute(
      *(GenerativeReader.score, reader, params),
      token_ids=read,
      targets=target[:, None],
    )
  results = []
  for number, (question, group) in enumerate(zip(questions, hits, strict=True)):
    tokens, *log_probs = jax.tree.map(operator.itemgetter(number), written)
    texts = [
      reader_texts.written_text(reader, view, ids) for ids in tokens.tolist()
    ]
    answers = _answers(run, group, texts, *log_probs)
    if answer is not None:
      of_answer = jax.tree.map(operator.itemgetter(number), scored)
      (chosen,) = _answers(run, group, [answer], *of_answer)
    else:
      chosen = answers[0]
    # The part of each block in the chosen answer.
    weights = np.exp(_log_prior(group)).tolist()
    likelihoods = np.exp(chosen.single.astype(np.float64)).tolist()
    parts = zip(group, weights, likelihoods, chosen.answer.shares, strict=True)
    results.append(
      Result(
        text=question,
        kind=_KIND,
        answer=chosen.answer.text,
        probability=chosen.answer.probability,
        answers=[one.answer for one in answers],
        hits=[
          dataclasses.replace(hit, weight=p, likelihood=likelihood, share=share)
          for hit, p, likelihood, share in parts
        ],
        source=run.source,
        answer_is_given=answer is not None,
      )
    )
  return results


def _write(
  reader: GenerativeReader, params: Params, read: Int[Array, "b k l"]
) -> tuple[
  Int[Array, "b m t"], Float[Array, "b m"] | None, Float[Array, "b m k"]
]:
  """Returns texts, log p given all blocks, and log p given each alone."""
  texts, single = reader.write(params, read)
  if reader.fusion == "marginal":
    return texts.token_ids, None, single
  length = (texts.token_ids != PAD_ID).sum(axis=-1)
  return texts.token_ids, texts.scores * length**reader.length_penalty, single


class _Written(NamedTuple):
  """An answer, and log p(y|z, x) of each block."""

  answer: Answer
  single: Float[np.ndarray, " k"]


def _log_prior(hits: Sequence[Hit]) -> Float[np.ndarray, " k"]:
  """Returns log p(z|x) over the blocks that were read."""
  return log_softmax([hit.relevance for hit in hits])


def _answers(
  run: "TrainedRun",
  hits: Sequence[Hit],
  texts: Sequence[str],
  fused: Float32[np.ndarray, " m"] | None,
  single: Float32[np.ndarray, "m k"],
) -> list[_Written]:
  """Returns the answers that differ once normalized, the best first."""
  joint = _log_prior(hits) + single
  log_p = logsumexp(joint, axis=1) if fused is None else fused
  answers: dict[str, _Written] = {}
  for number in np.argsort(-log_p, kind="stable").tolist():
    key = normalize_answer(texts[number], run.newest_corpus.language)
    score = float(log_p[number])
    shares = softmax(joint[number]).tolist()
    answer = Answer(texts[number], math.exp(score), score, shares)
    answers.setdefault(key, _Written(answer, single[number]))
  return [*answers.values()]
