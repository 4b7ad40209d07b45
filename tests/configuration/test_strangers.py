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


@pytest.fixture
def in_bucket(stranger, object_store):
  """`in_bucket()`: a copy of that run, as it is by then, in a bucket."""

  def copy():
    path = epath.Path(object_store.path("stranger"))
    for file in stranger.rglob("*"):
      if file.is_file():
        target = path / str(file.relative_to(stranger))
        target.write_bytes(file.read_bytes())
    return path

  return copy


def _shared(stranger, **values):
  path = stranger / "config.json"
  kept = json.loads(path.read_text())
  kept["shared"] |= values
  path.write_text(json.dumps(kept))


def _open(model_dir, folder, **settings):
  """Does what ask, serve, explain, export_weights and evaluate do."""
  given = {"output_dir": folder, "to": "hf_bert"}
  opened = [
    lambda: realm_jax.load(model_dir, **settings).ask("who built it?"),
    lambda: realm_jax.load(model_dir, checkpoint_step="best", **settings),
    lambda: TrainedRun.load(
      configuration.parsed_for_run(RunConfig, model_dir, **settings).build(
        RunConfig
      )
    ),
    lambda: configuration.parsed_for_run(
      export_weights, model_dir, given=given, **settings
    ).build(export_weights, **given),
    lambda: configuration.parsed_for_run(
      evaluation,
      model_dir,
      recipe=evaluate._RECIPES,
      bindings=["QUESTIONS = questions.jsonl"],
      **settings,
    ).build(evaluation),
    lambda: configuration.parsed_for_run(
      TrainConfig, model_dir, recipe=None, **settings
    ).build(TrainConfig),
  ]
  said = []
  for one in opened:
    try:
      one()
    except (ValueError, OSError) as error:
      said.append(str(error))
  return said


_GETOUTPUT = {"kind": "subprocess:getoutput"}
_OF_CONFIG = {
  "kind": {"NUM_READ": _GETOUTPUT, "subprocess:getoutput.cmd": "touch it"},
  "class": {"RETRIEVER": {"kind": "trojan:Trojan"}},
  "field": {"trojan:Trojan.cmd": "x"},
  "python": {"READER": {"__class__": "trojan.Trojan"}},
  "builtin": {"QUERY_LENGTH": {"kind": "builtins:exec", "scope": "trojan"}},
  "scope": {"../../trojan/NUM_READ": 3},
  "name": {"NUM_READ": {"name": "trojan.Trojan"}},
  "policy": {"bert.remat_policy": "__init__"},
  "circle": {"NUM_READ": {"name": "NUM_READ"}},
  "newer": {"A_SETTING_OF_TOMORROW": 1},
  "place": {
    "TRAINING_TASK": {"name": "OUTPUT_DIR"},
    "OUTPUT_DIR": "../elsewhere",
  },
  "MODEL_DIR": {"train.model_dir": "../elsewhere"},
  "newer field": {"bert.tomorrow": 1},
  "type": {"QUERY_LENGTH": ["trojan"]},
}


@pytest.mark.parametrize("planted", _OF_CONFIG)
def test_what_a_config_names_is_looked_up_and_never_imported(
  planted, stranger, mark, tmp_path
):
  _shared(stranger, **_OF_CONFIG[planted])
  before = sorted(stranger.rglob("*"))
  said = _open(stranger, tmp_path / "out")
  assert not mark.exists() and "trojan" not in sys.modules
  assert sorted(stranger.rglob("*")) == before
  # Whatever reads it refuses it, and names the file.
  assert said and all("config.json" in text for text in said), said


_TOP = {
  "recipe": {"evaluation": "evil.gin"},
  "recipe elsewhere": {"evaluation": "../modules/evil.gin"},
  "asked": {"asked": "trojan"},
  "stage": {"stage": "trojan:Trojan"},
}


@pytest.mark.parametrize("planted", _TOP)
def test_what_a_config_says_of_its_stage_is_no_file_and_no_class(
  planted, stranger, mark, tmp_path
):
  path = stranger / "config.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **_TOP[planted]}))
  _open(stranger, tmp_path / "out")
  assert not mark.exists() and "trojan" not in sys.modules


def test_modules_of_tasks_are_named_and_not_imported(stranger, mark, tmp_path):
  _shared(
    stranger, TASK_MODULES=["realm_jax.tasks", "trojan"], TRAINING_TASK="quiz"
  )
  _open(stranger, tmp_path / "out")
  found = configuration.parsed_for_run(
    TrainConfig, stranger, recipe=None, bindings=["TASK = quiz"]
  )
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
    {"index_parameters": {"dtype": _GETOUTPUT, "__class__": "trojan.Trojan"}},
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


@pytest.mark.parametrize(
  ("planted", "words"),
  [
    ({"DTYPE": "trojan.Trojan"}, "no type of numbers"),
    ({"bert.dtype": {"kind": "bert"}}, "refers to itself"),
  ],
)
def test_a_type_of_numbers_is_one(stranger, planted, words):
  _shared(stranger, **planted)
  with pytest.raises(ValueError, match=words):
    realm_jax.load(stranger)


def test_a_best_checkpoint_is_a_number(stranger):
  best = json.dumps({"metric": "f1", "step": "../../x", "value": 1.0})
  (stranger / "best.json").write_text(best)
  with pytest.raises(ValueError, match=r"best\.json"):
    realm_jax.load(stranger, checkpoint_step="best")


def test_a_run_in_a_bucket_is_data_as_well(stranger, in_bucket, mark):
  _shared(stranger, **_OF_CONFIG["class"])
  with pytest.raises(ConfigurationError, match=r"gs://.*--modules=trojan"):
    realm_jax.load(in_bucket())
  assert not mark.exists() and "trojan" not in sys.modules


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("RETRIEVER = 1", "JSON"),
    ("[" * 100_000, "JSON"),
    ('{"version": 1, "x": "' + "x" * (1 << 20) + '"}', "bytes"),
    ("[]", "version"),
    ('{"version": 2}', "reads 1"),
    ('{"version": 1, "tomorrow": 1}', "newer"),
    ('{"version": 1, "shared": []}', "a dictionary"),
  ],
  ids=lambda text: text[:12],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, words):
  path = tmp_path / "config.json"
  path.write_text(text)
  with pytest.raises(ConfigurationError, match=f"config.json.*{words}"):
    Kept.read(path)


def test_a_run_of_an_older_version_is_told_what_to_do(tmp_path):
  (tmp_path / "model.gin").write_text("")
  with pytest.raises(ConfigurationError, match="INITIAL_CHECKPOINT"):
    configuration.parsed_for_run(RunConfig, tmp_path)
