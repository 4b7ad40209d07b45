"""T5 of other systems computes what it computes there, and goes back there.

The values are transformers': see `harness/peers/t5.py`.
"""

import argparse
import json
import re
import shutil

import numpy as np
import pytest
import tensorstore
from flax import serialization, traverse_util

from harness.agreement import t5 as agreement
from realm_jax.storage.json_files import write_json
from realm_jax.weights import WeightsError
from realm_jax.weights.t5 import export_t5, read_t5
from tests.weights import models, tf_files
from tests.weights.test_tensor_files import write_tensors

pytestmark = pytest.mark.slow

_FOLDER = models.GOLDEN / "hf_t5"
_V1_0 = models.tensors(_FOLDER / "v1_0")
_V1_1 = models.tensors(_FOLDER / "v1_1")


@pytest.mark.parametrize("variant", agreement.VARIANTS)
def test_it_computes_what_transformers_computes(variant):
  rows = [*agreement.compare_variant(_FOLDER, variant)]
  assert [row for row in rows if not row.passed] == []
  assert len(rows) == 29


@pytest.mark.parametrize("variant", agreement.VARIANTS)
def test_an_export_has_transformers_own_files(tmp_path, variant):
  config, params, _ = read_t5(_FOLDER / variant)
  export_t5(config, params, tmp_path)
  models.assert_same_bits(
    models.tensors(tmp_path), models.tensors(_FOLDER / variant)
  )
  ours, theirs = (
    json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for folder in (tmp_path, _FOLDER / variant)
  )
  assert ours == {name: theirs.get(name, ours[name]) for name in ours}
  again, same, _ = read_t5(tmp_path)
  assert again == config
  models.assert_same_bits(same, params)


def test_readers_of_fid_and_atlas_are_read(tmp_path):
  """FiD wraps each block of the encoder, and Atlas saves its options."""
  bias = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
  )
  wrapped = {
    name.replace("encoder.", "encoder.encoder.").replace(
      ".layer.", ".module.layer."
    )
    if name.startswith("encoder.")
    else name: tensor
    for name, tensor in _V1_0.items()
  }
  fid = tmp_path / "fid"
  fid.mkdir()
  old = {
    bias: np.ones((10, 3), np.float32),
    "lm_head.weight": _V1_0["shared.weight"],
  }
  write_tensors(fid / "pytorch_model.bin", wrapped | old)
  shutil.copy(_FOLDER / "v1_0" / "config.json", fid)
  weights, alone = read_t5(fid), read_t5(_FOLDER / "v1_0")
  assert weights.config == alone.config
  models.assert_same_bits(weights.params, alone.params)
  assert any("bias of old releases" in line for line in weights.lines)

  atlas = tmp_path / "atlas"
  atlas.mkdir()
  reader = {f"reader.{name}": tensor for name, tensor in _V1_1.items()}
  retriever = {"retriever.contriever.pooler": np.ones((2, 2), np.float32)}
  write_tensors(
    atlas / "model.pth.tar",
    reader | retriever,
    step=3,
    opt=argparse.Namespace(reader_model_type="google/t5-base-lm-adapt"),
    optimizer={"state": {0: {"step": 1}}, "param_groups": [{"lr": 0.1}]},
  )
  weights, alone = read_t5(atlas), read_t5(_FOLDER / "v1_1")
  assert weights.config.gated and not weights.config.tied_head
  models.assert_same_bits(weights.params, alone.params)


@pytest.mark.parametrize("variant", agreement.VARIANTS)
def test_checkpoints_of_mesh_tensorflow_are_read(tmp_path, variant):
  """The names are those of the released checkpoints, and kernels transposed."""

  def theirs(name):
    name = re.sub(r"(block|layer)\.(\d)", r"\1_00\2", name)
    name = name.replace("lm_head", "decoder.logits").replace(".", "/")
    start = name.removesuffix("/weight")
    if start.endswith("norm"):
      return f"{start}/scale"
    if start == "shared":
      return f"{start}/embedding"
    is_bare = "Attention/" in start
    return start if is_bare else f"{start}/kernel"

  variables = {
    theirs(name): tensor if name == "shared.weight" else tensor.T
    for name, tensor in models.tensors(_FOLDER / variant).items()
  }
  slots = {
    f"{name}_slot_vr": np.zeros(3, np.float32) for name in [*variables][:2]
  }
  step = {"global_step": np.int64(7)}
  prefix = tf_files.save(
    tmp_path / "model.ckpt-1110000", variables | slots | step
  )
  alone = read_t5(_FOLDER / variant)
  for path in (prefix, tmp_path):
    weights = read_t5(path)
    models.assert_same_bits(weights.params, alone.params)
    for field in ("gated", "tied_head", "num_layers", "num_heads"):
      assert getattr(weights.config, field) == getattr(alone.config, field)


def _copy(tmp_path, weights, **changes):
  config = json.loads((_FOLDER / "v1_1" / "config.json").read_text())
  write_json(tmp_path / "config.json", config | changes)
  write_tensors(tmp_path / "model.safetensors", weights)
  return tmp_path


@pytest.mark.parametrize(
  ("weights", "changes", "words"),
  [
    ({}, {"model_type": "t5gemma"}, "'t5gemma'; want 't5' or 'mt5'"),
    ({}, {"feed_forward_proj": "gated-silu"}, "'gated-silu'; want 'relu'"),
    ({}, {"tie_word_embeddings": True}, "lm_head.weight and shared.weight"),
    (
      {"shared.weight": np.ones((37, 24))},
      {},
      r"\[18, 20\], where .*\[18, 24\]",
    ),
    ({"shared.weight": np.ones(3)}, {}, "has not the tensors of a T5"),
    ({"more.weight": np.ones(3)}, {}, "has no place here"),
  ],
)
def test_another_model_is_refused(tmp_path, weights, changes, words):
  with pytest.raises(WeightsError, match=words):
    read_t5(_copy(tmp_path, _V1_1 | weights, **changes))


def _t5x_parameters(weights):
  """Returns the golden model's tensors by the names of t5x's T5."""
  modules = {
    "SelfAttention": {"encoder": "attention", "decoder": "self_attention"},
    "EncDecAttention": {"decoder": "encoder_decoder_attention"},
  }
  norms = {
    "encoder": ["pre_attention_layer_norm", "pre_mlp_layer_norm"],
    "decoder": [
      "pre_self_attention_layer_norm",
      "pre_cross_attention_layer_norm",
      "pre_mlp_layer_norm",
    ],
  }
  names = {
    "token_embedder/embedding": weights["shared.weight"],
    "decoder/logits_dense/kernel": weights["lm_head.weight"].T,
  }
  for name, tensor in weights.items():
    stack, *rest = name.removesuffix(".weight").split(".")
    if rest[:1] == ["final_layer_norm"]:
      names[f"{stack}/{stack}_norm/scale"] = tensor
    elif rest[-1:] == ["relative_attention_bias"]:
      names[f"{stack}/relpos_bias/rel_embedding"] = tensor.T
    elif rest[:1] == ["block"]:
      _, number, _, place, *module = rest
      start = f"{stack}/layers_{number}"
      if module == ["layer_norm"]:
        names[f"{start}/{norms[stack][int(place)]}/scale"] = tensor
      elif module[0] == "DenseReluDense":
        names[f"{start}/mlp/{module[1]}/kernel"] = tensor.T
      else:
        letters = {"q": "query", "k": "key", "v": "value", "o": "out"}
        kind = f"{modules[module[0]][stack]}/{letters[module[1]]}"
        names[f"{start}/{kind}/kernel"] = tensor.T
  return names


def _scanned(parameters):
  """Stacks the layers along the second axis, each with the bias of all."""
  stacked, layers = {}, {}
  for path, array in parameters.items():
    stack, _, rest = path.partition("/")
    if rest == "relpos_bias/rel_embedding":
      count = {"encoder": 2, "decoder": 3}[stack]
      name = f"{stack}/layers/relative_posemb/rel_embedding"
      stacked[name] = np.stack([array] * count, axis=1)
    elif rest.startswith("layers_"):
      layers.setdefault(re.sub(r"layers_\d+", "layers", path), []).append(array)
    else:
      stacked[path] = array
  return stacked | {path: np.stack(x, axis=1) for path, x in layers.items()}


@pytest.mark.parametrize("layout", [dict, _scanned])
def test_checkpoints_of_t5x_are_read(tmp_path, layout):
  written = {}
  for path, array in layout(_t5x_parameters(_V1_1)).items():
    written[path] = array
    if array.size > 200:
      name = f"target.{path.replace('/', '.')}"
      store = {"driver": "file", "path": f"{tmp_path / name}/"}
      spec = {"driver": "zarr", "kvstore": store}
      tensorstore.open(
        spec, create=True, dtype=tensorstore.float32, shape=array.shape
      ).result().write(array).result()
      kvstore = {"driver": "gfile", "path": name}
      written[path] = {"driver": "zarr", "kvstore": kvstore, "metadata": {}}
  tree = traverse_util.unflatten_dict(written, sep="/")
  optimizer = {"target": tree, "state": {"step": 3}}
  content = {"version": 3, "optimizer": optimizer}
  checkpoint = tmp_path / "checkpoint"
  checkpoint.write_bytes(serialization.msgpack_serialize(content))
  weights, alone = read_t5(tmp_path), read_t5(_FOLDER / "v1_1")
  models.assert_same_bits(weights.params, alone.params)
  checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
  with pytest.raises(WeightsError, match="want a checkpoint of t5x"):
    read_t5(tmp_path)
