"""The Python blocks of README.md and docs/ run, or equal the source that they quote.

Blocks of one file share their names, in order. Models are replaced by a tiny one and runs are made small. An HTML
comment on the line before a block says what else to do with it:

    <!-- test: quote PATH NAME without A, B -->   equals that class, or the body of that function, except for
                                                  annotations, docstrings, comments and the statements that contain
                                                  A or B (optional)
    <!-- test: skip because REASON -->            not run
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- test: (?P<directive>[^\n]*?) -->\n\n?)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
QUOTE = re.compile(r"quote (?P<path>\S+) (?P<name>\S+)(?: without (?P<left_out>.+))?")
SKIP = re.compile(r"skip because \S.*")
MODELS = re.compile(r"smollm2-\w+")
SMALL = {"iterations": 1, "problems_per_iteration": 2, "group_size": 2, "eval_problems": 2}


@dataclass(frozen=True)
class Block:
    """A Python block, the line where its code begins, and the comment before it."""

    code: str
    line: int
    directive: str


def blocks_of(text: str) -> list[Block]:
    return [
        Block(found["code"], text.count("\n", 0, found.start("code")), found["directive"] or "")
        for found in BLOCK.finditer(text)
    ]


def page_parameter(page: Path) -> Any:
    needs_network = any('"gsm8k"' in block.code for block in blocks_of(page.read_text(encoding="utf-8")))
    marks = [pytest.mark.network] if needs_network else []
    return pytest.param(page, id=page.name, marks=marks)


# Executed blocks.


class Small(ast.NodeTransformer):
    """The same code with a tiny model and small runs."""

    def __init__(self, model_folder: Path) -> None:
        self.model_folder = model_folder

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        is_model = isinstance(node.value, str) and MODELS.fullmatch(node.value)
        return ast.copy_location(ast.Constant(str(self.model_folder)), node) if is_model else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func).endswith("Config"):
            own = [keyword for keyword in node.keywords if keyword.arg not in SMALL]
            node.keywords = own + [ast.keyword(name, ast.Constant(value)) for name, value in SMALL.items()]
        return ast.fix_missing_locations(node)


@pytest.fixture(scope="module")
def long_context_model(model_folder, tmp_path_factory) -> Path:
    """The tiny model with a context long enough for eight worked examples of one token per character."""
    folder = tmp_path_factory.mktemp("long-context") / "model"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return folder


@pytest.mark.parametrize("page", [page_parameter(page) for page in PAGES])
def test_python_blocks_run(page, long_context_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not block.directive:
            tree = Small(long_context_model).visit(ast.parse("\n" * block.line + block.code))
            exec(compile(tree, str(page), "exec", dont_inherit=True), names)
    if page.name == "README.md":
        assert list(tmp_path.rglob("results.json")), "no block of the README trains"


# Quoted blocks.


def quotes() -> list[Any]:
    found = []
    for page in PAGES:
        for block in blocks_of(page.read_text(encoding="utf-8")):
            match = QUOTE.fullmatch(block.directive)
            if match:
                found.append(pytest.param(block, match, id=f"{page.name}:{block.line + 1}"))
    return found


class Plain(ast.NodeTransformer):
    """Without annotations and docstrings."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return ast.Assign([node.target], node.value, lineno=0) if node.value else None

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        node.body = without_docstring(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = without_docstring(node.body)
        return node


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    return [
        statement
        for statement in body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]


def leave_out(body: Sequence[ast.stmt], words: Sequence[str]) -> list[ast.stmt]:
    """Drops the statements whose first line contains one of the words; the body of a dropped `with` stays."""
    kept: list[ast.stmt] = []
    for statement in body:
        for field in ("body", "orelse"):
            if inner := getattr(statement, field, None):
                setattr(statement, field, leave_out(inner, words))
        if not any(word in ast.unparse(statement).partition("\n")[0] for word in words):
            kept.append(statement)
        elif isinstance(statement, ast.With):
            kept.extend(statement.body)
    return kept


def find_definition(tree: ast.AST, name: str) -> Any:
    for part in name.split("."):
        (tree,) = [
            node
            for node in ast.iter_child_nodes(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
        ]
    return tree


def code_of(body: Sequence[ast.stmt]) -> str:
    return ast.unparse(ast.Module(list(body), []))


@pytest.mark.parametrize(("block", "quote"), quotes())
def test_quotes_equal_their_source(block, quote):
    words = [word.strip() for word in (quote["left_out"] or "").split(",") if word.strip()]
    source = Plain().visit(find_definition(ast.parse((ROOT / quote["path"]).read_text()), quote["name"]))
    body = source.body if isinstance(source, ast.FunctionDef) else [source]
    quoted = Plain().visit(ast.parse(block.code))
    assert code_of(quoted.body) == code_of(leave_out(body, words))


# The comments themselves.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_directive_is_understood_and_used(page):
    text = page.read_text(encoding="utf-8")
    directives = [block.directive for block in blocks_of(text) if block.directive]
    assert all(QUOTE.fullmatch(directive) or SKIP.fullmatch(directive) for directive in directives)
    assert len(directives) == len(re.findall(r"^<!-- test:", text, re.MULTILINE)), "a comment without a block after it"
    assert len(blocks_of(text)) == text.count("```python"), "a block that the pattern misses"


def test_a_quote_that_differs_is_found():
    source = ast.parse("def f(x):\n    with session():\n        a = 1\n        started = now()\n        b(a)").body[0]
    assert isinstance(source, ast.FunctionDef)
    body = leave_out(source.body, ["session", "started"])
    assert code_of(body) == code_of(ast.parse("a = 1\nb(a)").body)
    assert code_of(body) != code_of(ast.parse("a = 2\nb(a)").body)
