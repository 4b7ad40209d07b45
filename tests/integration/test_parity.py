"""`make parity`: what it prints, writes and refuses."""

import json

import pytest

from benchmarks import parity, peer_processes, real_texts


def test_the_rules_need_no_other_system(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path / "none")
  parity.main(["--parts", "rules", "--json", str(tmp_path / "parity.json")])
  printed = capsys.readouterr().out
  assert "5 of 5 agree" in printed
  assert "BERT's Adam, 50 steps" in printed
  written = json.loads((tmp_path / "parity.json").read_text())
  assert written["passed"]
  assert [row["passed"] for row in written["rows"]] == [True] * 5
  assert all(row["value"] <= row["limit"] for row in written["rows"])


def test_other_systems_that_are_not_there(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path / "none")
  with pytest.raises(SystemExit) as ended:
    parity.main(["--parts", "realm"])
  assert ended.value.code == 2
  assert "none; run make peers" in capsys.readouterr().err


def test_a_part_that_fails_fails_all(tmp_path, monkeypatch, capsys):
  worse = [parity.Row("what differs", "relative difference", 0.5, 1e-5)]
  monkeypatch.setattr(parity.rule_agreement, "compare_all", lambda: worse)
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
  assert all(isinstance(t, str) for some in texts.values() for t in some)


def test_the_golden_files_stay_small(project_dir):
  folder = project_dir / "tests" / "golden"
  size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
  assert size < 2_000_000
