"""A maze in text: the policy walks through a grid and sees what is around it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from lmgym.envs.games.game import Game, Turn
from lmgym.envs.procedural import ProceduralProblems
from lmgym.errors import UserError
from lmgym.types import Problem

MOVES = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class Maze(Game):
    """Find the way from S to G through a grid of `size` cells a side; `map_shown` shows the map at the start."""

    instruction = "Write only one move: north, south, west or east."

    def __init__(
        self,
        split: str = "train",
        seed: int = 0,
        size: int = 4,
        map_shown: bool = True,
        max_turns: int = 12,
        speed_bonus: float = 0.0,
    ) -> None:
        super().__init__(Mazes(split, seed, size, map_shown, max_turns), max_turns, speed_bonus)

    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """Walks all moves from the start, and then the new one."""
        place = tuple(problem.info["start"])
        for earlier in moves:
            place = _after(problem, place, earlier) or place
        moved = _after(problem, place, move)
        if moved is None:
            reason = "There is a wall." if _name(move) else "Write north, south, west or east."
            return Turn(f"{reason} {_ways(problem, place)}", valid=_name(move) is not None)
        if list(moved) == problem.info["goal"]:
            return Turn("You are there.", won=True)
        return Turn(_ways(problem, moved))


class Mazes(ProceduralProblems):
    """Grids with walls in which the goal can be reached in time."""

    def __init__(self, split: str, seed: int, size: int, map_shown: bool, max_turns: int) -> None:
        super().__init__("maze", split, seed)
        if not 2 <= size <= 20:
            raise UserError(f"size is {size}: it must be an integer from 2 to 20.")
        self.size = size
        self.map_shown = map_shown
        self.max_turns = max_turns

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """A quarter of the cells are walls."""
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        while True:
            walls = set(random_source.sample(cells, self.size * self.size // 4))
            start, goal = random_source.sample([cell for cell in cells if cell not in walls], 2)
            grid = [
                "".join("#" if (row, column) in walls else "." for column in range(self.size))
                for row in range(self.size)
            ]
            info = {"grid": grid, "start": list(start), "goal": list(goal)}
            problem = Problem(problem_id, "", "", info=info)
            path = _shortest(problem)
            if path is None or not 2 <= len(path) <= self.max_turns:
                continue
            opening = f"Walk from S to G.\n{_map(info)}\n" if self.map_shown else "Find the goal.\n"
            yield Problem(problem_id, opening + _ways(problem, start), f"{len(path)} moves", "\n".join(path), info)

    def split_key(self, problem: Problem) -> str:
        """The map."""
        return _map(problem.info)


def _map(info: dict[str, Any]) -> str:
    rows = [list(row) for row in info["grid"]]
    for letter, (row, column) in (("S", info["start"]), ("G", info["goal"])):
        rows[row][column] = letter
    return "\n".join("".join(row) for row in rows)


def _name(move: str) -> str | None:
    """The direction that a move names, if it names exactly one."""
    found = [name for name in MOVES if name in move.lower()]
    return found[0] if len(found) == 1 else None


def _after(problem: Problem, place: tuple[int, ...], move: str) -> tuple[int, ...] | None:
    """Where a move leads, or None if it cannot be made."""
    name = _name(move)
    if name is None:
        return None
    row, column = (position + step for position, step in zip(place, MOVES[name], strict=True))
    grid = problem.info["grid"]
    is_free = 0 <= row < len(grid) and 0 <= column < len(grid) and grid[row][column] != "#"
    return (row, column) if is_free else None


def _ways(problem: Problem, place: tuple[int, ...]) -> str:
    """Where the goal is from here, and which ways are free."""
    down, right = (goal - position for goal, position in zip(problem.info["goal"], place, strict=True))
    parts = [f"{abs(down)} {'south' if down > 0 else 'north'}"] if down else []
    parts += [f"{abs(right)} {'east' if right > 0 else 'west'}"] if right else []
    free = [name for name in MOVES if _after(problem, place, name)]
    return f"The goal is {' and '.join(parts)}. You can go {', '.join(free)}."


def _shortest(problem: Problem) -> list[str] | None:
    """The moves of a shortest way to the goal, or None if there is no way."""
    start = tuple(problem.info["start"])
    paths: dict[tuple[int, ...], list[str]] = {start: []}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        if list(place) == problem.info["goal"]:
            return paths[place]
        for name in MOVES:
            moved = _after(problem, place, name)
            if moved is not None and moved not in paths:
                paths[moved] = [*paths[place], name]
                waiting.append(moved)
    return None
