"""The page with a model behind it: what it is told, the command, a browser."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks.runs.jobs import free_port
from realm_jax import serve
from realm_jax.configuration import command_line
from realm_jax.evaluation import answers
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.explanation import ExplanationError
from realm_jax.evaluation.run import EditError, Run
from realm_jax.partitioning import cpu_tuning
from realm_jax.serving.app import Limits
from realm_jax.serving.server import PageServer, listen
from realm_jax.serving.service import (
  QUESTION,
  SENTENCE,
  RequestError,
  Service,
)
from tests.serving import browser, client

pytestmark = pytest.mark.slow

_ASKED = "where was Ada born?"
_SENTENCE = "Ada was born in [MASK]."
_EDITED = "Oda was born in <b>Velt."


@pytest.fixture(scope="module")
def service(run) -> Service:
  return Service(run, examples={SENTENCE: [_SENTENCE]})


@pytest.mark.parametrize("text", [_ASKED, _SENTENCE])
def test_what_is_told_is_what_is_explained(run, service, text):
  told, explained = service.ask(text), explain(run, text)
  assert (told["kind"], told["answer"]) == (explained.kind, explained.answer)
  # JSON can hold all of it.
  assert json.loads(json.dumps(told, allow_nan=False)) == told
  blocks, without = told["blocks"], told["without"]
  assert sum(b["probability"] for b in blocks) == pytest.approx(1)
  assert sum(b["share"] for b in blocks) == pytest.approx(1)
  total = sum(b["probability"] * b["reader"] for b in blocks)
  assert total == pytest.approx(told["probability"], rel=1e-6)
  for block, candidate in zip(blocks, explained.candidates, strict=True):
    whole = "".join(segment["text"] for segment in block["segments"])
    assert whole == block["body"] == candidate.block.text
    if text == _ASKED:
      marked = {s["text"] for s in block["segments"] if s["mark"] == "answer"}
      assert bool(marked) == (block["reader"] > 0)
  if text == _SENTENCE:
    # Without any block, the null block is left.
    null = blocks[0]
    assert (null["id"], null["segments"]) == (None, [])
    assert without["kind"] == "null block"
    assert without["answer"] == null["says"]["text"]
    assert without["probability_of_answer"] == pytest.approx(null["reader"])
    assert without["utility"] == pytest.approx(
      np.log(told["probability"] / null["reader"]), abs=1e-6
    )
    return
  # Without its best block, another one is read.
  best = max(blocks, key=lambda block: block["share"])
  assert without["kind"] == "without the best block"
  assert without["left_out"] == best["title"]
  row = int(run.corpus.rows_of(np.int64(best["id"])))
  other = explain(run.edited({}, hidden=[row]), _ASKED)
  assert row not in [c.block.row for c in other.candidates]
  assert len(other.candidates) == len(blocks)
  assert without["answer"] == other.answer
  assert without["same"] == (other.answer == told["answer"])


@pytest.mark.parametrize("text", [_ASKED, _SENTENCE])
def test_edits_are_those_of_one_request(run, service, text):
  first = next(b for b in service.ask(text)["blocks"] if b["id"])
  row = int(run.corpus.rows_of(np.int64(first["id"])))
  edited = explain(run.edited({row: first["body"] + " Ada."}), text)
  told = service.ask(text, {int(first["id"]): first["body"] + " Ada."})
  assert told["answer"] == edited.answer
  assert told["probability"] == pytest.approx(edited.probability)
  assert [b["is_edited"] for b in told["blocks"]] == [
    c.block.row == row for c in edited.candidates
  ]
  # A text as it was is no edit, and another page sees none.
  same = service.ask(text, {int(first["id"]): f" {first['body']} "})
  assert same == service.ask(text)
  assert not any(block["is_edited"] for block in same["blocks"])


def test_programs_get_what_python_gets(run, service):
  texts = [
    _ASKED,
    "who built the bridge?",
    *(f"who is {i}?" for i in range(48)),
  ]
  with listen("127.0.0.1", 0) as listening:
    server = PageServer(service, listening, Limits())
    thread = threading.Thread(
      target=server.serve_until_stopped, args=(lambda: None,)
    )
    thread.start()
    port = listening.getsockname()[1]
    try:
      with concurrent.futures.ThreadPoolExecutor(50) as pool:
        together = [
          *pool.map(
            lambda text: client.post(port, "/ask", questions=[text]), texts
          )
        ]
      found = client.post(port, "/retrieve", queries=texts[:2], k=3).fields
    finally:
      server.should_exit = True
      thread.join()
  for one, wanted in zip(together, answers.ask(run, texts), strict=True):
    (result,) = one.fields["results"]
    assert result["answer"] == wanted.text
    assert result["probability"] == pytest.approx(wanted.probability, rel=1e-4)
    assert result["generation"] == run.generation.step
  retrieved = run.search(run.encode(texts[:2]), 3)
  for i, result in enumerate(found["results"]):
    ids = [block["id"] for block in result["blocks"]]
    assert ids == [*map(str, run.corpus.block_ids[retrieved.rows[i]].tolist())]


def test_words_that_the_run_does_not_know_are_said(service):
  told = service.ask("where is \u5317\u4eac?")
  assert "the run does not know: \u5317, \u4eac" in told["notes"]
  assert service.ask(_ASKED)["notes"] == []
  with pytest.raises(ValueError, match="Chinese"):
    service.ask("\u5317\u4eac 1987?")


def test_an_update_is_for_all_who_ask(run):
  service = Service(run, examples={})
  before = service.answer([_ASKED])[0]
  block = before["blocks"][0]
  assert service.update({int(block["id"]): _EDITED}) == {"updated": 1}
  (found,) = service.retrieve([_ASKED], run.generation.num_blocks)
  texts = {one["id"]: one["text"] for one in found["blocks"]}
  assert texts[block["id"]] == _EDITED
  told = service.ask(_ASKED, {int(block["id"]): block["text"]})
  # The edits of a page come over it, and its old text is one.
  assert told["probability"] == pytest.approx(before["probability"], rel=1e-4)
  service.update({int(block["id"]): block["text"]})
  again = service.answer([_ASKED])[0]
  assert again["answer"] == before["answer"]
  with pytest.raises(EditError, match="no block has the id 1;"):
    service.update({1: "a"})


def test_a_run_is_followed_while_it_is_asked(world, run_config, tmp_path):
  shutil.copytree(run_config.model_dir, tmp_path / "run")
  config = dataclasses.replace(run_config, model_dir=tmp_path / "run")
  run, stop = Run.load(config), threading.Event()
  service = Service(run, examples={})
  block_id = int(run.corpus.block_ids[0])
  service.update({block_id: _EDITED})
  following = threading.Thread(
    target=serve.follow,
    args=(service, run, stop),
    kwargs={"poll_seconds": 0.1},
  )
  following.start()
  seen = set()
  try:
    for step in (1, 2):
      world.save_checkpoint(
        tmp_path / "run", step=step, seed=step, generation=0
      )
      while step not in seen:
        (told,) = service.answer([_ASKED])
        assert told["answer"]
        seen.add(told["checkpoint"])
  finally:
    stop.set()
    following.join()
  assert max(seen) == 2
  (found,) = service.retrieve([_ASKED], run.generation.num_blocks)
  texts = {block["id"]: block["text"] for block in found["blocks"]}
  assert texts[str(block_id)] == _EDITED


def test_what_cannot_be_done_is_said(run, service):
  with pytest.raises(EditError, match="no block has the id 12345"):
    service.ask(_ASKED, {12345: "Ada."})
  with pytest.raises(EditError, match="36 wordpieces"):
    service.ask(_ASKED, {int(run.corpus.block_ids[0]): "Velt " * 36})
  with pytest.raises(ExplanationError, match="has no words"):
    service.ask("\u200b")


def test_a_page_does_what_its_runs_have_been_trained_for(
  run, service, monkeypatch
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
    services[head] = Service(run, examples={SENTENCE: [_SENTENCE]})
    about = services[head].about()
    assert about["runs"].keys() == kinds
    assert about["missing"].keys() == both - kinds
    assert about["examples"].get(SENTENCE) == (
      [_SENTENCE] if SENTENCE in kinds else None
    )
  with pytest.raises(
    RequestError, match=r"this page cannot fill in.*pre-training"
  ):
    services["span_head"].ask(_SENTENCE)
  with pytest.raises(RequestError, match=r"cannot answer questions.*open QA"):
    services["masked_lm_head"].ask(_ASKED)
  # Here both are runs of open QA.
  monkeypatch.setattr(
    "realm_jax.serving.service.trained_heads", lambda *_: {"span_head"}
  )
  with pytest.raises(ValueError, match="answer questions alone"):
    Service(run, run, examples={})


@contextlib.contextmanager
def _ended_by_sigterm():
  """Fails if SIGTERM comes when no server listens, and does not wait."""

  def fail(*_):
    raise AssertionError("the command was ended before it served")

  before = signal.signal(signal.SIGTERM, fail)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def test_the_command_serves_two_runs_to_a_crowd(
  world, recorded_run, service, tmp_path, monkeypatch, capsys, one_device
):
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  run, masked_run = recorded_run("open_qa"), recorded_run("pretrain")
  candidates = "NUM_CANDIDATES = 6"
  masked_gin = tmp_path / "masked.gin"
  masked_gin.write_text(candidates)
  port, seen = free_port(), {}
  texts = [_ASKED, "where was Oda born?", _SENTENCE, "[MASK] was born in Velt."]
  texts = [texts[i % len(texts)] for i in range(50)]

  def visit():
    try:
      client.await_listener(port)
      # It is answered once the runs have been loaded.
      seen["about"] = client.request(port, "GET", "/api/about").fields
      with concurrent.futures.ThreadPoolExecutor(50) as pool:
        seen["answers"] = [
          *pool.map(lambda text: client.ask(port, text), texts)
        ]
    finally:
      os.kill(os.getpid(), signal.SIGTERM)

  visitor = threading.Thread(target=visit)
  command_line.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  with (
    _ended_by_sigterm(),
    flagsaver.flagsaver(
      model_dir=str(run),
      gin_bindings=[candidates],
      masked_model_dir=str(masked_run),
      masked_gin_file=[str(masked_gin)],
      example_questions=str(world.question_file),
      port=port,
    ),
  ):
    visitor.start()
    serve.main(["serve"])
    visitor.join()
  assert f"http://127.0.0.1:{port} " in capsys.readouterr().out

  runs = seen["about"]["runs"]
  assert {kind: run["model_dir"] for kind, run in runs.items()} == {
    "question": str(run),
    "masked sentence": str(masked_run),
  }
  examples = seen["about"]["examples"]
  assert examples["question"][0] == _ASKED and len(examples["question"]) == 4
  assert examples["masked sentence"] == []
  # All fifty are answered, and each its own question.
  assert {answer.status for answer in seen["answers"]} == {200}
  told = {text: service.ask(text) for text in set(texts)}
  for text, answer in zip(texts, seen["answers"], strict=True):
    assert answer.fields["text"] == text
    assert answer.fields["answer"] == told[text]["answer"]
    assert answer.fields["probability"] == pytest.approx(
      told[text]["probability"], rel=1e-3
    )


@pytest.mark.skipif(
  browser.chromium() is None,
  reason="no chromium (apt-get install chromium)",
)
def test_in_a_browser_an_edit_changes_the_answer(service, tmp_path):
  with listen("127.0.0.1", 0) as listening:
    server = PageServer(service, listening, Limits())
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
      with browser.opened(tmp_path / "profile") as page:
        page.open(f"http://127.0.0.1:{listening.getsockname()[1]}")
        _use(page, service)
    finally:
      server.should_exit = True
      thread.join(30)


def _use(page, service):
  page.wait(lambda: page.text("#runs"), "the run is named")
  told = service.ask(_ASKED)
  # A question is typed, and its evidence seen.
  page.type("#text", _ASKED + browser.ENTER)
  page.wait(lambda: page.text("#answer") == told["answer"], "it is answered")
  assert told["without"]["left_out"] in page.text("#without")
  assert told["answer"] in page.text("#source mark")
  assert page.texts(".block .title") == [b["title"] for b in told["blocks"]]
  assert page.texts(".block-text") == [b["body"] for b in told["blocks"]]
  marked = page.texts(".block-text .answer-mark")
  assert told["answer"] in marked
  assert page.text("#edits") == ""

  # A block is edited, and the answer is that of the edited text.
  edited = next(b for b in told["blocks"] if b["title"] == "Oda Stone")
  card = f'.block[data-id="{edited["id"]}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", _EDITED)
  page.click(f"{card} .editor .primary")
  page.wait(lambda: page.text("#edits"), "the page says that it is edited")
  after = service.ask(_ASKED, {int(edited["id"]): _EDITED})
  assert page.text("#answer") == after["answer"]
  assert page.texts(".block .title") == [b["title"] for b in after["blocks"]]
  assert told["answer"] in page.text("#before")
  assert "in memory alone" in page.text("#edits")
  assert "Oda Stone" in page.text("#edit-list")
  # What looks like HTML is text.
  assert page.text(f"{card} .block-text") == _EDITED
  assert page.run("document.querySelectorAll('.block-text b').length") == 0
  assert page.texts(".badge") == page.texts(f"{card} .badge") == ["edited"]

  page.click("#edit-list .restore")
  page.wait(lambda: page.text("#answer") == told["answer"], "it is restored")
  page.wait(lambda: page.text("#edits") == "", "nothing is edited")

  # A sentence, with the null block last.
  told = service.ask(_SENTENCE)
  page.type("#text", _SENTENCE + browser.ENTER)
  page.wait(lambda: page.text("#answer-title") == "Filling", "it is filled in")
  assert page.text("#answer") == told["answer"]
  assert "Without any passage" in page.text("#without")
  titles = [block["title"] for block in told["blocks"][1:]]
  assert page.texts(".block .title") == [*titles, "No passage"]
  # The policy has kept nothing of the page from working.
  assert page.console == []

  # What does not fit is refused in words, and is no edit.
  card = f'.block[data-id="{told["blocks"][1]["id"]}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", "Velt " * 50)
  page.click(f"{card} .editor .primary")
  page.wait(lambda: "shorten it" in page.text("#error"), "it is refused")
  assert page.text("#edits") == "" and page.text(f"{card} .editor")
  page.type("#text", "Ada was born in [mask]." + browser.ENTER)
  page.wait(lambda: "in capitals" in page.text("#error"), "it is refused")
  # No answer to another question stays beside an error.
  assert page.text("#answer") == ""
  address = page.run("location.href").partition("?")[0]
  page.open(f"{address}?q={_ASKED}")
  page.wait(lambda: page.text("#answer"), "what a link asks is answered")
  assert page.run("document.querySelector('#text').value") == _ASKED
  page.click(".block .actions button")
  page.wait(lambda: len(page.texts(".around")) == 2, "neighbours are shown")
