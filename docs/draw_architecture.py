"""Draws the architecture from the import graph: docs/architecture.svg and the generated block of docs/architecture.md.

python docs/draw_architecture.py            # writes both
python docs/draw_architecture.py --check    # exit code 1 if they are not up to date

All imports count, those inside functions and under TYPE_CHECKING too. A room is a folder of lmgym/ or a module beside
the folders. Nothing but the standard library is needed.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

Graph = dict[str, set[str]]

ROOT = Path(__file__).parent.parent
PACKAGE = "lmgym"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- generated:begin -->", "<!-- generated:end -->"


# The import graph.


def module_files(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_graph(root: Path = ROOT) -> Graph:
    """For each module the modules of the package that it imports, anywhere in its file."""
    files = module_files(root)
    graph: Graph = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = (_longest_known(target, files) for target in _imported_names(path, package))
        graph[name] = {target for target in imported if target and target != name}
    return graph


def _imported_names(path: Path, package: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _longest_known(name: str, known: Collection[str]) -> str:
    """The module that an imported name is, or is defined in; empty for other packages."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def room_of(module: str) -> str:
    """The folder or root module that a module belongs to; the package's own __init__ is the room `lmgym`."""
    return PACKAGE if module == PACKAGE else module.split(".")[1]


def room_graph(modules: Mapping[str, Collection[str]]) -> Graph:
    """For each room the rooms that it imports."""
    graph: Graph = {room_of(module): set() for module in modules}
    for module, imported in modules.items():
        graph[room_of(module)] |= {room_of(target) for target in imported} - {room_of(module)}
    return graph


def reachable(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Everything that is imported from here, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def knots(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of nodes that all import each other, directly or not; none if there is no cycle."""
    reach = {node: reachable(graph, node) for node in graph}
    groups = {tuple(sorted(other for other in reach[node] if node in reach[other])) for node in graph}
    return [list(group) for group in sorted(groups) if group]


def shortest_cycle(graph: Mapping[str, Collection[str]], knot: Collection[str]) -> list[str]:
    """The shortest way from a node of the group back to itself."""
    best: list[str] = []
    for start in sorted(knot):
        paths = [[start]]
        seen: set[str] = set()
        while paths and not (best and len(paths[0]) + 1 >= len(best)):
            path = paths.pop(0)
            if start in graph[path[-1]]:
                best = [*path, start]
                break
            fresh = sorted(target for target in graph[path[-1]] if target in knot and target not in seen)
            seen.update(fresh)
            paths += [[*path, target] for target in fresh]
    return best


# The table.


def purpose(room: str, files: Mapping[str, Path]) -> str:
    """The first sentence of a room's docstring."""
    path = files.get(f"{PACKAGE}.{room}") or files[PACKAGE]
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def table(rooms: Graph, files: Mapping[str, Path]) -> str:
    """A Markdown table of the drawn rooms, from the one that imports most layers to those that import nothing."""
    depth = layers(rooms)
    lines = ["| room | purpose | imports |", "|---|---|---|"]
    for room in sorted(rooms, key=lambda room: (-depth[room], room)):
        what = purpose(room, files).replace("|", "\\|")
        lines.append(f"| `{label(room, files)}` | {what} | {', '.join(sorted(rooms[room])) or '–'} |")
    return "\n".join(lines)


def label(room: str, files: Mapping[str, Path]) -> str:
    """The folder or file of a room."""
    return f"{room}/" if files[f"{PACKAGE}.{room}"].name == "__init__.py" else f"{room}.py"


# The path of one token.


@dataclass(frozen=True)
class Stop:
    """One step of the path: its number, the file under lmgym/ and the function or class in it."""

    number: int
    file: str
    name: str

    @property
    def room(self) -> str:
        """The folder or root module where it happens."""
        return self.file.partition("/")[0].removesuffix(".py")


def token_path(page: Path = PAGE) -> list[Stop]:
    """The table of the hand-written section; a name that is not in its file is an error."""
    text = page.read_text(encoding="utf-8")
    rows = text.split("<!-- path:begin -->")[1].split("<!-- path:end -->")[0].strip().splitlines()[2:]
    stops = []
    for row in rows:
        number, file, name = (cell.strip().strip("`") for cell in row.split("|")[1:4])
        if name not in _defined_names(ROOT / PACKAGE / file):
            raise SystemExit(f"{page.name}, step {number}: {PACKAGE}/{file} has no {name}.")
        stops.append(Stop(int(number), file, name))
    return stops


def _defined_names(path: Path) -> set[str]:
    """Functions, classes and methods of a file, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return found


# The layout: layers by dependency, long arrows routed between the boxes (Sugiyama et al., 1981).

WIDTH, HEIGHT, GAP, LANE = 236, 98, 30, 18
"""Of a box; between two boxes of a layer; of an arrow that passes a layer."""
ROW = HEIGHT + 56
MARGIN, HEADER, LEAST_WIDTH = 40, 88, 900


@dataclass
class Place:
    """A box, or the point where a long arrow passes a layer."""

    name: str
    layer: int
    width: float
    x: float = 0.0
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)


def layers(graph: Graph) -> dict[str, int]:
    """The length of the longest chain of imports below each room; rooms of one cycle share a layer."""
    group_of = {room: index for index, knot in enumerate(knots(graph)) for room in knot}

    def members(room: str) -> list[str]:
        return [
            other for other in graph if other == room or (room in group_of and group_of.get(other) == group_of[room])
        ]

    found: dict[str, int] = {}

    def depth(room: str) -> int:
        if room not in found:
            same = members(room)
            below = {target for member in same for target in graph[member]} - set(same)
            level = max((depth(target) + 1 for target in below), default=0)
            found.update(dict.fromkeys(same, level))
        return found[room]

    for room in sorted(graph):
        depth(room)
    return found


def without_implied(graph: Graph) -> Graph:
    """Leaves out an arrow that a longer way implies; arrows of a cycle all stay."""
    reach = {node: reachable(graph, node) for node in graph}

    def implied(start: str, end: str) -> bool:
        if start in reach[end]:
            return False
        return any(
            end in reach[middle] and start not in reach[middle] and middle not in reach[end]
            for middle in graph[start] - {end}
        )

    return {start: {end for end in ends if not implied(start, end)} for start, ends in graph.items()}


def arrange(graph: Graph) -> tuple[list[list[Place]], list[list[Place]], list[tuple[Place, Place]]]:
    """Rows of places from the bottom up, the arrows as chains of places, and the pairs within one row (cycles)."""
    depth = layers(graph)
    rows: list[list[Place]] = [[] for _ in range(max(depth.values()) + 1)]
    places = {room: Place(room, depth[room], WIDTH) for room in sorted(graph)}
    for place in places.values():
        rows[place.layer].append(place)
    chains, level = [], []
    for start in sorted(graph):
        for end in sorted(graph[start]):
            if depth[start] == depth[end]:
                level.append((places[start], places[end]))
                continue
            passing = [Place("", layer, LANE) for layer in range(depth[start] - 1, depth[end], -1)]
            for place in passing:
                rows[place.layer].append(place)
            chains.append([places[start], *passing, places[end]])
    for chain in chains:
        for upper, lower in pairwise(chain):
            upper.below.append(lower)
            lower.above.append(upper)
    _settle(rows)
    return rows, chains, level


def _settle(rows: list[list[Place]]) -> None:
    """Moves every place towards its neighbours, up and down in turn, and keeps the places of a row apart."""
    for row in rows:
        _spread(row, {id(place): float(index) for index, place in enumerate(row)}, sort=False)
    for sweep in range(60):
        downwards = sweep % 2 == 0
        for row in reversed(rows) if downwards else rows:
            wanted = {}
            for place in row:
                near = place.above if downwards else place.below
                near = near or [*place.above, *place.below]
                wanted[id(place)] = sum(other.x for other in near) / len(near) if near else place.x
            _spread(row, wanted, sort=sweep < 50)


def _spread(row: list[Place], wanted: Mapping[int, float], sort: bool) -> None:
    """Sorts a row by the wanted positions and gives the nearest ones at which nothing overlaps."""
    if sort:
        row.sort(key=lambda place: wanted[id(place)])
    blocks: list[tuple[float, list[Place]]] = []  # each begins at x and holds places side by side
    for place in row:
        blocks.append((wanted[id(place)] - place.width / 2, [place]))
        while len(blocks) > 1 and blocks[-2][0] + _length(blocks[-2][1]) + GAP > blocks[-1][0]:
            (_, left), (_, right) = blocks[-2], blocks[-1]
            merged, offset, starts = left + right, 0.0, []
            for each in merged:
                starts.append(wanted[id(each)] - each.width / 2 - offset)
                offset += each.width + GAP
            blocks[-2:] = [(sum(starts) / len(starts), merged)]
    for start, members in blocks:
        for place in members:
            place.x = start + place.width / 2
            start += place.width + GAP


def _length(members: list[Place]) -> float:
    return sum(place.width for place in members) + GAP * (len(members) - 1)


# The picture.

STYLE = """
  text { font-family: Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; fill: #1f2933; }
  .title { font-size: 22px; font-weight: bold; }
  .note, .purpose { fill: #52606d; }
  .note { font-size: 13px; }
  .name { font-size: 15px; font-weight: bold; }
  .module { font-size: 12px; font-weight: bold; }
  .purpose { font-size: 11px; }
  .box { fill: #ffffff; stroke: #cbd2d9; }
  .arrow { fill: none; stroke: #829ab1; stroke-width: 1.5; }
  .step { fill: #c05621; }
  .number { font-size: 10px; font-weight: bold; fill: #ffffff; text-anchor: middle; }
  .cycle { fill: none; stroke: #d64545; stroke-width: 2; }
"""
FOLDER, MODULE = "#2f6fb0", "#5d9b62"


def picture(rooms: Graph, files: Mapping[str, Path]) -> str:
    """The rooms as boxes in layers, what imports above what is imported, and the modules that all rooms share below."""
    shared = shared_modules(rooms, files)
    drawn = {room: ends - set(shared) for room, ends in rooms.items() if room not in shared}
    rows, chains, level = arrange(without_implied(drawn))
    edges = [place.x + side * place.width / 2 for row in rows for place in row for side in (-1, 1)]
    width = max(max(edges) - min(edges) + 2 * MARGIN, LEAST_WIDTH)
    for row in rows:
        for place in row:
            place.x += width / 2 - (min(edges) + max(edges)) / 2
    bottom = HEADER + ROW * (len(rows) - 1) + HEIGHT
    height = bottom + 46 + 20 * len(shared) + 44 + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="The rooms of lmgym and what they import">',
        f"<style>{STYLE}</style>",
        "<defs>",
        *(_arrow_head(name, color) for name, color in (("arrow-head", "#829ab1"), ("cycle-head", "#d64545"))),
        "</defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#f7f9fb"/>',
        f'<text class="title" x="{MARGIN}" y="42">The rooms of lmgym</text>',
        f'<text class="note" x="{MARGIN}" y="64">An arrow means “imports”; implied arrows are left out. '
        "Numbers: the path of one token, step by step in the table.</text>",
    ]
    top = {id(place): HEADER + ROW * (len(rows) - 1 - place.layer) for row in rows for place in row}
    parts += [_path(chain, top) for chain in chains]
    parts += [_box(place, top[id(place)], files) for row in reversed(rows) for place in row if place.name]
    parts += [_cycle(start, end, top) for start, end in level]
    parts += _shared_box(shared, files, bottom + 46, width)
    parts += _numbers([place for row in rows for place in row], shared, top, bottom + 46, width)
    return "\n".join([*parts, "</svg>", ""])


def _numbers(
    places: list[Place], shared: list[str], top: Mapping[int, float], shared_top: float, width: float
) -> Iterable[str]:
    """The steps of the token's path, in the lower right corner of the room where each happens."""
    boxes = {place.name: place for place in places if place.name}
    for room in dict.fromkeys(stop.room for stop in token_path()):
        numbers = [stop.number for stop in token_path() if stop.room == room]
        for offset, number in enumerate(reversed(numbers)):
            if room in boxes:
                x, y = boxes[room].x + WIDTH / 2 - 14 - 21 * offset, top[id(boxes[room])] + HEIGHT - 13
            else:
                x, y = width - MARGIN - 16 - 21 * offset, shared_top + 44 + 20 * shared.index(room) - 4
            yield f'<circle class="step" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
            yield f'<text class="number" x="{x:.1f}" y="{y + 3.5:.1f}">{number}</text>'


def shared_modules(rooms: Graph, files: Mapping[str, Path]) -> list[str]:
    """Root modules that import nothing but each other: they are drawn once, below all rooms."""
    found = [room for room in sorted(rooms) if files[f"{PACKAGE}.{room}"].name != "__init__.py"]
    while any(not rooms[room] <= set(found) for room in found):
        found = [room for room in found if rooms[room] <= set(found)]
    return found


def _arrow_head(name: str, color: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{color}"/></marker>'
    )


def _port(place: Place, other: Place, others: list[Place]) -> float:
    """Where on the edge of a box an arrow begins or ends: in the order of the other ends."""
    if not place.name or len(others) < 2:
        return place.x
    order = sorted(others, key=lambda each: each.x)
    step = min(30.0, (place.width - 50) / (len(order) - 1))
    return place.x + step * (next(i for i, each in enumerate(order) if each is other) - (len(order) - 1) / 2)


def _path(chain: list[Place], top: Mapping[int, float]) -> str:
    """A smooth line down through the lanes of the layers that it passes."""
    x = _port(chain[0], chain[1], chain[0].below)
    y = top[id(chain[0])] + HEIGHT
    parts = [f"M{x:.1f},{y:.1f}"]
    for before, place in pairwise(chain):
        next_x = _port(place, before, place.above)
        next_y = top[id(place)] - (2 if place.name else 0)
        middle = (y + next_y) / 2
        parts.append(f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
        if not place.name:
            y += HEIGHT
            parts.append(f"L{x:.1f},{y:.1f}")
    return f'<path class="arrow" d="{" ".join(parts)}" marker-end="url(#arrow-head)"/>'


def _cycle(start: Place, end: Place, top: Mapping[int, float]) -> str:
    """A red arrow between two rooms of a layer, above the boxes one way and below them the other."""
    rightwards = start.x < end.x
    edge = top[id(start)] if rightwards else top[id(start)] + HEIGHT
    bend = edge - 26 if rightwards else edge + 26
    return (
        f'<path class="cycle" d="M{start.x:.1f},{edge:.1f} C{start.x:.1f},{bend:.1f} {end.x:.1f},{bend:.1f} '
        f'{end.x:.1f},{edge:.1f}" marker-end="url(#cycle-head)"/>'
    )


def _box(place: Place, top: float, files: Mapping[str, Path]) -> str:
    name = label(place.name, files)
    x = place.x - WIDTH / 2
    lines = textwrap.wrap(_without_name(purpose(place.name, files)), 33, max_lines=4, placeholder=" …")
    return "\n".join(
        [
            f'<rect class="box" x="{x:.1f}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            f'<rect x="{x:.1f}" y="{top}" width="6" height="{HEIGHT}" rx="3" fill="{_color(name)}"/>',
            f'<text class="name" x="{x + 18:.1f}" y="{top + 24}">{escape(name)}</text>',
            *(
                f'<text class="purpose" x="{x + 18:.1f}" y="{top + 43 + 14 * index}">{escape(line)}</text>'
                for index, line in enumerate(lines)
            ),
        ]
    )


def _shared_box(shared: list[str], files: Mapping[str, Path], top: float, width: float) -> list[str]:
    """One box as wide as the picture."""
    inner = width - 2 * MARGIN
    height = 44 + 20 * len(shared)
    parts = [
        f'<rect class="box" x="{MARGIN}" y="{top}" width="{inner:.1f}" height="{height}" rx="6"/>',
        f'<rect x="{MARGIN}" y="{top}" width="6" height="{height}" rx="3" fill="{MODULE}"/>',
        f'<text class="note" x="{MARGIN + 18}" y="{top + 25}">Modules that any room may import:</text>',
    ]
    for index, room in enumerate(shared):
        y = top + 48 + 20 * index
        what = textwrap.shorten(_without_name(purpose(room, files)), int((inner - 142) / 6.1), placeholder=" …")
        parts += [
            f'<text class="module" x="{MARGIN + 18}" y="{y}">{escape(label(room, files))}</text>',
            f'<text class="purpose" x="{MARGIN + 132}" y="{y}">{escape(what)}</text>',
        ]
    return parts


def _color(name: str) -> str:
    return FOLDER if name.endswith("/") else MODULE


def _without_name(text: str) -> str:
    """`Engines: token ids in …` without the word that the title of the box repeats."""
    head, colon, rest = text.replace("`", "").partition(": ")
    return rest[0].upper() + rest[1:] if colon and " " not in head else head + colon + rest


# The files.


def render(root: Path = ROOT) -> dict[Path, str]:
    """What both files should contain."""
    files = module_files(root)
    rooms = room_graph(module_graph(root))
    drawn = {
        room: ends - {PACKAGE} for room, ends in rooms.items() if f"{PACKAGE}.{room}" in files and room != "__main__"
    }
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return {PICTURE: picture(drawn, files), PAGE: f"{before}{BEGIN}\n{table(drawn, files)}\n{END}{after}"}


def main(arguments: list[str]) -> int:
    """Writes both files, or says which of them are not up to date."""
    stale = [path for path, text in render().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" not in arguments:
        for path, text in render().items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in stale:
        sys.stderr.write(f"{path.relative_to(ROOT)} is not up to date: run python docs/draw_architecture.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
