"""The files of an evaluation."""

from realm_jax.evaluation import outputs


def test_lines_go_to_a_file_of_the_output_directory(tmp_path):
  with outputs.lines(tmp_path / "eval", outputs.PREDICTIONS) as write:
    write({"n": 1})
  written = (tmp_path / "eval" / "predictions.jsonl").read_text()
  assert written == '{"n": 1}\n'


def test_lines_without_a_directory_go_nowhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with outputs.lines(None, outputs.PREDICTIONS) as write:
    write({"n": 1})
  assert list(tmp_path.iterdir()) == []
