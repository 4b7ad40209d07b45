"""The page with a model behind it: what it is told, the command, a browser."""

import dataclasses
import json
import os
import shutil
import signal
import threading

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks.runs.jobs import free_port
from realm_jax import serve
from realm_jax.checkpoints.store import CheckpointError
from realm_jax.configuration import command_line
from realm_jax.evaluation import answers
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.masked_sentences import ExplanationError
from realm_jax.evaluation.run import QUESTION, SENTENCE, EditError, Run
from realm_jax.partitioning import cpu_tuning
from realm_jax.serving.app import PageApp
from realm_jax.serving.service import RequestError, Service
from tests.serving import browser, client

pytestmark = pytest.mark.slow

_ASKED = "where was Ada born?"
_SENTENCE = "Ada was born in [MASK]."
_EDITED = "Oda was born in <b>Velt."


@pytest.fixture(scope="module")
def service(run) -> Service:
  return Service(run)


@pytest.mark.parametrize("text", [_ASKED, _SENTENCE])
def test_what_is_told_is_what_is_explained(run, service, text):
  # JSON can hold all of it.
  told = json.loads(json.dumps(service.explain(text), allow_nan=False))
  explained = explain(run, text)
  candidates, without = told["candidates"], told["without"]
  for one, candidate in zip(candidates, explained.candidates, strict=True):
    segments, _ = one.pop("segments"), one.pop("around")
    assert not one.pop("is_edited")
    assert "".join(s["text"] for s in segments) == candidate.block.text
    if text == _ASKED:
      marked = {s["text"] for s in segments if s["mark"] == "answer"}
      assert bool(marked) == bool(candidate.share)
  assert told | json.loads(json.dumps(explained.to_json())) == told
  if text == _SENTENCE:
    # Without any block, the null block is left.
    null = explained.candidates[0].best
    assert (without["left_out"], without["answer"]) == (None, null.text)
    return
  # Without its best block, another one is read.
  best = max(explained.candidates, key=lambda one: one.share).block
  assert without["left_out"] == best.title
  other = explain(run.edited({}, hidden=[best.row]), _ASKED)
  assert best.row not in [c.block.row for c in other.candidates]
  assert len(other.candidates) == len(candidates)
  assert without["answer"] == other.answer
  assert without["same"] == (other.answer == told["answer"])


@pytest.mark.parametrize(
  ("row", "answer", "marked"),
  [
    # Béla's, whose answer is marked over what the reader would say.
    (1, "béla | 1901", "+Béla -Tarn in  +1901 +Béla"),
    # A rare name is read letter by letter: a part of a word is no answer.
    (8, "h", ""),
    (8, "hakon", "+Håkon"),
  ],
)
def test_what_is_marked_in_a_block(
  run, service, monkeypatch, row, answer, marked
):
  explained = explain(run, _ASKED)
  block = run.block(row, 0.0, 0.0)
  said = "Tarn in 1901"
  start = block.text.index(said) if row == 1 else None
  best = dataclasses.replace(
    explained.candidates[0].best,
    text=said,
    start=start,
    limit=start and start + len(said),
  )
  candidate = dataclasses.replace(
    explained.candidates[0], block=block, best=best
  )
  other = dataclasses.replace(explained, answer=answer, candidates=[candidate])
  monkeypatch.setattr("realm_jax.serving.service.explain", lambda *_: other)
  (one,) = service.explain(_ASKED)["candidates"]
  marks = {"answer": "+", "said": "-"}
  found = [marks[s["mark"]] + s["text"] for s in one["segments"] if s["mark"]]
  assert " ".join(found) == marked
  # An article of a rare name has two blocks, of which this is the first.
  after = run.block(row + 1, 0.0, 0.0).text if row == 8 else None
  assert one["around"] == [None, after]


@pytest.mark.parametrize("text", [_ASKED, _SENTENCE])
def test_edits_are_those_of_one_request(run, service, text):
  first = next(c.block for c in explain(run, text).candidates if c.block.id)
  edited = explain(run.edited({first.row: first.text + " Ada."}), text)
  told = service.explain(text, {first.id: first.text + " Ada."})
  assert told["answer"] == edited.answer
  assert told["log_likelihood"] == pytest.approx(edited.log_likelihood)
  assert [one["is_edited"] for one in told["candidates"]] == [
    c.block.row == first.row for c in edited.candidates
  ]
  # A text as it was is no edit, and another page sees none.
  same = service.explain(text, {first.id: f" {first.text} "})
  assert same == service.explain(text)
  assert not any(one["is_edited"] for one in same["candidates"])


def test_an_update_is_for_all_who_ask(run):
  service = Service(run)
  before = service.answer([_ASKED])[0]
  (answered,) = answers.ask(run, [_ASKED])
  assert before["answer"] == answered.text
  assert before["answers"][0]["block"] == answered.answers[0].block.id
  assert before["generation"] == run.generation.step
  block = before["blocks"][0]
  assert service.update({block["id"]: _EDITED}) == {"updated": 1}
  (found,) = service.retrieve([_ASKED], run.generation.num_blocks)
  texts = {one["id"]: one["text"] for one in found["blocks"]}
  assert texts[block["id"]] == _EDITED
  # The edits of a page come over it, and its old text is one.
  told = service.explain(_ASKED, {block["id"]: block["text"]})
  assert told["answer"] == before["answer"]
  service.update({block["id"]: block["text"]})
  again = service.answer([_ASKED])[0]
  assert again["probability"] == pytest.approx(before["probability"], rel=1e-4)


def test_a_run_is_followed_while_it_is_asked(world, run_config, tmp_path):
  shutil.copytree(run_config.model_dir, tmp_path / "run")
  config = dataclasses.replace(run_config, model_dir=tmp_path / "run")
  run, stop = Run.load(config), threading.Event()
  service = Service(run)
  name = run.corpus.block(0).name
  service.update({name: _EDITED})
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
  assert texts[name] == _EDITED


def test_what_cannot_be_done_is_said(run, service):
  for name in ("p0:77", "nobody:0", ""):
    with pytest.raises(EditError, match=f"no block has the id '{name}'"):
      service.explain(_ASKED, {name: "Ada."})
  with pytest.raises(EditError, match="36 wordpieces"):
    service.explain(_ASKED, {"p0:0": "Velt " * 36})
  with pytest.raises(ExplanationError, match="has no words"):
    service.explain("\u200b")


def test_a_page_does_what_its_runs_have_been_trained_for(run, service):
  assert service.about()["runs"].keys() == {QUESTION, SENTENCE}
  services, runs = {}, {}
  for stage, kind in (("OpenQa", QUESTION), ("Pretraining", SENTENCE)):
    runs[kind] = dataclasses.replace(run, stage=stage)
    services[kind] = Service(runs[kind], examples=[_ASKED])
    about = services[kind].about()
    assert about["runs"].keys() == {kind}
    assert about["examples"] == ([_ASKED] if kind == QUESTION else [])
  with pytest.raises(
    RequestError, match=r"this page cannot fill in.*pre-training"
  ):
    services[QUESTION].explain(_SENTENCE)
  with pytest.raises(RequestError, match=r"cannot answer questions.*open QA"):
    services[SENTENCE].explain(_ASKED)
  assert Service(runs[QUESTION], runs[SENTENCE]).runs == runs
  retriever = dataclasses.replace(run, models=run.models._replace(reader=None))
  with pytest.raises(CheckpointError, match="has no reader"):
    Service(retriever)


def test_the_command_serves_two_runs_until_sigterm(
  world, recorded_run, service, tmp_path, monkeypatch, capsys, one_device
):
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  run, masked_run = recorded_run("open_qa"), recorded_run("pretrain")
  candidates = "NUM_CANDIDATES = 6"
  masked_gin = tmp_path / "masked.gin"
  masked_gin.write_text(candidates)
  port, seen = free_port(), {}
  texts = [_ASKED, _SENTENCE]

  def visit():
    try:
      client.await_listener(port)
      # It is answered once the runs have been loaded.
      seen["about"] = client.request(port, "GET", "/api/about").fields
      seen["told"] = [client.ask(port, text).fields for text in texts]
    finally:
      os.kill(os.getpid(), signal.SIGTERM)

  def fail(*_):
    raise AssertionError("the command was ended before it served")

  visitor = threading.Thread(target=visit)
  command_line.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  before = signal.signal(signal.SIGTERM, fail)
  with flagsaver.flagsaver(
    model_dir=str(run),
    gin_bindings=[candidates],
    masked_model_dir=str(masked_run),
    masked_gin_file=[str(masked_gin)],
    example_questions=str(world.question_file),
    port=port,
  ):
    visitor.start()
    serve.main(["serve"])
    visitor.join()
  signal.signal(signal.SIGTERM, before)
  assert f"http://127.0.0.1:{port} " in capsys.readouterr().out

  runs = seen["about"]["runs"]
  assert {kind: run["model_dir"] for kind, run in runs.items()} == {
    QUESTION: str(run),
    SENTENCE: str(masked_run),
  }
  examples = seen["about"]["examples"]
  assert examples[0] == _ASKED and len(examples) == 4
  # Each is answered its own question.
  for text, told in zip(texts, seen["told"], strict=True):
    wanted = service.explain(text)
    assert (told["text"], told["answer"]) == (text, wanted["answer"])
    assert told["log_likelihood"] == pytest.approx(
      wanted["log_likelihood"], abs=1e-3
    )


@pytest.mark.skipif(
  browser.chromium() is None,
  reason="no chromium (apt-get install chromium)",
)
def test_in_a_browser_an_edit_changes_the_answer(service, tmp_path):
  with (
    client.served(PageApp(service)) as port,
    browser.opened(tmp_path / "profile") as page,
  ):
    page.open(f"http://127.0.0.1:{port}")
    _use(page, service)


def _use(page, service):
  page.wait(lambda: page.text("#runs"), "the run is named")
  told = service.explain(_ASKED)
  # A question is typed, and its evidence seen.
  page.type("#text", _ASKED + browser.ENTER)
  page.wait(lambda: page.text("#answer") == told["answer"], "it is answered")
  assert told["without"]["left_out"] in page.text("#without")
  blocks = [one["block"] for one in told["candidates"]]
  assert page.texts(".block .title") == [b["title"] for b in blocks]
  assert told["answer"] in page.texts(".block-text .answer-mark")

  # A block is edited, and the answer is that of the edited text.
  edited = next(b for b in blocks if b["title"] == "Oda Stone")
  card = f'.block[data-id="{edited["id"]}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", _EDITED)
  page.click(f"{card} .editor .primary")
  page.wait(lambda: page.text("#edits"), "the page says that it is edited")
  after = service.explain(_ASKED, {edited["id"]: _EDITED})
  assert page.text("#answer") == after["answer"]
  assert told["answer"] in page.text("#before")
  # What looks like HTML is text.
  assert page.text(f"{card} .block-text") == _EDITED
  assert page.run("document.querySelectorAll('.block-text b').length") == 0
  page.click("#edit-list .restore")
  page.wait(lambda: page.text("#answer") == told["answer"], "it is restored")

  # A sentence, with the null block last.
  told = service.explain(_SENTENCE)
  page.type("#text", _SENTENCE + browser.ENTER)
  page.wait(lambda: page.text("#answer-title") == "Filling", "it is filled in")
  assert page.text("#answer") == told["answer"]
  assert page.texts(".block .title")[-1] == "No passage"
  # The policy has kept nothing of the page from working.
  assert page.console == []

  # What does not fit is refused in words, and is no edit.
  page.click(".block .edit")
  page.type(".block textarea", "Velt " * 50)
  page.click(".block .editor .primary")
  page.wait(lambda: "shorten it" in page.text("#error"), "it is refused")
  assert page.text("#edits") == ""
  address = page.run("location.href").partition("?")[0]
  page.open(f"{address}?q={_ASKED}")
  page.wait(lambda: page.text("#answer"), "what a link asks is answered")
  page.click(".block .actions button")
  page.wait(lambda: len(page.texts(".around")) == 2, "neighbours are shown")
