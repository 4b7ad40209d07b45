"""The Dockerfile does what XManager's image does."""

from pathlib import Path

from launch.cluster import image


def _steps(lines: list[str], keyword: str) -> list[str]:
  return [
    line.removeprefix(keyword).strip()
    for line in lines
    if line.startswith(keyword)
  ]


def test_both_images_install_the_same(project_dir: Path):
  folder = project_dir / "launch" / "cluster"
  lines = (folder / "Dockerfile").read_text().splitlines()
  clone = Path("/realm_jax_clone")
  instructions = image.docker_instructions(clone)
  assert _steps(lines, "RUN") == _steps(instructions, "RUN")
  assert _steps(lines, "WORKDIR") == _steps(instructions, "WORKDIR")
  # A requirement that changes must not be installed from an old layer.
  packaging, everything = _steps(lines, "COPY")
  *files, target = packaging.split()
  for file in files:
    assert (project_dir / file).exists()
    assert f"{clone.name}/{file}" in _steps(instructions, "COPY")[0]
  assert (target, everything) == ("./", ". .")
