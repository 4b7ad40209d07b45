"""Evaluates runs on edited facts, before and after they can read about them.

Nothing is trained in between: a memory is extended, and an index is rebuilt.
"""

import re
from pathlib import Path

from experiments.data import CORPUS
from experiments.demo.stages import ICT, REALM, Demo
from experiments.pipeline import Step, Value, markdown, run
from experiments.world.world import edit_facts, write_edited
from realm_jax.errors import RealmError
from realm_jax.storage.json_files import json_lines
from realm_jax.text.salient_spans import Span
from realm_jax.text.vocabulary import MASK

FOLDER = "word_memory"
_STATEMENTS = f"{FOLDER}/statements"
_CORPORA = {"before": CORPUS, "after": f"{FOLDER}/corpus"}
_METRICS = {"perplexity": "perplexity", "accuracy": "masked_accuracy"}
_NUM_EDITS, _MOST_ROWS = 300, 32


def runs(demo: Demo) -> tuple[Step, Step]:
  """Returns the demo's REALM and a closed book, which may not be trained yet.

  Raises:
    RealmError: The demo is not finished.
  """
  cloze = demo.train(ICT, "inverse_cloze")
  reading = demo.train("reading", "reading")
  realm = demo.train(REALM, "pretrain")
  if not all(step.is_finished() for step in (cloze, reading, realm)):
    raise RealmError(
      f"{demo.folder} has no finished demo with these gin files; run "
      f"`python -m experiments.demo --output_dir={demo.folder}`"
    )
  name = "closed_book"
  return realm, demo.train(f"{FOLDER}/{name}", name, cloze, reading)


def report(demo: Demo, realm: Step, closed: Step) -> str:
  """Edits facts, and evaluates both runs before and after."""
  queries = _edit(demo)
  rows = [["edited facts"]]
  rows[0] += [f"{name} {when}" for name in _METRICS for when in _CORPORA]
  for title, of in (("closed book", run(closed)), ("REALM", realm)):
    when_measured = _measure(demo, of, queries, has_index=of is realm)
    for suffix, memory in (("", "without"), (" + kNN", "with")):
      names = [f"{name}_{memory}_memory" for name in _METRICS.values()]
      cells = [
        f"{metrics[name]:.3f}" for name in names for metrics in when_measured
      ]
      rows.append([title + suffix, *cells])
  return markdown(rows)


def _edit(demo: Demo) -> dict[str, Value]:
  """Builds the edited corpus, and a corpus of statements of the new facts.

  No document has the wordings of these statements. Returns the bindings with
  which an evaluation reads each statement once.
  """
  before = demo.worlds.prepare(demo.folder, demo.worlds.world.seed)
  after = edit_facts(before, count=_NUM_EDITS, seed=0)
  write_edited(demo.folder / FOLDER / "world", before=before, after=after)
  old = {one.id: one.answer for one in before.statements["test"]}
  new = [one for one in after.statements["test"] if one.answer != old[one.id]]
  articles, statements = (
    f"{FOLDER}/world/articles.jsonl",
    f"{_STATEMENTS}.jsonl",
  )
  with json_lines(demo.folder / statements) as write:
    for one in new:
      text = one.text.replace(MASK, one.answer)
      write({"id": one.id, "title": one.answer, "text": text})
  demo.worlds.build(demo.folder, _CORPORA["after"], articles)
  tagger = f"{__name__}.{tag.__name__}"
  demo.worlds.build(demo.folder, _STATEMENTS, statements, tagger=tagger)
  rows = max(n for n in range(1, _MOST_ROWS + 1) if len(new) % n == 0)
  sizes = {"BATCH_SIZE": rows, "NUM_BATCHES": len(new) // rows}
  return {"PRETRAINING_CORPUS_DIR": demo.path(_STATEMENTS), **sizes}


def tag(text: str, title: str) -> list[Span]:
  """Finds a statement's answer, which is its title, so only this is masked."""
  match = re.search(rb"\b%s\b" % re.escape(title.encode()), text.encode())
  return [Span(*match.span(), "answer")] if match else []


def _measure(
  demo: Demo, of: Step, queries: dict[str, Value], *, has_index: bool
) -> list[dict[str, float]]:
  """Evaluates a run before and after, with and without its memory."""
  measured, extended = list[dict[str, float]](), dict[str, Value]()
  if not has_index:
    queries = {**queries, "NUM_CANDIDATES": 1}
  for when, corpus in _CORPORA.items():
    name, corpus_dir = (
      f"{FOLDER}/{of.folder.name}-{when}",
      {"CORPUS_DIR": demo.path(corpus)},
    )
    memory, snapshot = demo.path(f"{name}-memory"), None
    bindings = {**corpus_dir, **extended, "OUTPUT_DIR": memory}
    build = demo.command("build_memory", "build_memory", of.folder, **bindings)
    run(Step(build, Path(memory)))
    extended = {"EXTEND": memory}
    if has_index:
      last = of.command.build().num_steps
      bindings = {**corpus_dir, "CHECKPOINT_STEP": last}
      snapshot = demo.build_index(of, f"{name}-snapshots", **bindings)
    bindings = {**corpus_dir, **queries, "MEMORY": memory}
    evaluation = demo.evaluate(name, "eval_masked", of, snapshot, **bindings)
    measured.append(run(evaluation).metrics())
  return measured
