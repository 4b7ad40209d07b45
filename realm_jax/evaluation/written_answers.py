"""Answers of a reader that writes, and how much each block says for them.

A fused reader's p(y|x) is that of the text given all blocks at once. Beside it
stand the likelihoods of the text given each block alone, p(y|z, x), and the
part p(z|x) p(y|z, x) of each block in their sum, as EMDR² has them. Of a
reader that reads one by one, p(y|x) is that sum.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy.special import logsumexp, softmax

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
  given: str | None = None,
) -> list[Result]:
  """Answers questions by texts: see `answer_from_blocks`."""
  del token_ids
  view = run.corpus.view(reader.view)
  rows = np.array([[hit.block.row for hit in own] for own in hits])
  edits = {row: block.text for row, block in run.edits.items()}
  read = reader_texts.input_ids(reader, view, questions, rows, edits)
  params = run.params["reader"]
  tokens, fused, single = run.compute(_write, reader, params, read=read)
  if given is not None:
    target = reader_texts.target_ids(reader, view, [given] * len(questions))
    own = run.compute(_score, reader, params, read=read, target=target)
    tokens, fused, single = (
      np.concatenate(pair, axis=1)
      for pair in zip(
        (target[:, None], *own), (tokens, fused, single), strict=True
      )
    )
  return [
    _result(
      run,
      question,
      own,
      [
        reader_texts.written_text(reader, view, text) for text in texts.tolist()
      ],
      None if reader.fusion == "marginal" else log_p,
      log_by_block,
      given,
    )
    for question, own, texts, log_p, log_by_block in zip(
      questions, hits, tokens, fused, single, strict=True
    )
  ]


def _write(
  reader: GenerativeReader, params: Params, read: Int[Array, "b k l"]
) -> tuple[Int[Array, "b m t"], Float[Array, "b m"], Float[Array, "b m k"]]:
  """Returns texts, log p given all blocks, and log p given each alone."""
  found, single = reader.write(params, read)
  length = (found.token_ids != PAD_ID).sum(axis=-1)
  return found.token_ids, found.scores * length**reader.length_penalty, single


def _score(
  reader: GenerativeReader,
  params: Params,
  read: Int[Array, "b k l"],
  target: Int[Array, "b t"],
) -> tuple[Float[Array, "b 1"], Float[Array, "b 1 k"]]:
  """Returns the same of one text that is given."""
  return reader.score(params, read, target[:, None])


def _result(
  run: "TrainedRun",
  question: str,
  hits: Sequence[Hit],
  texts: Sequence[str],
  fused: Float32[np.ndarray, " m"] | None,
  single: Float32[np.ndarray, "m k"],
  given: str | None,
) -> Result:
  """Returns the texts as answers, and their parts in the blocks."""
  language = run.newest_corpus.language
  log_prior = np.log(softmax(np.array([hit.score for hit in hits])))
  joint = log_prior + single.astype(np.float64)
  log_p = logsumexp(joint, axis=1) if fused is None else fused
  answers: dict[str, Answer] = {}
  likelihoods: dict[str, np.ndarray] = {}
  for number, text in enumerate(texts):
    key = normalize_answer(text, language)
    if key in answers and answers[key].probability >= np.exp(log_p[number]):
      continue
    answers[key] = Answer(
      text,
      float(np.exp(log_p[number])),
      float(log_p[number]),
      softmax(joint[number]).tolist(),
    )
    likelihoods[key] = np.exp(single[number])
  ranked = sorted(answers.values(), key=lambda one: -one.probability)
  chosen = ranked[0] if ranked else Answer("", 0.0)
  if given is not None:
    chosen = answers[normalize_answer(texts[0], language)]
  own = likelihoods.get(normalize_answer(chosen.text, language))
  read = [
    dataclasses.replace(
      hit,
      weight=float(np.exp(log_prior[k])),
      likelihood=None if own is None else float(own[k]),
      share=chosen.shares[k] if chosen.shares else None,
    )
    for k, hit in enumerate(hits)
  ]
  return Result(
    text=question,
    kind=_KIND,
    answer=chosen.text if given is None else given,
    probability=chosen.probability,
    answers=ranked,
    hits=read,
    source=run.source,
    answer_is_given=given is not None,
  )
