"""A bucket that cannot be used is told of, with what to do."""

import pytest

from benchmarks.runs.object_store import StoreFault
from realm_jax.storage.access import (
  StoreAccessError,
  require_readable,
  require_writable,
)


def test_a_bucket_that_can_be_used_costs_few_requests(object_store, tmp_path):
  corpus, model = (
    object_store.path("access/corpus"),
    object_store.path("access/run"),
  )
  with object_store.counted() as requests:
    require_readable(corpus, corpus, None, tmp_path / "nowhere")
  assert len(requests) == 1
  with object_store.counted() as requests:
    require_writable(model, tmp_path / "nowhere", None)
  assert len(requests) == 3
  assert object_store.names("access/run") == []


@pytest.mark.parametrize("require", [require_readable, require_writable])
def test_a_bucket_that_is_not_there(object_store, require):
  with pytest.raises(StoreAccessError, match="buckets create gs://elsewhere"):
    require("gs://elsewhere/run")


@pytest.mark.parametrize("status", [401, 403])
def test_a_bucket_that_may_not_be_read(object_store, status):
  object_store.inject(StoreFault("refuse", "^GET", status=status, times=9))
  with pytest.raises(StoreAccessError, match=r"cannot be read: .*roles/stor"):
    require_readable(object_store.path("access/run"))


@pytest.mark.parametrize(
  ("method", "done"), [("POST", "written"), ("DELETE", "removed")]
)
def test_a_bucket_that_may_not_be_written(object_store, method, done):
  object_store.inject(StoreFault("refuse", f"^{method}", status=403))
  with pytest.raises(StoreAccessError, match=rf"cannot be {done}: .*refuses"):
    require_writable(object_store.path("access/run"))
  object_store.inject()
  for name in object_store.names("access/run"):
    object_store.remove(name)


def test_a_removal_whose_answer_is_lost_is_one(object_store):
  object_store.inject(StoreFault("lose answer", "^DELETE"))
  require_writable(object_store.path("access/run"))
  assert object_store.happened() == [1]
