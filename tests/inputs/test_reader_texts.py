"""What a reader that writes reads: the ids of whole texts, built of parts."""

import shutil

import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.update import add_views
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import Batch, TaskError
from realm_jax.inputs.reader_texts import (
  input_ids,
  target_ids,
  texts_of,
  written_text,
)
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.t5 import T5Config


@pytest.fixture(scope="module")
def view(world, tmp_path_factory):
  folder = tmp_path_factory.mktemp("viewed") / "corpus"
  shutil.copytree(world.corpus_dir, folder)
  add_views(folder, ["t5:train:300"])
  return Corpus.open(folder).view("t5")


def reader(**settings) -> GenerativeReader:
  return GenerativeReader(T5Config(), **settings)


@pytest.mark.parametrize("length", [12, 30, 80])
@pytest.mark.parametrize(
  "templates",
  [
    {},
    {
      "prompt": "question: {query} answer: <extra_id_0>",
      "passage": "title: {title} context: {text} end",
    },
  ],
)
def test_parts_give_the_ids_of_the_whole_text(view, length, templates):
  made = reader(input_length=length, **templates)
  queries = ["who built the bridge?", "where was she born, and when?"]
  rows = np.array([[3, NULL_ROW, 5], [0, 1, NULL_ROW]])
  edits = {5: "She built nothing."}
  texts = {2: edits[5]}
  found = input_ids(made, view, queries, rows, texts)
  assert found.shape == (2, 3, length) and found.dtype == np.int32
  encode, corpus = view.vocabulary.encode, view.corpus
  for query, own, of_query in zip(queries, rows.tolist(), found, strict=True):
    for row, ids in zip(own, of_query.tolist(), strict=True):
      text = made.prompt.format(query=query)
      if row != NULL_ROW:
        block = corpus.block(row)
        body = edits.get(row, block.text)
        text += " " + made.passage.format(title=block.title, text=body)
      wanted = [*encode(text)[: length - 1], view.vocabulary.eos_id]
      assert ids == wanted + [0] * (length - len(wanted))


def test_a_target_is_written_and_read_back(view):
  made = reader(target="<extra_id_0> {answer}", target_length=12)
  (ids,) = target_ids(made, view, ["Paris"])
  assert ids[0] == view.vocabulary.sentinels[0]
  assert written_text(made, view, ids.tolist()) == "Paris"


def batch_of(position, kind="string"):
  host = {
    "question": np.array([b"who?"], object),
    "answer_kind": np.array([kind.encode()], object),
    "answers": np.array([[b"one", b"two"]], object),
    "answer_tokens": np.zeros((1, 2, 1), np.int32),
  }
  position = np.array([position])
  return Batch({}, host, position, position + 8)


def test_an_epoch_may_teach_another_of_the_answers(view):
  taught = [texts_of(batch_of(n), view.corpus)[1][0] for n in range(0, 400, 8)]
  assert {*taught} == {"one", "two"}
  again = [texts_of(batch_of(n), view.corpus)[1][0] for n in range(0, 400, 8)]
  assert again == taught
  with pytest.raises(TaskError, match="regular expressions"):
    texts_of(batch_of(0, "regex"), view.corpus)


@pytest.mark.parametrize(
  "templates", [{"passage": "context: {text}"}, {"prompt": "question:"}]
)
def test_a_template_that_lacks_a_field_is_refused(view, templates):
  with pytest.raises(RealmError, match=r"want|lacks"):
    input_ids(reader(**templates), view, ["who?"], np.array([[0]]))
