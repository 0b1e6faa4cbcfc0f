"""The table of a recipe reads what a run of today writes."""

from __future__ import annotations

from benchmarks import recipe_table
from lmgym.commands.cli import main


def test_a_run_becomes_a_row_and_a_plot(tmp_path, model_folder):
    flags = "--iterations 1 --problems_per_iteration 1 --group_size 2 --eval_problems 2 --shots 0 --max_tokens 4"
    folder = tmp_path / "seed3"
    main(["train", "--model", str(model_folder), *flags.split(), "--seed", "3", "--out", str(folder)])
    run = recipe_table.read_run(folder)
    assert run["seed"] == 3
    assert 0 < run["logprob_diff"] <= run["logprob_diff_max"]
    assert [row["iteration"] for row in run["evaluations"]] == [0, 1]
    assert recipe_table.table([run]).splitlines()[2].startswith("| 3 | 0.0 % [0.0, ")
    recipe_table.draw([run], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0
