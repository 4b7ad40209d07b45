"""`make parity`: what it prints, writes and refuses."""

import json

import pytest

from benchmarks import parity, peer_processes
from benchmarks.data import real_texts

_ROW = parity.Row("what agrees", "max abs difference", 1e-7, 1e-6)


def test_the_rules_need_no_other_system(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path / "none")
  monkeypatch.setattr(parity.rules, "compare_all", lambda: [_ROW])
  parity.main(["--parts", "rules", "--json", str(tmp_path / "parity.json")])
  printed = capsys.readouterr().out
  assert "1 of 1 agree" in printed
  assert _ROW.what in printed
  written = json.loads((tmp_path / "parity.json").read_text())
  assert written == {"passed": True, "rows": [parity.comparison.as_json(_ROW)]}


def test_without_texts_the_other_parts_are_compared(
  tmp_path, monkeypatch, capsys
):
  asked = []

  def compare(parts, **_):
    asked.extend(parts)
    return [_ROW]

  monkeypatch.setattr(parity, "compare", compare)
  parity.main(["--texts_dir", str(tmp_path / "none")])
  assert asked == ["rules", "exports", "realm"]
  assert "skipping tokens and sentences" in capsys.readouterr().out


def test_other_systems_that_are_not_there(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path / "none")
  with pytest.raises(SystemExit) as ended:
    parity.main(["--parts", "realm"])
  assert ended.value.code == 2
  assert "none; run make peers" in capsys.readouterr().err


def test_a_part_that_fails_fails_all(tmp_path, monkeypatch, capsys):
  worse = [parity.Row("what differs", "relative difference", 0.5, 1e-5)]
  monkeypatch.setattr(parity.rules, "compare_all", lambda: worse)
  with pytest.raises(SystemExit) as ended:
    parity.main(["--parts", "rules", "--json", str(tmp_path / "parity.json")])
  assert ended.value.code == 1
  assert "FAILED: what differs" in capsys.readouterr().err
  assert not json.loads((tmp_path / "parity.json").read_text())["passed"]


def test_texts_that_are_not_there(tmp_path):
  with pytest.raises(real_texts.NoTextsError, match="--texts_dir"):
    real_texts.read_texts(tmp_path / "none")


def test_every_real_text_is_read(shared_data):
  texts = real_texts.read_texts(shared_data)
  # The rows of the folder's README: title, paragraph and question of each of
  # QED's; a title and the paragraphs of each article; questions alone of TREC.
  assert len(texts["qed"]) == 3 * 1014
  assert len(texts["wikitext2"]) == 122 + 4024
  assert len(texts["curatedtrec"]) == 430 + 430 + 1704 + 766
  # A question and its answers in each row.
  assert len(texts["nq_open"]) > 2 * 3610
  assert len(texts["webquestions"]) > 2 * 5810
  assert all(isinstance(t, str) for some in texts.values() for t in some)


def test_the_golden_files_stay_small(project_dir):
  folder = project_dir / "tests" / "golden"
  size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
  assert size < 2_000_000
