"""`python -m benchmarks.speed` parses its flags, measures with a tiny model and writes a report."""

import json

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import sections
from benchmarks.speed.baseline import Baseline
from benchmarks.speed.settings import BenchSettings
from benchmarks.speed.workload import Workload
from lmgym.commands import cli


@pytest.mark.network
def test_a_section_is_measured_and_reported(tmp_path, model_folder, monkeypatch):
    """All of it with a tiny model: lmgym and `generate` in processes of their own, one warm-up run discarded."""
    work = Workload(problems=1, group_size=2, new_tokens=4, model=str(model_folder))
    generate = Baseline("transformers generate", "transformers_generate")
    monkeypatch.setitem(sections.SECTIONS, "rollouts", lambda settings: [sections.Comparison(work, (generate,))])
    monkeypatch.setattr(command, "cache_dir", lambda: tmp_path / "cache")
    command.main(["--sections", "rollouts", "--repeats", "2", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "speed.json").read_text())
    (comparison,) = report["comparisons"].values()
    assert [result["name"] for result in comparison["results"]] == ["lmgym", "transformers generate"]
    assert all(len(result["seconds"]) == 2 and result["tokens"] == 8 for result in comparison["results"])
    assert (tmp_path / "speed.md").exists()
    assert (tmp_path / "speed.png").exists()


def test_several_sections_are_one_flag(monkeypatch):
    given: list[BenchSettings] = []
    monkeypatch.setattr(command, "bench", given.append)
    command.main(
        [
            "--sections",
            "rollouts",
            "iteration",
            "stepwise",
            "growth",
            "busy",
            "--repeats",
            "1",
            "--no_install_baselines",
        ]
    )
    assert given[0].sections == ("rollouts", "iteration", "stepwise", "growth", "busy")
    assert not given[0].install_baselines


def test_a_mistake_is_one_sentence_and_exit_code_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--sections", "speed"])
    assert "--sections may name rollouts" in capsys.readouterr().err


def test_lmgym_bench_says_where_the_benchmark_is(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "--sections", "rollouts"])
    assert "python -m benchmarks.speed" in capsys.readouterr().err
