"""Another version of ScaNN is tried early, and refused with advice."""

import pytest

from realm_jax.indexes.protocol import LibraryError
from realm_jax.indexes.scann import files, library
from realm_jax.indexes.scann.config import ScannConfig
from tests.indexes.clustered import blocks_of, clustered

_BLOCKS = blocks_of(clustered(500, 1))


@pytest.fixture(autouse=True)
def _another_version(monkeypatch):
  monkeypatch.setattr(library, "installed_version", lambda: "9.8.7")


_REFUSAL = (
  r"scann 9\.8\.7 does not read .* formats of scann 1\.4\.2.*builder='stock'"
)


def test_a_version_that_cannot_load_is_refused_and_stock_builds(monkeypatch):
  monkeypatch.setattr(files, "_config", lambda structure, dim: b"")
  with pytest.raises(LibraryError, match=_REFUSAL):
    ScannConfig(brute_force_below=0).build(_BLOCKS)
  stock = ScannConfig(builder="stock", brute_force_below=0)
  assert stock.build(_BLOCKS).num_blocks == 500
