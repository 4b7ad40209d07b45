"""The weights of a directory."""

import numpy as np
import pytest
import safetensors.numpy

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.directory import (
  open_tensors,
  read_model_config,
)
from tests.conversion.hugging_face import bert_files as files

_WEIGHTS = {
  "a": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b": np.ones(4, np.float32),
}


def test_a_truncated_file_is_refused(tmp_path):
  path = tmp_path / "model.safetensors"
  safetensors.numpy.save_file(_WEIGHTS, path)
  path.write_bytes(path.read_bytes()[:-10])
  with pytest.raises(ConversionError, match="cannot be read"):
    open_tensors(tmp_path)


def test_a_directory_without_weights_says_what_it_has(tmp_path):
  (tmp_path / "vocab.txt").write_text("")
  with pytest.raises(ConversionError, match=r"no model\.safetensors.*vocab"):
    open_tensors(tmp_path)
  with pytest.raises(ConversionError, match="no local directory"):
    read_model_config(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_shards_are_refused(tmp_path, name):
  files.write_json(tmp_path / f"{name}.index.json", {})
  with pytest.raises(ConversionError, match=r"in shards; .*save it again"):
    open_tensors(tmp_path)
