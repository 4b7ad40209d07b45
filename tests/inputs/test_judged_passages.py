"""Queries with judged passages: the forms of files, and what is drawn."""

import collections
import itertools

import numpy as np
import pytest

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext, task_context
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.judged_passages import (
  JudgedSource,
  Passage,
  read_judged,
  read_scored,
)
from realm_jax.training.stages.contrastive import Contrastive
from realm_jax.training.stages.reranking import Distilled
from realm_jax.training.stages.stage import StageContext
from tests.inputs import tiny_corpus
from tests.json_lines import write_lines

ALPS, RHINE, NILE, OSLO = (Passage(*one) for one in tiny_corpus.DOCUMENTS)
LENGTHS = {"negatives": 2, "negative_hashes": 2, "source_hash": 3}


def _fields(*passages):
  return [passage._asdict() for passage in passages]


@pytest.mark.parametrize(
  ("positives", "negatives", "fields"),
  [
    (
      *([NILE], [OSLO]),
      {
        "query_id": "1",
        "query": "q",
        "positive_passages": _fields(NILE),
        "negative_passages": [{"docid": "7", **OSLO._asdict()}],
      },
    ),
    (
      *([NILE], [RHINE]),
      {
        "question": "q",
        "positive_ctxs": _fields(NILE),
        "hard_negative_ctxs": _fields(RHINE),
        "negative_ctxs": _fields(OSLO),
      },
    ),
    (
      *([NILE], [OSLO]),
      {
        "question": "q",
        "positive_ctxs": _fields(NILE),
        "hard_negative_ctxs": [],
        "negative_ctxs": _fields(OSLO),
      },
    ),
    (
      *([Passage("", "a"), Passage("", "b")], [Passage("", "c")]),
      {"query": "q", "pos": ["a", "b"], "neg": ["c"]},
    ),
    (
      *([Passage("", "a")], [Passage("", "c")]),
      {"anchor": "q", "positive": "a", "negative": "c"},
    ),
    ([Passage("", "a")], [], {"query": "q", "pos": "a"}),
  ],
)
def test_every_form_is_read(tmp_path, positives, negatives, fields):
  (line,) = write_lines(tmp_path / "f", [fields]).read_bytes().splitlines()
  found = read_judged(line)
  assert (found.query, found.positives) == ("q", positives)
  assert list(found.negatives) == negatives


_SCORED = {"query": "q", "pos": ["a"], "neg": ["b", "c"]}


@pytest.mark.parametrize(
  ("scores", "fields"),
  [
    (
      [9.0, 2.5],
      {
        "query": "q",
        "positive_passages": [{**NILE._asdict(), "score": 9.0}],
        "negative_passages": [{**OSLO._asdict(), "score": 2.5}],
      },
    ),
    ([3, 1, 0], {**_SCORED, "pos_scores": [3], "neg_scores": [1, 0]}),
    ([3, 1, 0.5], {**_SCORED, "scores": [3, 1, 0.5]}),
    # sentence-transformers' margins, of several negatives and of one.
    ([0, -2, 0.25], {**_SCORED, "label": [2, -0.25]}),
    ([0, 0], {"anchor": "q", "positive": "a", "negative": "c", "score": 0}),
  ],
)
def test_scores_of_a_teacher_are_read_in_the_order_of_passages(
  tmp_path, scores, fields
):
  (line,) = write_lines(tmp_path / "f", [fields]).read_bytes().splitlines()
  assert read_scored(line).scores == scores


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({}, "line 2: the score of a passage is None"),
    ({"scores": [1, "2", 3]}, "line 2: the score of a passage is '2'"),
    ({"scores": [1]}, "line 2: it has 1 scores for 1 relevant passages and 2"),
  ],
)
def test_a_line_without_scores_is_named(tiny, tmp_path, fields, message):
  whole = {**_SCORED, "scores": [3, 2, 1]}
  path = write_lines(tmp_path / "f.jsonl", [whole, {**_SCORED, **fields}])
  with (
    task_context(TaskContext(tiny.corpus_dir, {"train": path})),
    pytest.raises(RealmError, match=message),
  ):
    JudgedSource(has_scores=True).open("train")
  # Others need none.
  assert len(_opened(tiny, path)) == 2


def _opened(tiny, path):
  with task_context(TaskContext(tiny.corpus_dir, {"train": path})):
    return JudgedSource().open("train")


def test_triples_and_folders_are_read(tiny, tmp_path):
  triples = tmp_path / "triples.tsv"
  triples.write_text("who\tit flows\tit is cold\nwhat\tsnow\tships\n")
  records = _opened(tiny, triples)
  found = records.lookup(np.array([1, 0]))
  assert found["query"] == [b"what", b"who"]
  assert [own.tolist() for own in found["texts"]] == [
    [b"snow", b"ships"],
    [b"it flows", b"it is cold"],
  ]
  folder = tmp_path / "beir"
  (folder / "qrels").mkdir(parents=True)
  documents = [{"_id": p.title, **p._asdict()} for p in (ALPS, NILE, OSLO)]
  documents[0]["text"] = ""
  write_lines(folder / "corpus.jsonl", documents)
  write_lines(folder / "queries.jsonl", [{"_id": "q", "text": "where ?"}])
  (folder / "qrels" / "train.tsv").write_text(
    "query-id\tcorpus-id\tscore\nq\toslo\t0\nq\tnile\t2\nq\talps\t1\n"
  )
  records = _opened(tiny, folder)
  found = records.lookup(np.array([0]))
  assert found["titles"][0].tolist() == [b"nile", b"alps", b"oslo"]
  assert found["num_positives"] == [2]
  with (folder / "corpus.jsonl").open("a") as corpus:
    corpus.write("nile\n")
  with pytest.raises(RealmError, match=r"corpus\.jsonl, line 4: not JSON"):
    _opened(tiny, folder)


@pytest.mark.parametrize(
  ("name", "text", "message"),
  [
    ("f.jsonl", "", "is empty"),
    ("f.jsonl", '{"query": "q"}\n', "line 1: there is no relevant passage"),
    ("f.jsonl", '{"query": "q", "pos": [3]}\n', "a positive is 3"),
    ("f.jsonl", '{"pos": "a"}\n', "there is no query, under any of"),
    ("f.jsonl", '[{"query": "q", "pos": "a"}]', "line 1: .*array"),
    ("f.tsv", "a\tb\tc\na\tb\n", "line 2: it has 2 columns"),
    ("f.jsonl.gz", "", "is compressed"),
  ],
)
def test_another_file_is_refused_at_the_start(
  tiny, tmp_path, name, text, message
):
  (tmp_path / name).write_text(text)
  with pytest.raises(RealmError, match=message):
    _opened(tiny, tmp_path / name)
  with pytest.raises(RealmError, match="there is no file"):
    _opened(tiny, tmp_path / "absent")


@pytest.fixture
def judged(tiny, tmp_path):
  """A query with two relevant passages, three others, and an answer."""
  fields = {
    "query": "where is the nile ?",
    "answers": ["Norway"],
    "positive_passages": _fields(NILE, ALPS),
    "negative_passages": _fields(RHINE, Passage("", "snow"), Passage("", "it")),
  }
  path = write_lines(tmp_path / "judged.jsonl", [fields])
  return tiny_corpus.config(
    "judged_passages",
    tiny,
    question_files={"train": path},
    other_lengths=LENGTHS,
  )


def test_each_epoch_draws_other_passages(judged):
  corpus, drawn = judged.corpus, collections.Counter()
  hashes = {"alps": corpus.content_hashes[0], "nile": corpus.content_hashes[2]}
  for example in itertools.islice(ExampleStream(judged), 60):
    block = corpus.vocabulary.decode(example["block"].tolist())
    title = block.split()[1]
    drawn[title] += 1
    # Passages are laid out as the corpus's blocks are.
    row = {"alps": 0, "nile": 2}[title]
    expected = corpus.gather(np.array([row]), 32)[0]
    np.testing.assert_array_equal(example["block"], expected[expected > 0])
    assert example["source_hash"][0] == hashes[title]
    assert {*example["source_hash"].tolist()} == {
      hashes["alps"],
      hashes["nile"],
    }
    negatives = [
      corpus.vocabulary.decode(one.tolist()) for one in example["negatives"]
    ]
    assert len({*negatives}) == len(example["negative_hashes"]) == 2
    drawn.update(negatives)
  assert min(drawn["alps"], drawn["nile"]) > 15
  assert (
    min(drawn["[CLS] [SEP] snow [SEP]"], drawn["[CLS] [SEP] it [SEP]"]) > 20
  )


def test_no_mined_block_is_relevant_or_has_an_answer(judged):
  stage = Contrastive(num_negatives=2, num_hard_negatives=2, num_positives=3)
  batch = next(stream_batches(judged))
  # The two relevant blocks, the one that says Norway, and one that is left.
  rows = np.array([[2, 3, 0, 1]], np.int32)
  found = SearchResult(rows, np.zeros(rows.shape, np.float32))
  context = StageContext({}, judged.corpus, None, judged.block_length)
  made, _ = stage.features(batch, found, context)
  np.testing.assert_array_equal(
    made.hashes.is_block, [[True, True, True, True, False]]
  )
  np.testing.assert_array_equal(
    made.blocks[0, 3], judged.corpus.gather(np.array([1]), 32)[0]
  )
  (is_negative,) = made.hashes.negatives(shared=False)
  assert is_negative.tolist() == [False, True, True, True, False]


def test_scores_go_with_the_passages_that_are_drawn(tiny, tmp_path):
  scores = {"nile": 7.0, "alps": 4.0, "it": 1.0, "snow": 2.0, "ships": 3.0}
  fields = {
    "query": "where is the nile ?",
    "pos": ["nile", "alps"],
    "neg": ["it", "snow", "ships"],
    "scores": [*scores.values()],
  }
  config = tiny_corpus.config(
    "scored_passages",
    tiny,
    question_files={"train": write_lines(tmp_path / "f.jsonl", [fields])},
    other_lengths={
      "source_hash": 3,
      **dict.fromkeys(("negatives", "negative_hashes", "negative_scores"), 4),
    },
  )
  stage = Distilled(teacher="task", num_negatives=4, num_positives=3)
  context = StageContext({}, config.corpus, None, config.block_length)
  for batch in itertools.islice(stream_batches(config), 8):
    made, _ = stage.features(batch, None, context)
    drawn = [
      config.corpus.vocabulary.decode(ids.tolist()).split()[2]
      for ids in made.blocks[0, :4]
    ]
    assert {*drawn[1:]} == {"it", "snow", "ships"}
    expected = [scores[one] - scores[drawn[0]] for one in drawn[1:]]
    assert made.negative_scores[0].tolist() == [*expected, 0.0]
    # Where the file has no fourth negative, there is none.
    assert made.hashes.is_block[0].tolist() == [True] * 4 + [False]
