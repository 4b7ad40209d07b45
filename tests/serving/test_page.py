"""The page with a model behind it: what it is told, the command, a browser."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import threading
import types

import pytest
from absl import flags
from absl.testing import flagsaver

from harness.jobs import free_port, wait_until
from realm_jax import serve
from realm_jax.configuration import command_line
from realm_jax.evaluation.encoding import EditError
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.run import QUESTION, SENTENCE, TrainedRun
from realm_jax.models.components import Components
from realm_jax.models.retriever import HOP_TOWER
from realm_jax.partitioning import cpu_tuning
from realm_jax.serving.app import PageApp
from realm_jax.serving.requests import RequestError
from realm_jax.serving.service import Service
from realm_jax.training.stages.contrastive import Contrastive
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.two_hops import TwoHops
from tests import tiny_world
from tests.serving import browser, client

pytestmark = pytest.mark.slow

_ASKED = "where was Ada born?"
_SENTENCE = "Ada was born in [MASK]."
_EDITED = "Oda was born in <b>Velt."


_needs_chromium = pytest.mark.skipif(
  browser.chromium() is None, reason="no chromium (apt-get install chromium)"
)


@contextlib.contextmanager
def _in_browser(service, folder, query=""):
  """Yields the page of a service, which must cause no error."""
  with (
    client.served(PageApp(service)) as port,
    browser.opened(folder / "profile") as page,
  ):
    page.open(f"http://127.0.0.1:{port}/{query}")
    yield page
    # The policy has kept nothing of the page from working.
    assert page.console == []


@pytest.fixture(scope="module")
def service(run) -> Service:
  return Service(run)


@pytest.mark.parametrize("text", [_ASKED, _SENTENCE])
def test_what_is_told_is_what_is_explained(run, service, text):
  # JSON can hold all of it.
  told = json.loads(json.dumps(service.explain(text), allow_nan=False))
  explained = explain(run, text)
  blocks, without = told["blocks"], told["without"]
  for one, hit in zip(blocks, explained.hits, strict=True):
    segments, _ = one.pop("segments"), one.pop("around")
    assert not one.pop("is_edited") and not one.pop("title_segments")
    assert "".join(s["text"] for s in segments) == hit.block.text
  assert told | json.loads(json.dumps(explained.json())) == told
  if text == _SENTENCE:
    # Without any block, the null block is left.
    null = explained.hits[0].best
    assert (without["left_out"], without["answer"]) == (None, null.text)
    return
  # Without its best block, another one is read.
  best = max(explained.hits, key=lambda hit: hit.share).block
  assert without["left_out"] == best.title
  other = explain(run.edited({}, hidden=[best.row]), _ASKED)
  assert without["answer"] == other.answer
  assert without["same"] == (other.answer == told["answer"])


@pytest.fixture(scope="module")
def of_paths(run) -> TrainedRun:
  """The same run, which reads paths of two blocks."""
  hops = run.components.retriever.clone(hop_length=tiny_world.JOINT_LENGTH)
  towers = run.params["retriever"]
  towers = {**towers, HOP_TOWER: towers["tower"]}
  return dataclasses.replace(
    run,
    params={**run.params, "retriever": towers},
    config=dataclasses.replace(run.config, paths=TwoHops(3, 2), num_read=4),
    components=Components({**run.components, "retriever": hops}),
    asked=QUESTION,
  )


def test_the_passages_of_a_path_are_told_apart(of_paths):
  explained = explain(of_paths, _ASKED)
  with client.served(PageApp(Service(of_paths))) as port:
    told = client.ask(port, _ASKED).json()
    second = next(b for b in told["blocks"] if "path" in b)["path"][1]
    edits = [{"id": second["id"], "text": _EDITED}]
    edited = client.post(port, "/api/ask", text=_ASKED, edits=edits).json()
  for one, hit in zip(told["blocks"], explained.hits, strict=True):
    first, *others = one.get("path", [one])
    pieces = [*first["segments"]]
    assert [p["id"] for p in (first, *others)] == [
      part.id for part in hit.block.parts
    ]
    for passage in others:
      assert passage["title_segments"], passage["segments"]
      for name in ("title_segments", "segments"):
        pieces += [{"text": "\n", "mark": "break"}, *passage[name]]
    assert "".join(piece["text"] for piece in pieces) == hit.block.text
    # What the path alone would answer is marked, also beyond a passage.
    marks = [piece["mark"] for piece in pieces for _ in piece["text"]]
    assert all(marks[hit.best.start : hit.best.limit])
  best = max(explained.hits, key=lambda hit: hit.share).block
  hidden = [part.row for part in best.parts]
  assert told["without"]["left_out"] == best.title
  other = explain(of_paths.edited({}, hidden=hidden), _ASKED)
  assert told["without"]["answer"] == other.answer
  passages = [p for b in edited["blocks"] for p in b.get("path", [b])]
  assert {p["id"] for p in passages if p["is_edited"]} <= {second["id"]}
  row = second["row"]
  after = explain(of_paths.edited({row: _EDITED}), _ASKED)
  assert edited["answer"] == after.answer


def test_edits_are_those_of_one_request(run, service):
  first = explain(run, _ASKED).hits[0].block
  edited = explain(run.edited({first.row: first.text + " Ada."}), _ASKED)
  told = service.explain(_ASKED, {first.id: first.text + " Ada."})
  assert told["answer"] == edited.answer
  assert told["probability"] == pytest.approx(edited.probability)
  assert [one["is_edited"] for one in told["blocks"]] == [
    hit.block.row == first.row for hit in edited.hits
  ]
  # A text as it was is no edit, and another page sees none.
  same = service.explain(_ASKED, {first.id: f" {first.text} "})
  assert same == service.explain(_ASKED)
  for name in ("p0:77", "nobody:0", ""):
    with pytest.raises(EditError, match=f"no block has the id '{name}'"):
      service.explain(_ASKED, {name: "Ada."})


@pytest.fixture(scope="module")
def retriever(world, run_config, tmp_path_factory) -> TrainedRun:
  model_dir = tmp_path_factory.mktemp("retriever")
  world.save_checkpoint(model_dir, stage=InverseCloze())
  world.build_snapshot(model_dir)
  config = dataclasses.replace(run_config, model_dir=model_dir, reader=None)
  return TrainedRun.load(config)


def test_a_retriever_alone_retrieves(retriever):
  alone, service = retriever, Service(retriever)
  service.warm_up()
  (found,) = service.retrieve([_ASKED], 3)
  # As Python and the evaluations find them.
  expected = alone.search(alone.encode([_ASKED]), 3)
  assert [block["row"] for block in found["blocks"]] == expected.rows[
    0
  ].tolist()
  assert service.about()["runs"] == {} and len(service.about()["missing"]) == 2
  with pytest.raises(RequestError, match="cannot answer questions"):
    next(service.answer([_ASKED]))


def test_a_run_that_retrieves_nothing_answers_without_a_snapshot(
  world, run_config, tmp_path
):
  world.save_checkpoint(tmp_path)
  config = dataclasses.replace(
    run_config, model_dir=tmp_path, candidates="none", num_read=1
  )
  service = Service(TrainedRun.load(config))
  service.warm_up()
  (answered,) = service.answer([_ASKED])
  assert answered["snapshot"] is None and "error" not in answered
  assert service.health()["status"] == "ok"
  told = service.about()["runs"][QUESTION]
  assert (told["index"], told["can_edit"]) == (None, False)


def test_a_client_of_search_r1_finds_documents(run, service):
  """As the rollouts of Search-R1 and of what follows it ask and read."""
  queries = [_ASKED, "ქართული", _ASKED]
  with client.served(PageApp(service)) as port:
    payload = {"queries": queries, "topk": 2, "return_scores": True}
    scored = client.post(port, "/retrieve", **payload).json()["result"]
    bare = client.post(port, "/retrieve", queries=queries, topk=2).json()
  assert [len(one) for one in scored] == [2, 0, 2]
  assert bare["result"] == [[one["document"] for one in of] for of in scored]
  found = run.search(run.encode([_ASKED]), 2)
  expected = run.hits(found)[0]
  for one, hit in zip(scored[0], expected, strict=True):
    document, block = one["document"], hit.block
    title, _, text = document["contents"].partition("\n")
    assert (title, text) == (f'"{block.title}"', block.text)
    assert (document["id"], document["title"]) == (block.id, block.title)
    assert one["score"] == pytest.approx(hit.score)


def test_a_filter_says_which_blocks_may_answer(service):
  where = {"year": ["1902", "1905"]}
  with client.served(PageApp(service)) as port:
    asked = {"queries": [_ASKED], "k": 9, "where": where}
    (found,) = client.post(port, "/retrieve", **asked).json()["results"]
    asked = {"questions": [_ASKED], "where": where}
    (answered,) = client.post(port, "/ask", **asked).json()["results"]
    bad = client.post(port, "/ask", questions=["a"], where={"colour": "red"})
  names = {block["id"] for block in found["blocks"]}
  assert names and {block["id"] for block in answered["blocks"]} <= names
  assert bad.status_code == 400 and "--fields=colour" in bad.json()["error"]


def test_updates_are_counted(run):
  service = Service(run)
  names = [run.corpus.block(row).id for row in range(3)]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr("realm_jax.serving.service.MAX_UPDATES", 2)
    service.update(dict.fromkeys(names[:2], "Ada."))
    with pytest.raises(RequestError, match=r"3 blocks.*update_corpus"):
      service.update({names[2]: "Ada."})
    service.update({names[0]: "Béla."})


def test_a_run_is_followed_while_it_is_asked(world, run_config, tmp_path):
  shutil.copytree(run_config.model_dir, tmp_path / "run")
  config = dataclasses.replace(run_config, model_dir=tmp_path / "run")
  run, stop = TrainedRun.load(config), threading.Event()
  service = Service(run)
  service.update({run.corpus.block(0).id: _EDITED})
  following = threading.Thread(
    target=serve.follow, args=(service, run, stop), kwargs={"poll_seconds": 0.1}
  )

  world.save_checkpoint(tmp_path / "other", step=1, seed=1, snapshot=0)
  newer = tmp_path / "other" / "checkpoints" / "1"
  # As a copy that has not come to its end.
  lacking = (newer / "retriever" / "_METADATA").rename(tmp_path / "_METADATA")
  newer = newer.rename(tmp_path / "run" / "checkpoints" / "1")
  following.start()
  try:
    wait_until(lambda: service.health()["problem"], what="the failure is said")
    assert service.health()["status"] == "stale"
    assert service.health()["checkpoint"] == 0
    lacking.rename(newer / "retriever" / "_METADATA")
    wait_until(
      lambda: service.health()["checkpoint"] == 1,
      what="the newer checkpoint answers",
    )
  finally:
    stop.set()
    following.join()
  assert service.health()["problem"] is None
  (found,) = service.retrieve([_ASKED], run.snapshot.num_blocks)
  assert _EDITED in [block["text"] for block in found["blocks"]]


def test_a_checkpoint_waits_for_its_snapshot(world, run_config, tmp_path):
  folder = tmp_path / "run"
  world.save_checkpoint(folder, stage=Contrastive())
  world.build_snapshot(folder)
  config = dataclasses.replace(run_config, model_dir=folder)
  service = Service(run := TrainedRun.load(config))
  world.save_checkpoint(folder, step=1, seed=1, stage=Contrastive())

  def look_once():
    looks = iter([False, True])
    stop = types.SimpleNamespace(wait=lambda seconds: next(looks))
    serve.follow(service, run, stop)
    return service.health()["status"], service.health()["checkpoint"]

  # It is not stale: the index builder is at work.
  assert look_once() == ("ok", 0)
  world.build_snapshot(folder)
  assert look_once() == ("ok", 1)


def test_the_command_serves_two_runs_until_sigterm(
  world, recorded_run, monkeypatch, capsys, one_device
):
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  run, masked_run = recorded_run("open_qa"), recorded_run("pretrain")
  port, seen = free_port(), {}

  def visit():
    try:
      said = f"http://127.0.0.1:{port} "
      wait_until(lambda: said in capsys.readouterr().out, what="an address")
      seen["about"] = client.request(port, "GET", "/api/about").json()
      for text in (_ASKED, _SENTENCE):
        seen[text] = client.ask(port, text).json()
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
    masked_model_dir=str(masked_run),
    example_questions=str(world.question_file),
    port=port,
  ):
    visitor.start()
    serve.main(["serve"])
    visitor.join()
  signal.signal(signal.SIGTERM, before)

  for kind, folder, text in (
    (QUESTION, run, _ASKED),
    (SENTENCE, masked_run, _SENTENCE),
  ):
    assert seen["about"]["runs"][kind]["model_dir"] == str(folder)
    # Each is answered its own question.
    assert seen[text]["text"] == text and seen[text]["answer"]
    assert seen[text]["run"]["model_dir"] == str(folder)
  examples = seen["about"]["examples"]
  assert examples[0] == _ASKED and len(examples) == 4


@_needs_chromium
def test_in_a_browser_an_edit_changes_the_answer(service, tmp_path):
  with _in_browser(service, tmp_path) as page:
    page.wait(lambda: page.text("#runs"), "the run is named")
    told = service.explain(_ASKED)
    # A question is typed, and its evidence seen.
    page.type("#text", _ASKED + browser.ENTER)
    page.wait(lambda: page.text("#answer") == told["answer"], "it is answered")
    assert told["without"]["left_out"] in page.text("#without")
    blocks = told["blocks"]
    assert page.texts(".block .title") == [b["title"] for b in blocks]
    assert told["answer"] in page.texts(".block-text .answer-mark")

    # A block that is still read afterwards is edited, and the answer is that of
    # the edited text.
    def read(edits):
      return [block["id"] for block in service.explain(_ASKED, edits)["blocks"]]

    edited = next(b for b in blocks if b["id"] in read({b["id"]: _EDITED}))
    card = browser.edit_passage(page, edited["id"], _EDITED)
    after = service.explain(_ASKED, {edited["id"]: _EDITED})
    assert page.text("#answer") == after["answer"]
    assert told["answer"] in page.text("#before")
    # What looks like HTML is text.
    assert page.text(f"{card} .block-text") == _EDITED
    assert page.run("document.querySelectorAll('.block-text b').length") == 0
    page.click("#edit-list .restore")
    page.wait(lambda: page.text("#answer") == told["answer"], "it is restored")
    page.click(".block .actions button")
    page.wait(lambda: len(page.texts(".around")) == 2, "neighbours are shown")

    # A sentence, with the null block last.
    told = service.explain(_SENTENCE)
    page.type("#text", _SENTENCE + browser.ENTER)
    page.wait(
      lambda: page.text("#answer-title") == "Filling", "it is filled in"
    )
    assert page.text("#answer") == told["answer"]
    assert page.texts(".block .title")[-1] == "No passage"


@_needs_chromium
def test_in_a_browser_a_retriever_alone_is_searched(retriever, tmp_path):
  service = Service(retriever)
  with _in_browser(service, tmp_path) as page:
    page.wait(lambda: page.text("#submit") == "Search", "it offers a search")
    page.type("#text", _ASKED + browser.ENTER)
    page.wait(lambda: page.texts(".block .title"), "passages are shown")
    (found,) = service.retrieve([_ASKED], 10)
    titles = [block["title"] for block in found["blocks"]]
    assert page.texts(".block .title") == titles


@_needs_chromium
def test_in_a_browser_a_passage_of_a_path_is_edited(of_paths, tmp_path):
  service = Service(of_paths)
  blocks = service.explain(_ASKED)["blocks"]
  passages = [one for block in blocks for one in block.get("path", [block])]
  with _in_browser(service, tmp_path, f"?q={_ASKED}") as page:
    page.wait(lambda: page.text("#answer"), "it is answered")
    assert page.texts(".title") == [one["title"] for one in passages]
    assert page.texts(".block-text") == [one["text"] for one in passages]
    second = next(b for b in blocks if "path" in b)["path"][1]
    browser.edit_passage(page, second["id"], _EDITED)
    after = service.explain(_ASKED, {second["id"]: _EDITED})
    assert page.text("#answer").split() == after["answer"].split()
