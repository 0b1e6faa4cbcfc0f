"""The layering: no import cycles, engines without learning, no torch on import, and a picture that is up to date."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "docs" / "draw_architecture.py"

specification = importlib.util.spec_from_file_location("draw_architecture", SCRIPT)
assert specification is not None
assert specification.loader is not None
architecture = importlib.util.module_from_spec(specification)
sys.modules[specification.name] = architecture  # dataclasses look their module up
specification.loader.exec_module(architecture)

MODULES = architecture.module_graph()
ROOMS = architecture.room_graph(MODULES)


def cycles(graph: dict[str, set[str]]) -> list[str]:
    return [" -> ".join(architecture.shortest_cycle(graph, knot)) for knot in architecture.knots(graph)]


def test_no_module_imports_itself_by_way_of_others():
    assert cycles(MODULES) == []


def test_no_room_imports_itself_by_way_of_others():
    between = {
        f"{module} imports {target}"
        for knot in architecture.knots(ROOMS)
        for module, imported in MODULES.items()
        for target in imported
        if architecture.room_of(module) != architecture.room_of(target)
        and {architecture.room_of(module), architecture.room_of(target)} <= set(knot)
    }
    assert cycles(ROOMS) == [], "\n".join(sorted(between))


def test_engines_do_not_reach_learning():
    reached = {
        f"{module} reaches {target}"
        for module in MODULES
        if architecture.room_of(module) == "engines"
        for target in architecture.reachable(MODULES, module)
        if architecture.room_of(target) == "learning"
    }
    assert reached == set()


def test_importing_lmgym_does_not_import_torch():
    code = "import sys, lmgym; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_page_and_the_picture_are_up_to_date():
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The graph itself.


@pytest.fixture
def package(tmp_path) -> Path:
    """A package whose two rooms import each other inside a function and for a type."""
    files = {
        "__init__.py": "from lmgym.one import a",
        "nouns.py": "",
        "one/__init__.py": "",
        "one/a.py": "def f():\n    from lmgym.two.b import g",
        "two/__init__.py": "",
        "two/b.py": "from typing import TYPE_CHECKING\nfrom .. import nouns\nif TYPE_CHECKING:\n    import lmgym.one.a",
    }
    for name, code in files.items():
        path = tmp_path / "lmgym" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return tmp_path


def test_imports_in_functions_and_for_types_count(package):
    modules = architecture.module_graph(package)
    assert modules["lmgym"] == {"lmgym.one.a"}
    assert modules["lmgym.one.a"] == {"lmgym.two.b"}
    assert modules["lmgym.two.b"] == {"lmgym.nouns", "lmgym.one.a"}
    assert cycles(modules) == ["lmgym.one.a -> lmgym.two.b -> lmgym.one.a"]
    assert cycles(architecture.room_graph(modules)) == ["one -> two -> one"]


def test_rooms_lie_above_what_they_import_and_a_cycle_shares_a_layer():
    graph = {"top": {"left", "right", "base"}, "left": {"right", "base"}, "right": {"left"}, "base": set()}
    depth = architecture.layers(graph)
    assert depth == {"top": 2, "left": 1, "right": 1, "base": 0}
    assert architecture.without_implied(graph)["top"] == {"left", "right"}
