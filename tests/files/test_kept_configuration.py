"""The configuration in a MODEL_DIR."""

from realm_jax.configuration import RunRecord
from realm_jax.files.kept_configuration import keep_configuration


def test_a_bucket_keeps_it_too(object_store):
  model_dir = object_store.path("kept/run")
  keep_configuration(model_dir, "A = 1\n")
  keep_configuration(model_dir, "A = 2\n")
  assert RunRecord.find(model_dir).content == "A = 2\n"
