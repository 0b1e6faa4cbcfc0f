"""Games of TextArena for one or two players: `lmgym.make("textarena/GuessTheNumber-v0")`."""

from __future__ import annotations

from typing import Any

from lmgym.envs.adapters.seeds import Seeds
from lmgym.envs.adapters.textarena_match import FORFEIT, Match, count_players
from lmgym.envs.adapters.textarena_opponent import MOST_MOVES, Opponent, Side, load_opponent, try_random
from lmgym.envs.env import Env, Response
from lmgym.envs.games.game import last_line
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State


class TextArenaEnv(Env):
    """A game of TextArena; its reward, at the end, is the game's own.

    In a game for two, the policy is `player`, and `opponent` is "random" or a function of all that it has seen, also as
    `module:function`. The last line of an action is the move, or all of it with `whole_text`. Further options are those
    of the game.
    """

    shared_attributes = (*Env.shared_attributes, "options", "opponent")
    instruction = "The last line of your message is your move, in the form that the game asks for."

    def __init__(
        self,
        game: str,
        split: str = "train",
        seed: int = 0,
        max_turns: int = 100,
        opponent: str | Opponent = "random",
        player: int = 0,
        whole_text: bool = False,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}: a game needs at least one turn.")
        self.game = game
        self.max_turns = max_turns
        self.whole_text = whole_text
        self.options = options
        self.players = count_players(game, options)
        if not 0 <= player < self.players:
            raise UserError(f"player is {player}, but textarena/{game} has the players 0 to {self.players - 1}.")
        self.player = player
        self.opponent = load_opponent(opponent)
        if self.players == 2 and self.opponent is None:
            try_random(game, options)
        self.match: Match | None = None
        self.other_side: Side | None = None
        super().__init__(Seeds(f"textarena/{game}", split, seed))

    def opening(self, problem: Problem) -> str:
        """Starts the game with the seed of the problem, and lets the opponent move if it begins."""
        seed = problem.info["seed"]
        self.match = Match(self.game, self.players, seed, self.options)
        self.other_side = Side(self.game, self.opponent, seed)
        self._let_opponent_move(self.match)
        return self.match.observe()

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Makes the move; an action that reached its token budget loses the game, unless its move ends it."""
        assert self.match is not None
        try:
            valid = self.match.play(text if self.whole_text else last_line(text))
        except Exception as error:  # whatever a game raises for the text of a model
            return self._ended(state, FORFEIT, f"{type(error).__name__}", valid=False)
        self._let_opponent_move(self.match)
        if self.match.done:
            return self._ended(state, *self.match.outcome(self.player), valid=valid)
        if finish == "length":
            return self._ended(state, FORFEIT, "The token budget is used up.", valid=valid, truncated=True)
        if state.turn >= self.max_turns:
            return self._ended(state, 0.0, "The turns are used up.", valid=valid, truncated=True)
        return Response(reply=self.match.observe() or "It is your move.", info={"valid": valid})

    def _let_opponent_move(self, match: Match) -> None:
        """Plays for the opponent until it is the policy's turn or the game has ended."""
        assert self.other_side is not None
        for _ in range(MOST_MOVES):
            if match.done or match.player == self.player:
                return
            self.other_side.play(match)
        raise UserError(f"The opponent made {MOST_MOVES} moves in textarena/{self.game}, and it is still its turn.")

    def _ended(self, state: State, reward: float, reason: str, valid: bool, truncated: bool = False) -> Response:
        info = {"valid": valid, "correct": reward >= 1, "turns": state.turn, "reason": reason, "final": True}
        return Response(reward, reason, terminated=not truncated, truncated=truncated, info=info)
