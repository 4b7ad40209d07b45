"""What the page is told, against the explainer and a corpus built anew."""

import json

import numpy as np
import pytest

from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.serving.edited_generation import BlockEditor
from realm_jax.serving.errors import EditError, RequestError, ServerError
from realm_jax.serving.requests import Edit, Question
from realm_jax.serving.service import QUESTION, SENTENCE, Service

pytestmark = pytest.mark.slow

_ASKED = "where was Ada born?"
_SENTENCE = "Ada was born in [MASK]."
_TEXTS = {0: "Ada was born in Tarn. Ada built.", 7: "Gül built the bridge."}


@pytest.fixture(scope="module")
def edits(explainer):
  ids = explainer.corpus.block_ids
  return tuple(Edit(int(ids[row]), text) for row, text in _TEXTS.items())


@pytest.fixture(scope="module")
def built(world, served_run, edited_world, load, one_device):
  """An explainer of the same checkpoint over a corpus of the edited text."""
  corpus = edited_world(_TEXTS)
  generations = corpus.source.parent / "generations"
  world.build_generation(
    served_run, corpus_dir=corpus.source, generations_dir=generations
  )
  return load(corpus_dir=corpus.source, generation=generations)


def test_edits_in_memory_do_what_a_new_corpus_and_index_do(
  explainer, built, service, edits
):
  generation = BlockEditor(explainer.model, explainer.generation).generation(
    _TEXTS
  )
  rows = np.arange(generation.num_blocks).reshape(2, -1)
  close = {"rtol": 1e-4, "atol": 1e-5}
  np.testing.assert_allclose(
    generation.vectors(rows), built.generation.vectors(rows), **close
  )
  assert not np.allclose(
    explainer.generation.vectors(rows)[0, 0], generation.vectors(rows)[0, 0]
  )
  for text in (_ASKED, _SENTENCE):
    told = service.ask(Question(text, edits))
    wanted = built.explain(text)
    assert told["answer"] == wanted.answer
    assert told["probability"] == pytest.approx(
      np.exp(wanted.log_likelihood), rel=1e-3
    )
    for block, candidate in zip(told["blocks"], wanted.candidates, strict=True):
      source = candidate.source
      assert (block["name"], block["body"]) == (source.block, source.body)
      assert block["retriever"] == pytest.approx(
        candidate.probability, rel=1e-3
      )
      assert block["share"] == pytest.approx(candidate.share, rel=1e-2)
      assert block["is_edited"] == (source.row in _TEXTS)
  # One of these blocks is retrieved, so that the above has tried it.
  assert any(
    b["is_edited"] for b in service.ask(Question(_ASKED, edits))["blocks"]
  )
  # Another page's question is answered from the text as it was.
  assert not any(
    b["is_edited"] for b in service.ask(Question(_ASKED))["blocks"]
  )


def test_a_question_is_answered_with_its_evidence(explainer, service):
  told = service.ask(Question(_ASKED))
  explained = explainer.explain(_ASKED)
  assert (told["kind"], told["answer"]) == (QUESTION, explained.answer)
  # JSON can hold all of it.
  assert json.loads(json.dumps(told, allow_nan=False)) == told
  assert sum(b["retriever"] for b in told["blocks"]) == pytest.approx(1)
  assert sum(b["share"] for b in told["blocks"]) == pytest.approx(1)
  total = sum(b["retriever"] * b["reader"] for b in told["blocks"])
  assert total == pytest.approx(told["probability"], rel=1e-6)
  ids = {str(i) for i in explainer.corpus.block_ids.tolist()}
  for block, candidate in zip(
    told["blocks"], explained.candidates, strict=True
  ):
    assert block["id"] in ids
    whole = "".join(segment["text"] for segment in block["segments"])
    assert whole == block["body"] == candidate.source.body
    marked = {s["text"] for s in block["segments"] if s["mark"] == "answer"}
    assert bool(marked) == (block["reader"] > 0)


def test_without_its_best_block_another_is_read(explainer, service):
  told = service.ask(Question(_ASKED))
  best = max(told["blocks"], key=lambda block: block["share"])
  without = told["without"]
  assert without["kind"] == "without the best block"
  assert without["left_out"] == best["title"]
  # That block is hidden, and nothing else: another question's explanation
  # of the same words without it.
  row = int(explainer.corpus.rows_of(np.int64(best["id"])))
  run = service.runs[QUESTION]
  other = run.with_texts({}, hidden=frozenset({row})).explain(_ASKED)
  assert row not in [c.source.row for c in other.candidates]
  assert len(other.candidates) == len(told["blocks"])
  assert without["answer"] == other.answer
  assert without["same"] == (other.answer == told["answer"])


def test_a_sentence_is_filled_in_with_and_without_blocks(explainer, service):
  told = service.ask(Question(_SENTENCE))
  explained = explainer.explain(_SENTENCE)
  assert (told["kind"], told["answer"]) == (SENTENCE, explained.answer)
  null = told["blocks"][0]
  assert (null["id"], null["segments"]) == (None, [])
  without = told["without"]
  assert without["kind"] == "null block"
  assert without["answer"] == null["says"]["text"]
  assert without["probability_of_answer"] == pytest.approx(null["reader"])
  assert without["utility"] == pytest.approx(
    np.log(told["probability"] / null["reader"]), abs=1e-6
  )


def test_what_cannot_be_edited_is_said(service, edits):
  unknown = Question(_ASKED, (Edit(12345, "Ada."),))
  with pytest.raises(EditError, match="no block has the id 12345"):
    service.ask(unknown)
  too_long = Question(_ASKED, (Edit(edits[0].block_id, "Velt " * 36),))
  with pytest.raises(EditError, match="36 wordpieces"):
    service.ask(too_long)
  with pytest.raises(ExplanationError, match="has no words"):
    service.ask(Question("\u200b"))


def test_a_page_does_what_its_runs_have_been_trained_for(
  explainer, service, monkeypatch
):
  both = {QUESTION, SENTENCE}
  assert service.about()["runs"].keys() == both
  assert service.about()["missing"] == {}
  heads = {"masked_lm_head": {SENTENCE}, "span_head": {QUESTION}}
  services = {}
  for head, kinds in heads.items():
    monkeypatch.setattr(
      "realm_jax.serving.service.trained_heads", lambda *_, head=head: {head}
    )
    services[head] = Service(explainer, examples={SENTENCE: [_SENTENCE]})
    about = services[head].about()
    assert about["runs"].keys() == kinds
    assert about["missing"].keys() == both - kinds
    assert about["examples"].get(SENTENCE) == (
      [_SENTENCE] if SENTENCE in kinds else None
    )
  with pytest.raises(
    RequestError, match=r"this page cannot fill in.*--masked_model"
  ):
    services["span_head"].ask(Question(_SENTENCE))
  with pytest.raises(RequestError, match=r"cannot answer questions.*open QA"):
    services["masked_lm_head"].ask(Question(_ASKED))
  # Here both are runs of open QA.
  monkeypatch.setattr(
    "realm_jax.serving.service.trained_heads", lambda *_: {"span_head"}
  )
  with pytest.raises(ServerError, match="answer questions alone"):
    Service(explainer, explainer, examples={})
