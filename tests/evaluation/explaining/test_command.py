"""The command explain, with its flags, in this process."""

import functools
import importlib
import json

import pytest
from absl import app, flags

from realm_jax import configuration
from realm_jax.partitioning import cpu_tuning
from tests import tiny_world

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_MODEL = "gin/models/tiny.gin"


@pytest.fixture(scope="module")
def own_flags():
  """The command's flags, in a registry of their own, and its module.

  Other commands have flags of the same names in the registry of this process.
  """
  registry = flags.FlagValues()
  with pytest.MonkeyPatch.context() as patch:
    for name in ("string", "multi_string", "bool", "integer"):
      name = f"DEFINE_{name}"
      define = functools.partial(getattr(flags, name), flag_values=registry)
      patch.setattr(flags, name, define)
    yield registry, importlib.import_module("realm_jax.explain")


@pytest.fixture
def explain(world, model_dir, own_flags, monkeypatch, project_dir):
  """`explain(*arguments)` runs the command on the tiny world."""
  registry, module = own_flags
  given = {"MODEL_DIR": str(model_dir), "CORPUS_DIR": str(world.corpus_dir)}
  bindings = [
    *tiny_world.GIN_BINDINGS,
    *(f"{name} = {value!r}" for name, value in given.items()),
    "NUM_CANDIDATES = 6",
    # The very modules of the other tests, whose programs are compiled once.
    "bert.BertConfig.init_stddev = 0.2",
    "retriever.Retriever.projection_dropout_rate = 0.1",
  ]
  files = [_MODEL, "gin/runs/explain.gin"]

  def call(function, **overrides):
    with configuration.parsed(files, bindings):
      return configuration.configured(function)(**overrides)

  # As if the command line had given them.
  monkeypatch.setattr(configuration, "call", call)
  monkeypatch.setattr(configuration, "given", lambda: (files, bindings))
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)

  def run(*arguments):
    registry.unparse_flags()
    for name in registry:
      registry[name].unparse()
    module.main(registry(["explain", *arguments]))

  return run


def test_a_sentence_beside_a_baseline(explain, model_dir, tmp_path, capsys):
  explain(
    "Later Ada [MASK] the bridge.",
    "--answer=built",
    f"--baseline={model_dir}",
    f"--json={tmp_path / 'found.json'}",
    "--num_texts=1",
  )
  text = capsys.readouterr().out
  (found,) = json.loads((tmp_path / "found.json").read_text())["explanations"]
  assert (found["answer"], found["answer_is_given"]) == ("built", True)
  assert len(found["candidates"]) == 6
  assert "y = 'built' (given; wordpieces: built)" in text
  for one in found["candidates"]:
    assert f"{one['share']:.4f}" in text
    assert f"{one['reward']:+.4f}" in text
  # The baseline is the same checkpoint, of which only the reader is asked.
  assert found["unaided"]["model_dir"] == str(model_dir)
  assert f"p(y|x) by {model_dir}" in text
  assert len(found["unaided"]["fillings"]) == 5
  first, second = (one["source"] for one in found["candidates"][1:3])
  shown = " ".join(text.split())
  assert first["body"] in shown
  assert second["body"] not in shown


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (("--along_training", "--block_use"), "are different modes"),
    (("in [MASK]", "--block_use"), "are different modes"),
    (("--sentences=a.jsonl",), "--sentences is for --along_training"),
    (("--answer=a",), "--answer is for one sentence"),
    (("--along_training", "--answer=a"), "--answer is for a sentence"),
    (("--block_use", "--baseline=a"), "--baseline is for a sentence"),
  ],
)
def test_flags_that_do_not_go_together(explain, arguments, said):
  with pytest.raises(app.UsageError, match=said):
    explain(*arguments)
