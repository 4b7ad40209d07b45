"""The checkpoint, which makes a directory a MODEL_DIR, is written last."""

import contextlib

import pytest

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.model_dir import write_model_dir
from tests.conversion.hugging_face import bert_files as files


class Publication:
  """Records the files that it finds, and the error that leaves its context."""

  def __init__(self):
    self.found, self.left_by = None, None

  @contextlib.contextmanager
  def __call__(self, *, model_dir, **_):
    self.found = {path.name for path in model_dir.iterdir()}
    try:
      yield
    except BaseException as error:
      self.left_by = type(error)
      raise


@pytest.fixture
def plan(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  return plan_hf_bert(tmp_path / "bert", TowerOptions(), parts=("retriever",))


def test_a_generation_is_published_before_its_checkpoint(plan, tmp_path):
  publish = Publication()
  write_model_dir(plan, tmp_path / "run", publish=publish)
  assert publish.found == {"vocab.txt", "model.gin"}
  assert publish.left_by is None
  assert CheckpointStore(tmp_path / "run").items(0) == {"retriever", "loop"}


def test_a_checkpoint_that_cannot_be_written_takes_all_back(
  plan, tmp_path, monkeypatch
):
  def fail(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(CheckpointStore, "save", fail)
  publish = Publication()
  with pytest.raises(KeyboardInterrupt):
    write_model_dir(plan, tmp_path / "run", publish=publish)
  assert publish.left_by is KeyboardInterrupt
  assert [path.name for path in tmp_path.iterdir()] == ["bert"]
