"""The page with a model behind it: as a command, and in a real browser."""

import concurrent.futures
import os
import signal
import threading

import pytest
from absl import app, flags
from absl.testing import flagsaver

from realm_jax import serve
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.partitioning import cpu_tuning
from realm_jax.serving.requests import Edit, Limits, Question
from realm_jax.serving.server import PageServer, listen
from tests.serving import browser, client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_ASKED = "where was Ada born?"
_SENTENCE = "Ada was born in [MASK]."
_EDITED = (
  'Ada was born in <b>Tarn</b>. <img src="x" onerror="document.title=1">'
)


def test_the_command_serves_two_runs_to_a_crowd(
  world, served_run, masked_run, service, monkeypatch, capsys
):
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  port, seen = client.free_port(), {}
  texts = [
    f"{word} was Ada born {'in [MASK]' if i % 2 else ''} {i}?"
    for word in ("where", "when")
    for i in range(25)
  ]

  def visit():
    try:
      # It is answered once the runs have been loaded.
      seen["about"] = client.request(port, "GET", "/api/about").fields
      with concurrent.futures.ThreadPoolExecutor(50) as pool:
        seen["answers"] = [
          *pool.map(lambda text: client.ask(port, text), texts)
        ]
    finally:
      os.kill(os.getpid(), signal.SIGTERM)

  visitor = threading.Thread(target=visit)
  flags.FLAGS.mark_as_parsed()
  with (
    stop_on_sigterm() as stopped,
    flagsaver.flagsaver(
      model_dir=str(served_run),
      masked_model_dir=str(masked_run),
      example_questions=str(world.question_file),
      port=port,
    ),
  ):
    visitor.start()
    serve.main(["serve"])
    visitor.join()
  # The server took the signal, and ended as if it were done.
  assert not stopped.is_set()
  assert f"http://127.0.0.1:{port} " in capsys.readouterr().out

  runs = seen["about"]["runs"]
  assert {kind: run["model_dir"] for kind, run in runs.items()} == {
    "question": str(served_run),
    "masked sentence": str(masked_run),
  }
  examples = seen["about"]["examples"]
  assert examples["question"][0] == _ASKED and len(examples["question"]) == 4
  assert len(examples["masked sentence"]) == 4
  # All fifty are answered, and each its own question.
  assert {answer.status for answer in seen["answers"]} == {200}
  for text, answer in zip(texts, seen["answers"], strict=True):
    assert answer.fields["text"] == text
    if text in texts[:4]:
      told = service.ask(Question(text))
      assert answer.fields["answer"] == told["answer"]
      assert answer.fields["probability"] == pytest.approx(
        told["probability"], rel=1e-3
      )


def test_the_examples_are_sentences_of_the_corpus(service):
  corpus = service.runs["question"].explainer.corpus
  sentences = serve.example_sentences(corpus, 6, query_length=16)
  bodies = [corpus.body(row) for row in range(corpus.num_blocks)]
  assert len(set(sentences)) == 6
  for sentence in sentences:
    before, after = sentence.split("[MASK]")
    assert any(before in body and after in body for body in bodies)


def test_a_question_on_the_command_line_is_refused():
  with pytest.raises(app.UsageError, match="asked in the page"):
    serve.main(["serve", "who?"])


@pytest.mark.skipif(
  browser.chromium() is None,
  reason="no chromium and chromedriver (apt-get install chromium-driver)",
)
def test_in_a_browser_an_edit_changes_the_answer(service, tmp_path):
  with listen("127.0.0.1", 0) as listening:
    server = PageServer(service, listening, Limits())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
      with browser.opened(tmp_path) as page:
        page.open(f"http://127.0.0.1:{listening.getsockname()[1]}")
        _use(page, service)
        assert page.console() == []
    finally:
      server.stop()
      thread.join(30)


def _use(page, service):
  page.wait(lambda: page.text("#runs"), "the run is named")
  told = service.ask(Question(_ASKED))
  # A question is typed, and its evidence seen.
  page.type("#text", _ASKED + browser.ENTER)
  page.wait(lambda: page.text("#answer") == told["answer"], "it is answered")
  assert page.text("#without-answer") == told["without"]["answer"]
  assert page.texts(".block .title") == [b["title"] for b in told["blocks"]]
  assert page.texts(".block-text") == [b["body"] for b in told["blocks"]]
  marked = page.texts(".block-text .answer-mark")
  assert told["answer"] in marked
  assert page.text("#edits") == ""

  # The best block is edited; what looks like HTML is text.
  best = max(told["blocks"], key=lambda block: block["share"])
  card = f'.block[data-id="{best["id"]}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", _EDITED)
  page.click(f"{card} .editor .primary")
  edits = (Edit(int(best["id"]), _EDITED),)
  after = service.ask(Question(_ASKED, edits))
  page.wait(lambda: page.text("#edits"), "the page says that it is edited")
  assert page.text("#answer") == after["answer"]
  assert "in memory alone" in page.text("#edits")
  assert page.texts(".block-text") == [b["body"] for b in after["blocks"]]
  assert told["answer"] in page.text("#before")
  assert not page.run("return document.querySelectorAll('#blocks img').length")
  is_edited = [b["is_edited"] for b in after["blocks"]]
  assert (
    page.run(
      "return [...document.querySelectorAll('.block')]"
      ".map((node) => node.querySelector('.badge') !== null)"
    )
    == is_edited
  )

  # A text that does not fit is refused in words, and the edit stays.
  other = next(b for b in after["blocks"] if not b["is_edited"])
  card = f'.block[data-id="{other["id"]}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", "Velt " * 50)
  page.click(f"{card} .editor .primary")
  page.wait(lambda: "shorten it" in page.text("#error"), "it is refused")
  assert len(page.texts("#edit-list li")) == 1
  assert page.text(f"{card} .editor")

  page.click("#edit-list .restore")
  page.wait(lambda: page.text("#answer") == told["answer"], "it is restored")
  page.wait(lambda: page.text("#edits") == "", "nothing is edited")

  # A sentence, and one that is wrong.
  told = service.ask(Question(_SENTENCE))
  page.type("#text", _SENTENCE + browser.ENTER)
  page.wait(lambda: page.text("#answer-title") == "FILLING", "it is filled in")
  assert page.text("#answer") == told["answer"]
  assert page.text("#without-answer") == told["without"]["answer"]
  page.type("#text", "Ada was born in [mask]." + browser.ENTER)
  page.wait(lambda: "in capitals" in page.text("#error"), "it is refused")
