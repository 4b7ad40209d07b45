"""A bucket that cannot be used is told of, with what to do."""

import pytest

from benchmarks.runs.object_store import StoreFault
from realm_jax.storage.access import (
  StoreAccessError,
  require_readable,
  require_writable,
)


def test_a_bucket_that_can_be_used_costs_few_requests(object_store, tmp_path):
  corpus = object_store.path("access/corpus")
  with object_store.counted() as requests:
    require_readable(corpus, corpus, None, tmp_path / "nowhere")
  assert len(requests) == 1
  with object_store.counted() as requests:
    require_writable(object_store.path("access/run"), tmp_path, None)
  assert len(requests) == 3
  assert object_store.names("access/run") == []


@pytest.mark.parametrize("require", [require_readable, require_writable])
def test_a_bucket_that_is_not_there(object_store, require):
  with pytest.raises(StoreAccessError, match="buckets create gs://elsewhere"):
    require("gs://elsewhere/run")


@pytest.mark.parametrize(
  ("method", "said"),
  [
    ("GET", r"cannot be read: .*roles/stor"),
    ("POST", "cannot be written: .*refuses"),
    ("DELETE", "cannot be removed: .*refuses"),
  ],
)
def test_a_bucket_that_may_not_be_used(object_store, method, said):
  object_store.inject(StoreFault("refuse", f"^{method}", status=403, times=9))
  with pytest.raises(StoreAccessError, match=said):
    require_writable(object_store.path("access/run"))
  object_store.inject()
  for name in object_store.names("access/run"):
    object_store.remove(name)


def test_a_removal_whose_answer_is_lost_is_one(object_store):
  object_store.inject(StoreFault("lose answer", "^DELETE"))
  require_writable(object_store.path("access/run"))
  assert object_store.happened() == [1]
