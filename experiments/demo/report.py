"""The demo's report: a table, JSON, and examples of retrieved blocks."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.data import read_lines
from experiments.demo.stages import ICT_CONTINUED, REALM, STATEMENTS
from experiments.pipeline import markdown
from realm_jax.console import columns
from realm_jax.training.metric_rows import read_rows

_NUM_SENTENCES = 5
_NUM_BLOCKS = 3


def write(output_dir: Path, results: Mapping[str, Any]) -> str:
  """Writes report.json and report.md, and returns the table.

  The directory has the files of the demo's runs, and `stages.run_demo` returns
  the results.
  """
  rows = _rows(results)
  paragraphs = [
    "# The demo's report",
    markdown([("what", "figure", ""), *rows]),
    "`tensorboard --logdir` with this folder shows the curves of all stages.",
    "## What is retrieved before and after REALM pre-training",
    *_side_by_side(output_dir),
  ]
  (output_dir / "report.md").write_text("\n\n".join(paragraphs) + "\n")
  (output_dir / "report.json").write_text(json.dumps(results, indent=2) + "\n")
  return f"\n{columns(rows)}\n\nreport: {output_dir / 'report.md'}"


def _rows(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """Returns a row for each measurement: its name, value and a remark."""

  def open_qa(name: str) -> str:
    em = results[name]["exact_match"]
    return f"EM {em:.3f}   {recalls(results[name])}"

  def recalls(metrics: Mapping[str, float]) -> str:
    at_1, at_5 = metrics["recall_at_1"], metrics["recall_at_5"]
    return f"recall@1 {at_1:.3f}   recall@5 {at_5:.3f}"

  statements = results["statements"]
  better = results["inverse_cloze_baseline"]["retriever"].replace("_", " ")
  masked, edited = results["masked_accuracy"], results["edited_facts"]
  with_retrieval = f"accuracy {masked['with_retrieval']:.3f}"
  null_only = f"accuracy {masked['null_only']:.3f}"
  followed = f"{edited['followed']} of {edited['known']} answers follow"
  swapped = str(results["snapshots_swapped"])
  return [
    ("REALM", open_qa("realm"), "test questions"),
    ("same reader, random blocks", open_qa("random_blocks"), "control"),
    ("BM25, reader trained on it", open_qa("bm25"), "control"),
    ("inverse cloze, no REALM", open_qa("ict_only"), f"control ({better})"),
    ("before fine-tuning, REALM", recalls(statements["realm"]), "statements"),
    ("… where it starts", recalls(statements["started_from"]), "statements"),
    ("… inverse cloze", recalls(statements["ict_only"]), f"control ({better})"),
    ("masked names, with retrieval", with_retrieval, "pre-training"),
    ("masked names, null block alone", null_only, "control"),
    ("known facts edited in the corpus", followed, "nothing trained"),
    ("snapshots swapped in", swapped, "pre-training"),
    ("wall time", f"{results['wall_seconds']:.0f} s", ""),
  ]


def _side_by_side(output_dir: Path) -> Iterator[str]:
  """Yields a table for each of the first few masked statements.

  The columns show the best blocks of the retriever that REALM starts from, and
  of REALM's retriever. Blocks that state the fact have a check mark.
  """
  world, evaluations = output_dir / "world", output_dir / "evaluations"
  texts = {
    row["id"]: row["text"] for row in read_lines(world / "articles.jsonl")
  }
  evidence = {}
  last = read_rows(output_dir / REALM)[-1]["step"]
  for title, run, step in (
    ("inverse cloze, where REALM starts", ICT_CONTINUED, 0),
    ("after REALM pre-training", REALM, last),
  ):
    folder = evaluations / f"{STATEMENTS}/{run}/{step}"
    lines = read_lines(folder / "retrieved.jsonl")
    evidence[title] = {line["id"]: line["evidence"] for line in lines}
  sentences = read_lines(world / f"{STATEMENTS}.jsonl")
  for sentence in sentences[:_NUM_SENTENCES]:
    rows = [["", *evidence]]
    for rank in range(_NUM_BLOCKS):
      cells = [str(rank + 1)]
      for blocks in evidence.values():
        block = blocks[sentence["id"]][rank]
        document = block["block"].rpartition(":")[0]
        mark = "✓ " if document in sentence["documents"] else ""
        cells.append(f"{mark}{texts[document]} ({block['probability']:.2f})")
      rows.append(cells)
    yield f"**{sentence['question']}** ({sentence['answer'][0]})"
    yield markdown(rows)
