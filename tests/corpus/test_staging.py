"""A corpus on an object store is read through copies, of what is read alone."""

from pathlib import Path

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.storage.paths import upload_directory
from tests.corpus.updated import contents, require_consistent


@pytest.fixture
def far(object_store, corpus, tmp_path, monkeypatch) -> epath.Path:
  """The corpus in a folder of the store."""
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(tmp_path / "cache_of_host"))
  folder = epath.Path(object_store.path(f"staging/{tmp_path.name}"))
  upload_directory(Path(corpus.source), folder, last="corpus.json")
  return folder


def copied(requests: list[str]) -> set[str]:
  """Returns the arrays that requests have copied."""
  parts = (r.partition("?")[0].rpartition("/")[2] for r in requests)
  return {part.removesuffix(".npy") for part in parts if part.endswith(".npy")}


def test_all_that_is_read_is_the_same(far, corpus):
  staged = Corpus.open(far)
  assert contents(staged) == contents(corpus)
  assert staged.vocabulary.pieces == corpus.vocabulary.pieces
  staged.verify()


def test_what_is_not_read_is_not_copied(far, corpus, object_store):
  with object_store.counted() as requests:
    staged = Corpus.open(far)
  assert copied(requests) == set()
  with object_store.counted() as requests:
    tokens = [shard.array("token_ids") for shard in staged.shards]
  assert copied(requests) == {"token_ids"}
  with object_store.counted() as requests:
    again = Corpus.open(far)
    for shard, array in zip(again.shards, tokens, strict=True):
      np.testing.assert_array_equal(shard.array("token_ids"), array)
  assert copied(requests) == set()


def test_versions_share_their_copies(far, tmp_path, object_store):
  old = Corpus.open(far)
  before = contents(old)
  (tmp_path / "changes.jsonl").write_text('{"id": "d3", "remove": true}\n')
  update_corpus([str(tmp_path / "changes.jsonl")], far)
  with object_store.counted() as requests:
    new = old.newest()
    assert contents(old) == before
    assert len(contents(new)) < len(before)
  assert new.version == 2
  reads = [r for r in requests if r.startswith("GET /download")]
  assert [r for r in reads if "/removed/" not in r and ".npy" in r] == []
  require_consistent(new)


def test_a_file_that_is_missing_or_damaged_is_named(far, corpus):
  array = next(far.glob("shard-*/token_ids.npy"))
  whole = array.read_bytes()
  array.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  with pytest.raises(CorpusError, match=r"token_ids.npy does not match"):
    Corpus.open(far).shards[0].array("token_ids")
  array.write_bytes(whole[:-1])
  with pytest.raises(CorpusError, match=r"token_ids.npy has .* bytes and not"):
    Corpus.open(far)
  array.unlink()
  with pytest.raises(CorpusError, match=r"token_ids.npy is missing"):
    Corpus.open(far)
