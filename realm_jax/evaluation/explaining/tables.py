"""Explanations as text for a terminal."""

import math
import textwrap
from collections.abc import Sequence

from realm_jax.console import columns, figures_table
from realm_jax.evaluation.explaining.block_use import BlockUse, UsedBlock
from realm_jax.evaluation.explaining.results import (
  Candidate,
  Explanation,
  Filling,
)

_WIDTH = 80
_INDENT = "   "
_NULL = "(null block)"
_MASKED_LEGEND = (
  "p(z|x) is over the candidates; p(y|z,x) is the product over the wordpieces "
  "of y; share is the candidate's part of p(y|x) = Σ p(z|x) p(y|z,x); utility "
  "is log p(y|z,x) − log p(y|null,x); r(z) is the gradient of log p(y|x) by "
  "f(x,z): the documents that it would reward."
)
_QUESTION_LEGEND = (
  "p(y|x) = Σ p(z|x) p(y|z,x), with p(z|x) over the blocks that were read and "
  "p(y|z,x) over the spans of one block. The released reader, and `ask`, sum "
  "the scores of block and span and take one softmax over all spans: that is "
  "the column `summed scores`."
)


def explanation_text(explained: Explanation, *, num_texts: int) -> str:
  """Returns an explanation, with the text of its `num_texts` best blocks."""
  parts = [_head(explained), _candidates_table(explained)]
  is_question = explained.kind == "question"
  legend = _QUESTION_LEGEND if is_question else _MASKED_LEGEND
  parts.append(textwrap.fill(legend, _WIDTH, break_on_hyphens=False))
  if explained.fillings:
    parts.append(_fillings_table(explained))
  if explained.unaided is not None:
    title = f"{explained.unaided.model_dir}, unaided"
    parts.append(
      columns([[title, "p(y|x)"], *_plain_rows(explained.unaided.fillings)])
    )
  parts += _texts(explained.candidates, num_texts)
  return "\n\n".join(parts) + "\n"


def _head(explained: Explanation) -> str:
  lines = [explained.text]
  if explained.answer:
    how = "given" if explained.answer_is_given else "the most likely"
    pieces = " ".join(explained.wordpieces)
    lines.append(f"y = {explained.answer!r} ({how}; wordpieces: {pieces})")
  figures: dict[str, object] = {
    "p(y|x)": _probability(explained.log_likelihood)
  }
  if explained.kind == "masked sentence":
    figures["p(y|x) by the null block"] = _probability(
      explained.log_likelihood_null
    )
    figures["utility of retrieval"] = _signed(explained.utility)
  unaided = explained.unaided
  if unaided is not None and unaided.log_likelihood is not None:
    pieces = len(unaided.wordpieces)
    figures[f"p(y|x) by {unaided.model_dir}"] = (
      f"{_probability(unaided.log_likelihood)}  ({pieces} wordpieces)"
    )
  figures["checkpoint, generation"] = (
    f"{explained.checkpoint}, {explained.generation}"
  )
  lines.append(figures_table(figures))
  lines += [textwrap.fill(f"Note: {n}.", _WIDTH) for n in explained.notes]
  return "\n".join(lines)


def _candidates_table(explained: Explanation) -> str:
  is_question = explained.kind == "question"
  head = ["candidate", "p(z|x)", "p(y|z,x)", "share"]
  head += [] if is_question else ["utility"]
  rows = [[*head, "r(z)", "alone it says", "with p"]]
  for rank, one in enumerate(explained.candidates):
    rank += int(is_question)
    cells = [
      _name(rank, one),
      f"{one.probability:.4f}",
      _probability(one.log_likelihood),
      "–" if one.share is None else f"{one.share:.4f}",
    ]
    cells += [] if is_question else [_signed(one.utility)]
    best = one.best
    cells += [
      _signed(one.reward),
      "" if best is None else _short(best.text, 18),
      "" if best is None else f"{best.probability:.3g}",
    ]
    rows.append(cells)
  return columns(rows)


def _name(rank: int, candidate: Candidate) -> str:
  source = candidate.source
  if source.block_id is None:
    return _NULL
  mark = " *" if candidate.contains_sentence else ""
  return f"{rank}. {_short(source.title, 20)} [{source.block}]{mark}"


def _fillings_table(explained: Explanation) -> str:
  if explained.kind == "question":
    rows = [["best answers", "p(y|x)", "summed scores"]]
    for one in explained.fillings:
      rows.append(
        [
          _short(one.text, 40),
          f"{one.probability:.4g}",
          f"{one.by_released_reader:.4g}",
        ]
      )
    return columns(rows)
  rows = [["best fillings", "p(y|x)", "by the null block"]]
  for one in explained.fillings:
    rows.append(
      [
        _short(one.text, 40),
        f"{one.probability:.4g}",
        f"{one.without_retrieval:.4g}",
      ]
    )
  return columns(rows)


def _plain_rows(fillings: Sequence[Filling]) -> list[list[str]]:
  return [[_short(f.text, 40), f"{f.probability:.4g}"] for f in fillings]


def _texts(candidates: Sequence[Candidate], num_texts: int) -> list[str]:
  blocks = [c.source for c in candidates if c.source.block_id is not None]
  return [
    f"{block.title}  [{block.block}]\n"
    + textwrap.fill(
      block.body, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
    )
    for block in blocks[:num_texts]
  ]


def block_use_text(found: BlockUse) -> str:
  """Returns the counts, and the blocks at their ends."""
  share = found.num_retrieved / found.num_blocks
  never = found.num_blocks - found.num_retrieved
  figures: dict[str, object] = {
    "sentences searched": found.num_sentences,
    "candidates of each, with null": found.num_candidates,
    "blocks of the corpus": found.num_blocks,
    "blocks retrieved": f"{found.num_retrieved} ({share:.1%})",
    "blocks never retrieved": f"{never}, such as "
    + ", ".join(found.never_retrieved[:3])
    if never
    else 0,
    "blocks of half the retrievals": found.half_of_retrievals,
    "mean p(null|x)": found.null_probability,
    "checkpoint, generation": f"{found.checkpoint}, {found.generation}",
  }
  useful = f"most useful (retrieved {found.min_times} times or more)"
  return "\n\n".join(
    [
      figures_table(figures),
      _used_table("most retrieved", found.most_retrieved),
      _used_table(useful, found.most_useful),
    ]
  )


def _used_table(title: str, blocks: Sequence[UsedBlock]) -> str:
  rows: list[Sequence[object]] = [[title, "times", "p(z|x)", "utility", "r(z)"]]
  for block in blocks:
    rows.append(
      [
        f"{_short(block.title, 34)} [{block.block}]",
        block.times,
        f"{block.mean_probability:.4f}",
        _signed(block.mean_utility),
        _signed(block.mean_reward),
      ]
    )
  return columns(rows)


def _short(text: str, limit: int) -> str:
  return text if len(text) <= limit else text[: limit - 1] + "…"


def _probability(log_probability: float | None) -> str:
  return "0" if log_probability is None else f"{math.exp(log_probability):.4g}"


def _signed(value: float | None) -> str:
  return "–" if value is None else f"{value:+.4f}"
