"""The configuration in a MODEL_DIR."""

from realm_jax.configuration import KeptModel
from realm_jax.files.kept_configuration import keep_configuration


def test_a_bucket_keeps_it_too(object_store):
  model_dir = object_store.path("kept/run")
  keep_configuration(model_dir, {"model.gin": "A = 1\n"})
  keep_configuration(model_dir, {"model.gin": "A = 2\n"})
  assert KeptModel.find(model_dir).text == "A = 2\n"
