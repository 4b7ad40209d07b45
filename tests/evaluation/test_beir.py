"""Retrieval of judged documents, against trec_eval and by hand."""

import collections
import dataclasses
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.evaluation import beir, parts
from realm_jax.evaluation.scores import document_scores
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.hybrid import HybridConfig
from realm_jax.indexes.protocol import SearchResult
from tests import tiny_world
from tests.counted_searches import counted_searches
from tests.golden import make_trec_scores
from tests.json_lines import read_lines, write_lines


def lines_of(documents, scores, queries, **settings):
  """Lines of an index that gives blocks of documents these scores."""
  blocks = [SimpleNamespace(document_id=name) for name in documents]
  corpus = SimpleNamespace(block=blocks.__getitem__, num_blocks=len(blocks))
  scores = np.array(scores, np.float32)
  order = np.argsort(-scores, kind="stable")
  asked = []

  def search(texts, k):
    asked.append(k)
    rows = np.tile(order[:k], (len(texts), 1))
    return SearchResult(rows.astype(np.int32), scores[rows])

  batches = beir.retrieved_batches(queries, corpus, search, **settings)
  return [line for batch, _ in batches for line in batch], asked


def test_the_scores_are_those_of_trec_eval():
  lines = []
  for scores, grades in make_trec_scores.judged_runs():
    # A document's other block scores less than its best.
    both = [*scores.values(), *(value - 0.5 for value in scores.values())]
    query = beir.JudgedQuery("q", "who ?", grades)
    lines += lines_of([*scores, *scores], both, [query])[0]
  found = document_scores(lines)
  with np.load(make_trec_scores.OUTPUT) as released:
    assert released.keys() == found.keys()
    for name, expected in released.items():
      np.testing.assert_allclose(found[name], expected, atol=1e-9)


def test_more_blocks_are_searched_until_there_are_a_hundred_documents():
  # Three blocks of each of 200 documents, and the query's own document first.
  documents = [f"d{i // 3}" for i in range(600)]
  queries = [beir.JudgedQuery(name, "", {"d1": 1}) for name in ("d0", "q", "d")]
  lines, asked = lines_of(
    documents, np.arange(600)[::-1], queries, num_searched=100, batch_size=2
  )
  # What the first batch needs, the second begins with.
  assert asked == [100, 400, 400]
  names = [[one["document"] for one in line["evidence"]] for line in lines]
  assert names[0] == [f"d{i}" for i in range(1, 101)]
  assert names[1] == names[2] == [f"d{i}" for i in range(100)]


def _write(directory):
  """Writes the tiny world in BEIR's format; the answer's article is judged."""
  corpus = [
    {"_id": one["id"], "title": one["title"], "text": one["text"]}
    for one in tiny_world.documents()
  ]
  # One is its title alone, and has an id with white space.
  corpus.append({"_id": "the title", "title": "Ada Stone", "text": ""})
  queries = [
    {"_id": q["id"], "text": q["question"]} for q in tiny_world.questions()
  ]
  judged = [f"q{i}\tp{2 * i}\t2\nq{i}\tp{i}\t{i % 2}\n" for i in range(11)]
  (directory / "qrels").mkdir(parents=True)
  write_lines(directory / "corpus.jsonl", corpus)
  unjudged = {"_id": "unjudged", "text": "why ?"}
  write_lines(directory / "queries.jsonl", [*queries, unjudged])
  judged = ["query-id\tcorpus-id\tscore\n", *judged, "q0\tthe title\t1\n"]
  (directory / "qrels" / "test.tsv").write_text("".join(judged))
  return directory


@pytest.fixture
def folder(tmp_path):
  """A folder that the test may change."""
  return _write(tmp_path / "beir")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A folder that nobody changes."""
  return _write(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
  ("file", "text", "message"),
  [
    (
      "queries.jsonl",
      '{"text": "who ?"}\n',
      r"queries.jsonl, line 1: .*_id.*want",
    ),
    ("qrels/test.tsv", None, "there is no .*test.tsv.*SPLIT"),
    (
      "qrels/test.tsv",
      "q0\tp0\thigh\n",
      r"test.tsv, line 1: .*want .* a query",
    ),
  ],
)
def test_a_folder_that_is_not_whole_is_refused(folder, file, text, message):
  (folder / file).unlink()
  if text is not None:
    (folder / file).write_text(text)
  with pytest.raises(beir.BeirError, match=message):
    beir.read_queries(folder)


@pytest.fixture(scope="module")
def beir_run(world, model_dir, run_config, whole):
  """The run, over the corpus of the folder."""
  corpus_dir, snapshots = whole / "corpus", whole / "snapshots"
  build_corpus(
    [str(whole / "corpus.jsonl")],
    corpus_dir,
    vocab=str(world.directory / "vocab.txt"),
    block_length=tiny_world.BLOCK_LENGTH,
    tagger=None,
  )
  world.build_snapshot(
    model_dir, corpus_dir=corpus_dir, snapshots_dir=snapshots
  )
  return dataclasses.replace(
    run_config, corpus_dir=corpus_dir, snapshot=snapshots
  )


@pytest.mark.slow
def test_an_evaluation_that_broke_off_searches_on_as_widely(
  beir_run, whole, tmp_path, monkeypatch
):
  monkeypatch.setattr(parts, "_MAX_LINES", 1)

  def call(name):
    beir.evaluate_beir(
      config=dataclasses.replace(beir_run, num_searched=2),
      beir_dir=whole,
      batch_size=4,
      output_dir=tmp_path / name,
    )

  with counted_searches() as counts:
    call("whole")
  # The first batch tries two numbers of blocks or more.
  tried = len(counts) - 2
  assert tried > 1
  with counted_searches(tried):
    call("resumed")
  with counted_searches() as counts:
    call("resumed")
  assert counts == [4, 3]
  expected, resumed = (
    (tmp_path / name / "retrieved.jsonl").read_bytes()
    for name in ("whole", "resumed")
  )
  assert resumed == expected


@pytest.mark.slow
def test_an_evaluation_ranks_the_documents_of_the_folder(
  beir_run, whole, tmp_path
):
  documents = {one["_id"] for one in read_lines(whole / "corpus.jsonl")}
  evaluated = {
    name: beir.evaluate_beir(
      config=beir_run, beir_dir=whole, index=index, output_dir=tmp_path / name
    )
    for name, index in (
      ("dense", None),
      ("bm25", Bm25Config()),
      ("hybrid", HybridConfig(bm25_share=0.9)),
    )
  }
  for name, metrics in evaluated.items():
    lines = read_lines(tmp_path / name / "retrieved.jsonl")
    assert [line["id"] for line in lines] == [f"q{i}" for i in range(11)]
    assert metrics["num_questions"] == 11 and metrics["recall_at_100"] == 1.0
    for line in lines:
      assert {one["document"] for one in line["evidence"]} == documents
      scores = [one["score"] for one in line["evidence"]]
      assert scores == sorted(scores, reverse=True)
    assert _trec_ndcg_at_10(tmp_path / name) == pytest.approx(
      metrics["ndcg_at_10"], abs=1e-9
    )
    assert "q0 0 the%20title 1" in (tmp_path / name / "qrels.trec").read_text()
    low, high = metrics["intervals"]["ndcg_at_10"]
    assert 0 <= low <= metrics["ndcg_at_10"] <= high <= 1
    assert metrics["unsearchable_queries"] == metrics["missing_documents"] == 0
  # A question has the name of the person whose article is judged.
  assert evaluated["bm25"]["mrr_at_10"] > 0.9
  assert evaluated["hybrid"]["mrr_at_10"] > evaluated["dense"]["mrr_at_10"]


def _trec_ndcg_at_10(folder):
  """The mean nDCG@10 of what two files have, as trec_eval computes it."""
  grades, runs = collections.defaultdict(dict), collections.defaultdict(list)
  for line in (folder / "qrels.trec").read_text().splitlines():
    query, _, document, grade = line.split()
    grades[query][document] = max(int(grade), 0)
  for line in (folder / "run.trec").read_text().splitlines():
    query, q0, document, rank, score, _ = line.split()
    runs[query].append((float(score), document))
    assert (q0, int(rank)) == ("Q0", len(runs[query]))
  values = []
  for query, judged in grades.items():
    ranked = [judged.get(d, 0) for _, d in sorted(runs[query], reverse=True)]
    found, best = (
      sum(g / math.log2(2 + i) for i, g in enumerate(own[:10]))
      for own in (ranked, sorted(judged.values(), reverse=True))
    )
    values.append(found / best)
  return statistics.mean(values)


@pytest.mark.slow
def test_what_a_folder_lacks_is_counted_and_the_rest_is_evaluated(
  run_config, folder, caplog
):
  # The world's own corpus has no document "the title".
  with (folder / "qrels" / "test.tsv").open("a") as file:
    file.write("nobody\tp0\t1\nunjudged\tp0\t1\nempty\tp0\t1\n")
  lines = read_lines(folder / "queries.jsonl")
  lines = [line for line in lines if line["_id"] != "unjudged"]
  odd = {"_id": "unjudged", "text": "漢字"}, {"_id": "empty", "text": " "}
  write_lines(folder / "queries.jsonl", [odd[0], *lines, odd[1]])
  output = folder / "out"
  metrics = beir.evaluate_beir(
    config=run_config, beir_dir=folder, batch_size=12, output_dir=output
  )
  # A query that finds nothing, and a document that is not there, are judged.
  assert _trec_ndcg_at_10(output) == pytest.approx(metrics["ndcg_at_10"])
  assert metrics["num_questions"] == 13
  assert metrics["unsearchable_queries"] == 2
  assert metrics["missing_documents"] == 1
  found = [
    len(line["evidence"]) for line in read_lines(output / beir.RETRIEVED)
  ]
  assert found == [0, *[len(tiny_world.documents())] * 11, 0]
  text = "\n".join(caplog.messages)
  assert "judges 1 queries that" in text and "['nobody']" in text
  assert "2 of 13 queries cannot be searched for" in text
  assert "1 of 17 judged documents are not in the corpus" in text
