"""The commands evaluate, compare, ask and explain, in this process."""

import io
import json
import re
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax import ask, compare, evaluate, explain
from realm_jax.configuration import command_line
from realm_jax.partitioning import cpu_tuning
from tests import tiny_world

pytestmark = pytest.mark.slow

command_line.define_run_flags()


@pytest.fixture
def command(monkeypatch, tmp_path):
  """`command(module, *words, **flags)` returns the JSON that it writes."""
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  flags.FLAGS.mark_as_parsed()

  def run(module, *words, gin=(), **given):
    path = tmp_path / "figures.json"
    bindings = [f"{name} = {value!r}" for name, value in dict(gin).items()]
    with flagsaver.flagsaver(json=str(path), gin_bindings=bindings, **given):
      module.main([module.__name__, *words])
    return json.loads(path.read_text()) if path.exists() else None

  return run


def test_what_is_measured_is_printed_written_and_compared(
  world, recorded_run, evaluated, tmp_path, capsys, command
):
  gin = {
    "OUTPUT_DIR": str(tmp_path),
    "BATCH_SIZE": 8,
    "QUESTIONS": str(world.question_file),
    "RANK_ANSWERS_BY": "best_span",
  }
  model_dir = str(recorded_run("open_qa"))
  metrics = command(evaluate, model_dir=model_dir, gin=gin)
  assert metrics == json.loads((tmp_path / "metrics.json").read_text())
  # One device finds what eight did.
  for name in ("exact_match", "f1", "recall_at_1", "mrr"):
    assert metrics[name] == pytest.approx(evaluated[0][name])
  lines = capsys.readouterr().out.splitlines()
  printed = dict(line.split(maxsplit=1) for line in lines)
  low, high = metrics.pop("intervals")["f1"]
  assert printed["f1"] == f"{metrics['f1']:.4f}  [{low:.4f}, {high:.4f}]"

  predictions = [str(tmp_path / "predictions.jsonl")] * 2
  compared = command(compare, predictions=predictions)
  assert compared["comparisons"][0]["f1"]["first"] == pytest.approx(
    metrics["f1"]
  )
  rows = [row.split() for row in capsys.readouterr().out.splitlines()]
  shown = next(row for row in rows if row[:1] == ["f1"])
  assert shown[1:4] == [f"{metrics['f1']:.4f}"] * 2 + ["+0.0000"]


def test_a_recipe_follows_a_run(
  world, model_dir, tmp_path, capsys, keep_record, command
):
  keep_record("open_qa", tmp_path)
  world.save_checkpoint(tmp_path, step=3, snapshot=0)
  gin = {
    "OUTPUT_DIR": str(tmp_path),
    "BATCH_SIZE": 8,
    "SNAPSHOT": str(model_dir / "snapshots"),
    "QUESTIONS": str(world.question_file),
    "BEST_METRIC": "f1",
    "FOLLOW_UNTIL_STEP": 3,
  }
  metrics = command(evaluate, model_dir=str(tmp_path), follow=True, gin=gin)
  assert metrics == json.loads((tmp_path / "3" / "metrics.json").read_text())
  assert metrics["checkpoint"] == 3
  assert "exact_match" in capsys.readouterr().out
  best = json.loads((tmp_path / "best.json").read_text())
  assert (best["step"], best["value"]) == (3, metrics["f1"])


def test_ask_answers_each_line_of_its_input(
  recorded_run, evaluated, monkeypatch, capsys, caplog, command
):
  lines = evaluated[1][:2]
  first, second = (line["question"] + "\n" for line in lines)
  # Neither the vocabulary nor UTF-8 can spell what is between them.
  questions = f"{first}漢字\n\udcff\n{second}"
  monkeypatch.setattr(sys, "stdin", io.StringIO(questions))
  gin = {"RANK_ANSWERS_BY": "best_span"}
  command(ask, model_dir=str(recorded_run("open_qa")), gin=gin)
  output = capsys.readouterr().out
  for line in lines:
    assert f"1. {line['prediction']}" in output
    assert f"«{line['prediction']}»" in " ".join(output.split())
    assert f"[block {line['answer']['block']}, rank " in output
  assert output.index("error: '漢字' has no word") < output.index(second)
  assert "has half of a surrogate pair" in output
  assert "2 of 4 lines have an error" in caplog.text


def test_explain_goes_on_after_a_line_without_a_mask(
  recorded_run, monkeypatch, capsys, command
):
  lines = "who is Ada?\nLater Ada [MASK] the bridge.\n"
  monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
  model_dir = str(recorded_run("pretrain"))
  refused, explained = command(explain, model_dir=model_dir)["explanations"]
  assert "has not learnt to answer questions" in refused["error"]
  assert refused["text"] == "who is Ada?" and "error" not in explained
  assert f"error: {refused['error']}" in capsys.readouterr().out


def test_an_explanation_is_printed_and_written(recorded_run, capsys, command):
  found = command(
    explain,
    "Later Ada [MASK] the bridge.",
    model_dir=str(recorded_run("pretrain")),
    answer="built",
    num_texts=1,
    gin={"NUM_CANDIDATES": 6},
  )
  text = capsys.readouterr().out
  (found,) = found["explanations"]
  assert (found["answer"], found["answer_is_given"]) == ("built", True)
  assert len(found["blocks"]) == 6
  for one in found["blocks"]:
    assert f"{one['share']:.4f}" in text
    assert f"{one['reward']:+.4f}" in text
  assert found["blocks"][1]["text"] in " ".join(text.split())


@pytest.fixture(scope="module")
def odd_corpus(world, model_dir, tmp_path_factory):
  """A corpus with control characters, and the folder of its snapshot."""
  folder = tmp_path_factory.mktemp("odd")
  odd = (
    "\x1b]0;owned\x07\u202e\x9b31m \ue000 Ada was born in Velt. \ue001\x01\x02"
  )
  articles = [{"title": f"\x1b[2J{n}", "text": f"{n} {odd}"} for n in range(9)]
  vocab = world.directory / "vocab.txt"
  corpus = tiny_world.write_corpus(folder, articles, vocab=vocab)
  world.build_snapshot(model_dir, corpus_dir=corpus, snapshots_dir=folder / "s")
  return corpus, folder / "s"


@pytest.mark.parametrize(
  ("module", "words", "recipe"),
  [
    (ask, "where was Ada born?", "open_qa"),
    (explain, "Ada [MASK].", "pretrain"),
  ],
)
def test_a_text_cannot_change_the_terminal_nor_make_marks(
  odd_corpus, recorded_run, capsys, command, module, words, recipe
):
  corpus, snapshots = map(str, odd_corpus)
  model_dir, gin = str(recorded_run(recipe)), {"SNAPSHOT": snapshots}
  command(module, words, model_dir=model_dir, corpus_dir=corpus, gin=gin)
  output = capsys.readouterr().out
  shown = (r"\x1b[2J", r"\x1b]0;", r"owned\x07\u202e\x9b31m", r"\x01\x02")
  assert not [text for text in (*shown, "\ue000") if text not in output]
  assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output)
  if module is ask:
    # One pair of marks for each answer.
    assert output.count("«") == output.count("»") == output.count("[block ")
