"""The benchmarks run, with their smallest sizes."""

import dataclasses
import json
import sys

import pytest

from benchmarks import embedding, index, peer_indexes, train_step
from harness import peer_processes
from realm_jax.indexes import protocol
from realm_jax.partitioning import cpu_tuning

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(autouse=True)
def _untouched_process(tmp_path, monkeypatch):
  """Keeps the settings of this process, and leaves out the other systems."""
  monkeypatch.setattr(cpu_tuning, "disable_async_dispatch", lambda: None)
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path / "none")


def test_train_step(tmp_path, monkeypatch):
  # A process of its own, and products of large matrices, take ten seconds more.
  monkeypatch.setattr(train_step, "in_new_process", lambda f, *given: f(*given))
  monkeypatch.setattr(train_step, "matmul_gflops_per_second", lambda _: 1e6)
  sizes = "--layers=1 --hidden=16 --heads=2 --inner=32 --vocab=1200 --batch=2"
  texts = "--candidates=2 --query=8 --block=12 --joint=20 --masks=2 --steps=1"
  texts += " --rounds=1 --dropout=0"
  path = tmp_path / "figures.json"
  train_step.main([*sizes.split(), *texts.split(), f"--json={path}"])
  for row in json.loads(path.read_text())["rows"]:
    assert row["examples_per_second"] > 0
    assert 0 < row["useful_gflops_per_second"] < row["matmul_gflops_per_second"]


def test_index(tmp_path, monkeypatch, capsys):
  pytest.importorskip("faiss", reason="it is an extra")
  monkeypatch.setattr(index, "in_new_process", lambda f, *given: f(*given))
  monkeypatch.setitem(sys.modules, "rabitqlib", None)
  # The peers are kinds of the processes that measure, and of no others.
  for kind, place in peer_indexes.KINDS.items():
    monkeypatch.setitem(protocol.CONFIGS, kind, place)
  path = tmp_path / "rows.json"
  given = f"--directory={tmp_path} --num_blocks=2000 --json={path} --system"
  index.main([*given.split(), "exact", "hnsw", "rabitq"])
  rows = json.loads(path.read_text())["rows"]
  exact, *graphs = rows
  assert exact["recall_at_8"] == 1
  assert exact["queries_per_second"] > 0
  assert {row["system"] for row in graphs} == {"hnsw"}
  assert max(row["recall_at_8"] for row in graphs) > 0.95
  missing = "rabitq is left out: the index `rabitq` needs the library"
  assert f"{missing} rabitqlib" in capsys.readouterr().err


def test_embedding(world, tmp_path, monkeypatch):
  model = embedding._MINILM
  small = dataclasses.replace(model.bert, num_layers=1, hidden_size=24)
  monkeypatch.setattr(embedding, "_MINILM", model.clone(bert=small))
  path = tmp_path / "rows.json"
  corpus = f"--corpus_dir={world.corpus_dir}"
  embedding.main([corpus, f"--json={path}", "--blocks=4", "--rounds=1"])
  ours, _, padded = json.loads(path.read_text())["rows"]
  assert ours["tokens"] == padded["tokens"] > 0
