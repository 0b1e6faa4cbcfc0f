"""A policy that follows worked solutions, so that learning from them uses the same loop as RL."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.calculator import calculate, open_expression
from lmgym.errors import UserError
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.policy import Policy
from lmgym.types import OFF_POLICY, Action, State


class ExpertPolicy(Policy):
    """Follows the problem's own solution, in exactly the ids that the learning policy would have for it."""

    def __init__(self, policy: LLMPolicy) -> None:
        self.policy = policy

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """The next part of each solution; the temperature is ignored."""
        return [self._action(state) for state in states]

    def _action(self, state: State) -> Action:
        if not state.problem.solution:
            raise UserError(f"problem {state.problem.id} has no worked solution to learn from; add a `solution` to it.")
        text, finish = self.policy.demonstration(state)
        ids, mask = self._encode(text)
        if finish == "eos":
            ids, mask = [*ids, self.policy.model.tokenizer.eos_token_id], [*mask, 1]
        return Action(
            text=text,
            prompt_ids=self.policy.prompt_ids(state),
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            mask=tuple(mask),
            finish=finish,
            policy_version=OFF_POLICY,
            episode=state.episode,
        )

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids and mask of a text; values of the calculator are forced tokens, as in sampled episodes."""
        ids: list[int] = []
        mask: list[int] = []
        start = 0
        for place, letter in enumerate(text):
            expression = open_expression(text[: place + 1]) if letter == "=" and place >= start else None
            result = calculate(expression) if expression is not None and self.policy.calculator else None
            closed = text.find(">>", place)
            if result is None or closed < 0:
                continue
            sampled, forced = self.policy.encode(text[start : place + 1]), self.policy.encode(f"{result}>>")
            ids += [*sampled, *forced]
            mask += [1] * len(sampled) + [0] * len(forced)
            start = closed + 2
        last = self.policy.encode(text[start:])
        return [*ids, *last], mask + [1] * len(last)
