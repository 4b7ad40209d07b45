"""Weights of a directory, whole or in shards."""

import json
import math
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy

from realm_jax.storage.json_files import write_json
from realm_jax.weights import WeightsError
from realm_jax.weights.tensor_files import open_tensors
from tests.weights import models
from tests.weights.test_unpickling import write_torch_file

_NAMES = ("model.safetensors", "pytorch_model.bin")


def write_tensors(path, tensors, **beside):
  """Writes tensors, with what a checkpoint of torch has beside them."""
  if path.suffix == ".safetensors":
    safetensors.numpy.save_file(tensors, path)
  else:
    write_torch_file(
      path,
      {
        name: ("FloatStorage", name, 0, array.shape, _strides(array.shape))
        for name, array in tensors.items()
      },
      tensors,
      **beside,
    )


def _strides(shape):
  return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _shard(directory, name, tensors):
  """Writes tensors in three shards with their index, as transformers does."""
  stem, _, suffix = name.partition(".")
  shard_of = {}
  for i in range(3):
    shard = f"{stem}-{i + 1:05d}-of-00003.{suffix}"
    of_shard = dict(sorted(tensors.items())[i::3])
    write_tensors(directory / shard, of_shard)
    shard_of |= dict.fromkeys(of_shard, shard)
  index = directory / f"{name}.index.json"
  write_json(index, {"metadata": {"total_size": 1}, "weight_map": shard_of})
  return index


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
def test_a_model_in_shards_is_the_same(tmp_path, name):
  golden = models.GOLDEN / "hf_bert" / "with_pooler"
  models.copy("hf_bert/with_pooler", tmp_path)
  (tmp_path / "model.safetensors").unlink()
  _shard(tmp_path, name, models.tensors(golden))
  sharded, alone = (models.read("hf_bert", path) for path in (tmp_path, golden))
  models.assert_same_bits(sharded.parameters, alone.parameters)


@pytest.mark.parametrize("name", _NAMES)
def test_files_take_no_memory(tmp_path, name):
  tensors = {f"t{i}": np.full((1 << 18,), i, np.float32) for i in range(6)}
  _shard(tmp_path, name, tensors)
  tracemalloc.start()
  opened = open_tensors(tmp_path)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  models.assert_same_bits(opened, tensors)
  # All have six megabytes.
  assert peak < 1.5 * (1 << 20)


@pytest.mark.parametrize("name", _NAMES)
def test_shards_that_do_not_fit_are_named(tmp_path, name):
  tensors = {f"t{i}": np.full((4,), i, np.float32) for i in range(6)}
  index = _shard(tmp_path, name, tensors)
  text = index.read_text()
  index.write_text(text.replace("t4", "t7"))
  with pytest.raises(WeightsError, match=r"1 tensors .* such as t7 of"):
    open_tensors(tmp_path)
  shard = json.loads(text)["weight_map"]["t1"]
  index.write_text(text.replace(shard, f"../{shard}"))
  with pytest.raises(WeightsError, match="not beside it"):
    open_tensors(tmp_path)
  index.write_text(text)
  (tmp_path / shard).unlink()
  with pytest.raises(WeightsError, match=f"the shard '{shard}'.*copy"):
    open_tensors(tmp_path)
