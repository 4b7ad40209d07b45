"""Runs that differ in more than their rows are refused."""

import dataclasses
import json

import pytest

from realm_jax.ablation import records
from realm_jax.ablation.config import AblationError
from realm_jax.ablation.records import Record, record_of, require_same
from realm_jax.ablation.runs import Run
from realm_jax.stage_commands.command import StageCommand

_RECORD = Record("c0de", {"CORPUS_DIR": "f1"}, ["# train", "NUM_STEPS = 4"])


def test_a_run_continues_with_what_it_was_made_with(tmp_path):
  folder = tmp_path / "run"
  require_same(folder, _RECORD)
  records.write_record(folder, _RECORD)
  (folder / "checkpoint").write_text("")
  require_same(folder, _RECORD)


@pytest.mark.parametrize(
  "change, message",
  [
    ({"code": "0ther"}, r"other sources of realm_jax: c0de then, 0ther now"),
    ({"data": {"CORPUS_DIR": "f2"}}, r"another CORPUS_DIR than there is now"),
    (
      {"configuration": ["# train", "NUM_STEPS = 8"]},
      r"then, \+ now\):\n  -NUM_STEPS = 4\n  \+NUM_STEPS = 8",
    ),
  ],
)
def test_what_differs_is_named_with_what_to_do(tmp_path, change, message):
  folder = tmp_path / "realm"
  records.write_record(folder, _RECORD)
  changed = dataclasses.replace(_RECORD, **change)
  with pytest.raises(AblationError, match=message) as raised:
    require_same(folder, changed)
  assert str(folder) in str(raised.value)
  assert "remove this folder" in str(raised.value)


def test_a_record_has_the_corpus_the_questions_and_all_that_is_bound(
  tmp_path, world, recipes
):
  questions = tmp_path / "questions.jsonl"
  questions.write_text("one\n")

  def recorded(output_dir, **bindings):
    command = StageCommand(
      "train",
      ["gin/experiments/demo/open_qa.gin"],
      {
        "MODEL_DIR": str(output_dir / "run"),
        "CORPUS_DIR": str(world.corpus_dir),
        "TRAIN_QUESTIONS": str(questions),
        **bindings,
      },
    )
    run = Run(0, "run", output_dir / "run", command, ())
    return record_of(run, recipes, code="c0de", output_dir=output_dir)

  first = recorded(tmp_path)
  manifest = json.loads((world.corpus_dir / "corpus.json").read_text())
  assert first.data["CORPUS_DIR"] == manifest["fingerprint"]
  assert "MODEL_DIR = 'OUTPUT_DIR/run'" in first.configuration
  # The directory may be moved; nothing else may change.
  assert recorded(tmp_path / "moved") == first
  assert recorded(tmp_path, NUM_STEPS=9) != first
  questions.write_text("two\n")
  assert recorded(tmp_path).data != first.data
