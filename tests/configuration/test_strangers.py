"""A MODEL_DIR is data: to open a stranger's executes and imports nothing."""

import json
import shutil
import sys

import pytest
from etils import epath

import realm_jax
from realm_jax import configuration, evaluate
from realm_jax.configuration import ConfigurationError, Kept
from realm_jax.evaluation.evaluate import evaluate as evaluation
from realm_jax.evaluation.run import RunConfig, TrainedRun
from realm_jax.inputs.examples import find_task
from realm_jax.snapshots.manifest import to_checked_json
from realm_jax.training.config import TrainConfig
from realm_jax.weights.exporting import export_weights

_GIN = """
import trojan
import subprocess
subprocess.getoutput.cmd = "touch {mark}"
NUM_READ = @subprocess.getoutput()
"""
_TROJAN = """
import dataclasses, pathlib
pathlib.Path({mark!r}).touch()

@dataclasses.dataclass
class Trojan:
  cmd: str = ""
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
  """The file that is there once anything planted was executed."""
  folder = tmp_path / "modules"
  folder.mkdir()
  monkeypatch.syspath_prepend(folder)
  monkeypatch.chdir(folder)
  path = tmp_path / "executed"
  (folder / "trojan.py").write_text(_TROJAN.format(mark=str(path)))
  (folder / "evil.gin").write_text(_GIN.format(mark=path))
  yield path
  sys.modules.pop("trojan", None)


@pytest.fixture
def stranger(recorded_run, mark, tmp_path):
  """A run of open QA, a copy of its own, with gin files of old beside it."""
  model_dir = tmp_path / "stranger"
  shutil.copytree(recorded_run("open_qa"), model_dir)
  for name in ("model.gin", "config.gin"):
    (model_dir / name).write_text(_GIN.format(mark=mark))
  best = {"metric": "f1", "step": 0, "value": 1.0}
  (model_dir / "best.json").write_text(json.dumps(best))
  return model_dir


def _plant(stranger, planted):
  """Replaces values of a run's config.json, by their places."""
  path = stranger / "config.json"
  kept = json.loads(path.read_text())
  for place, value in planted.items():
    if place.startswith("/"):
      kept[place[1:]] = value
      continue
    *parents, field = place.split(".")
    node, shared = kept["config"], kept["shared"]
    for name in parents:
      node = node["fields"][name]
    node["fields"][field] = value
    # What other commands take is there by its name.
    first, *others = parents or [""]
    if (own := shared.get(first.upper())) is None:
      shared[field.upper()] = value
      continue
    for name in others:
      own = own["fields"][name]
    own["fields"][field] = value
  path.write_text(json.dumps(kept))


def _open(model_dir, folder, **settings):
  """Does what ask, serve, explain, export_weights and evaluate do."""

  def configured(function, **more):
    made = configuration.parsed(
      function, model_dir=model_dir, **settings, **more
    )
    return made.build(function)

  arguments = {"output_dir": folder, "to": "hf_bert"}
  opened = [
    lambda: realm_jax.load(model_dir, **settings).ask("who built it?"),
    lambda: realm_jax.load(model_dir, checkpoint_step="best", **settings),
    lambda: TrainedRun.load(configured(RunConfig)),
    lambda: configured(export_weights, arguments=arguments),
    lambda: configured(
      evaluation,
      recipe=evaluate._RECIPES,
      bindings=["QUESTIONS = questions.jsonl"],
    ),
    lambda: configured(TrainConfig, recipe=None),
  ]
  said = []
  for one in opened:
    try:
      one()
    except (ValueError, OSError) as error:
      said.append(str(error))
  return said


def _object(kind, **fields):
  return {"kind": kind, "fields": fields}


_OF_CONFIG = {
  "kind": {"stage.num_read": _object("subprocess:getoutput", cmd="touch it")},
  "class": {"retriever": _object("trojan:Trojan")},
  "python": {"reader": {"__class__": "trojan.Trojan"}},
  "dictionary": {"stage.num_read": {"kind": "trojan:Trojan"}},
  "policy": {"retriever.bert.remat_policy": "__init__"},
  "place": {"output_dir": "../elsewhere"},
  "newer field": {"retriever.bert.tomorrow": 1},
  "type": {"data.query_length": ["trojan"]},
  # What the file says of its stage.
  "recipe": {"/evaluation": "evil.gin"},
  "recipe elsewhere": {"/evaluation": "../modules/evil.gin"},
  "asked": {"/asked": "trojan"},
  "another": {"/stage": "trojan:Trojan"},
}


@pytest.mark.parametrize("planted", _OF_CONFIG)
def test_what_a_config_names_is_looked_up_and_never_imported(
  planted, stranger, mark, tmp_path
):
  _plant(stranger, _OF_CONFIG[planted])
  before = sorted(stranger.rglob("*"))
  said = _open(stranger, tmp_path / "out")
  assert not mark.exists() and "trojan" not in sys.modules
  assert sorted(stranger.rglob("*")) == before
  # Whatever reads it refuses it, and names the file. An evaluation that does
  # not read it lacks its questions.
  refused = [text for text in said if "questions.jsonl" not in text]
  assert refused and all("config.json" in text for text in refused), said


def test_a_run_shares_no_name_that_no_class_marks(stranger):
  path = stranger / "config.json"
  kept = json.loads(path.read_text())
  kept["shared"] |= {"OUTPUT_DIR": "../elsewhere", "NUM_READ": 3}
  path.write_text(json.dumps(kept))
  found = configuration.parsed(
    evaluation,
    model_dir=stranger,
    recipe=evaluate._RECIPES,
    bindings=["QUESTIONS = questions.jsonl"],
  )
  assert found.names["NUM_READ"] == 3
  assert found.names.get("OUTPUT_DIR") != "../elsewhere"


def test_a_run_does_not_say_where_it_is(stranger):
  _plant(stranger, {"model_dir": "../elsewhere"})
  found = configuration.parsed(TrainConfig, model_dir=stranger, recipe=None)
  assert found.build(TrainConfig).model_dir == str(stranger)


def test_modules_of_tasks_are_named_and_not_imported(stranger, mark, tmp_path):
  modules = ["realm_jax.tasks", "trojan"]
  _plant(stranger, {"data.task_modules": modules, "data.task": "quiz"})
  _open(stranger, tmp_path / "out")
  found = configuration.parsed(TrainConfig, model_dir=stranger, recipe=None)
  data = found.build(TrainConfig).data
  with pytest.raises(ValueError, match="--modules=trojan"):
    find_task(data.task, data.task_modules)
  assert not mark.exists() and "trojan" not in sys.modules
  # Who names the module trusts it.
  _open(stranger, tmp_path / "out", modules=["trojan"])
  assert mark.exists()


@pytest.mark.parametrize(
  "planted",
  [
    {"index_kind": "trojan:Trojan"},
    {"index_kind": ["exact"]},
    {
      "index_parameters": {
        "dtype": _object("subprocess:getoutput"),
        "__class__": "trojan.Trojan",
      }
    },
    {"dtype": "trojan"},
    {"dtype": "object"},
    {"step": "../../x"},
    {"folder": "../../x"},
  ],
  ids=str,
)
def test_a_manifest_names_no_class_and_no_place(
  planted, stranger, mark, tmp_path
):
  (manifest,) = (stranger / "snapshots").glob("*/manifest.json")
  values = json.loads(manifest.read_text())
  del values["manifest_sha256"]
  manifest.write_text(to_checked_json({**values, **planted}))
  with pytest.raises(ValueError, match=r"manifest|index|dtype"):
    realm_jax.load(stranger).ask("who built it?")
  assert not mark.exists() and "trojan" not in sys.modules


def test_a_type_of_numbers_is_one(stranger):
  _plant(stranger, {"retriever.bert.dtype": "trojan.Trojan"})
  with pytest.raises(ValueError, match="no numeric type"):
    realm_jax.load(stranger)


def test_a_best_checkpoint_is_a_number(stranger):
  best = json.dumps({"metric": "f1", "step": "../../x", "value": 1.0})
  (stranger / "best.json").write_text(best)
  with pytest.raises(ValueError, match=r"best\.json"):
    realm_jax.load(stranger, checkpoint_step="best")


def test_a_run_in_a_bucket_is_data_as_well(stranger, object_store, mark):
  _plant(stranger, _OF_CONFIG["class"])
  run = epath.Path(object_store.path("stranger"))
  content = (stranger / "config.json").read_bytes()
  (run / "config.json").write_bytes(content)
  with pytest.raises(ConfigurationError, match=r"--modules=trojan.*gs://"):
    realm_jax.load(run)
  assert not mark.exists() and "trojan" not in sys.modules


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("RETRIEVER = 1", "JSON"),
    ("[" * 100_000, "JSON"),
    ('{"version": 2, "x": "' + "x" * (1 << 20) + '"}', "bytes"),
    ("[]", "version"),
    ('{"version": 1}', "version 1, .* reads 2; .* INITIAL_CHECKPOINT"),
    ('{"version": 2, "tomorrow": 1}', "tomorrow"),
    (
      '{"version": 2, "asked": null, "evaluation": null, "shared": {}, '
      '"config": []}',
      "a dictionary",
    ),
  ],
  ids=lambda text: text[:12],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, words):
  path = tmp_path / "config.json"
  path.write_text(text)
  with pytest.raises(ConfigurationError, match=f"config.json.*{words}"):
    Kept.read(path)
