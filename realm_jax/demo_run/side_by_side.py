"""What two retrievers find for the same sentences, as Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_NUM_SENTENCES = 5
_NUM_BLOCKS = 3

_Row = Mapping[str, Any]


def tables(
  world_dir: Path, retrieved: Mapping[str, Path], *, questions: str
) -> str:
  """Returns a table for each of the first few sentences.

  A table has a column for each retriever, and the best blocks in its rows. A
  check mark stands before those that state the fact.

  Args:
    world_dir: Folder of the world's files.
    retrieved: The `retrieved.jsonl` of each retriever, by the column's title.
    questions: Name of the world's file of questions, without its ending.
  """
  sentences = list(_rows(world_dir / f"{questions}.jsonl"))[:_NUM_SENTENCES]
  texts = {
    row["id"]: row["text"] for row in _rows(world_dir / "articles.jsonl")
  }
  evidence = {
    title: {row["id"]: row["evidence"] for row in _rows(path)}
    for title, path in retrieved.items()
  }
  return "\n\n".join(
    _table(
      sentence,
      texts,
      {title: of[sentence["id"]] for title, of in evidence.items()},
    )
    for sentence in sentences
  )


def _table(
  sentence: _Row,
  texts: Mapping[str, str],
  evidence: Mapping[str, Sequence[_Row]],
) -> str:
  """Returns the table of one sentence."""
  gold = set(sentence["gold_ids"])

  def cell(block: _Row) -> str:
    document = block["block"].rpartition(":")[0]
    mark = "✓ " if document in gold else ""
    return f"{mark}{texts[document]} ({block['probability']:.2f})"

  rows = [
    ["", *evidence],
    ["---"] * (len(evidence) + 1),
    *(
      [str(rank + 1), *(cell(blocks[rank]) for blocks in evidence.values())]
      for rank in range(min(_NUM_BLOCKS, *map(len, evidence.values())))
    ),
  ]
  body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
  answer = sentence["answer"][0]
  return f"**{sentence['question']}** ({answer})\n\n{body}"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
  with path.open() as lines:
    for line in lines:
      yield json.loads(line)
