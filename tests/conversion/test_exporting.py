"""What may be exported, and the command that does it."""

import subprocess
import sys

import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.conversion.errors import ConversionError
from tests.conversion import exported
from tests.conversion.hugging_face import bert_files as files
from tests.conversion.imported import import_weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  ("choices", "said"),
  [
    ({"to": "hf_bert"}, "--part"),
    ({"to": "sentence_transformers", "part": "reader"}, "--part=reader"),
    ({"to": "hf_bert", "part": "reader", "tower": "query"}, "--tower=query"),
  ],
)
def test_a_choice_that_is_missing_or_wrong_is_said(tmp_path, choices, said):
  exported.save(tmp_path / "run")
  with pytest.raises(ConversionError, match=said):
    exported.export(tmp_path / "run", tmp_path / "out", **choices)


def test_another_model_or_vocabulary_is_refused(tmp_path):
  exported.save(tmp_path / "run")
  other = exported.RETRIEVER.clone(projection_size=5)
  settings = {"to": "sentence_transformers"}
  with pytest.raises(CheckpointError, match="does not fit this model"):
    exported.export(tmp_path / "run", tmp_path / "out", other, **settings)
  pieces = files.pieces()
  pieces[9], pieces[10] = pieces[10], pieces[9]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
  with pytest.raises(CheckpointError, match="another vocabulary"):
    exported.export(
      tmp_path / "run",
      tmp_path / "out",
      vocab=tmp_path / "vocab.txt",
      **settings,
    )
  (tmp_path / "run" / "vocab.txt").unlink()
  with pytest.raises(ConversionError, match="VOCAB"):
    exported.export(tmp_path / "run", tmp_path / "out", **settings)


@pytest.mark.slow
def test_the_command_goes_with_an_imports_own_files(
  tmp_path, project_dir, command_environment
):
  files.write(tmp_path / "home", files.tensors())
  import_weights(
    "hf_bert", str(tmp_path / "home"), tmp_path / "run", parts=["retriever"]
  )
  done = subprocess.run(
    [
      *(sys.executable, "-m", "realm_jax.export_weights", "--to=hf_bert"),
      *("--part=retriever", f"--output_dir={tmp_path / 'out'}"),
      f"--model_dir={tmp_path / 'run'}",
    ],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 0, done.stderr
  assert (
    "encoder.layer.0.output.dense.weight [8, 12] <- "
    "retriever/tower/encoder/layer_0/down/kernel"
  ) in done.stdout
  exported.assert_same_bits(exported.tensors(tmp_path / "out"), files.tensors())
