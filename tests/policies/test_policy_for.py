"""The policy that suits an environment: in Python the same prompt as from the command line."""

from __future__ import annotations

import pytest
from conftest import tiny_model

import lmgym
from lmgym.commands.settings import PolicySettings
from lmgym.engines.plain_engine import PlainEngine
from lmgym.envs.examples import few_shot_examples
from lmgym.policies.policy_for import policy_for
from lmgym.types import Finish, Problem, State

PROBLEMS = [Problem(f"p/{n}", f"Say {n}.", str(n), f"It is {n}.\n\\boxed{{{n}}}") for n in range(9)]


class Boxed(lmgym.MathEnv):
    """Wants its answers in a box."""

    def __init__(self) -> None:
        from lmgym.rewards.final_answer import BoxedAnswer

        super().__init__(PROBLEMS, BoxedAnswer())


class Spoken(lmgym.Env):
    """Says for itself how it wants to be answered."""

    instruction = "Answer with one word."

    def __init__(self) -> None:
        super().__init__(PROBLEMS)

    def respond(self, state: State, text: str, finish: Finish) -> lmgym.Response:
        return lmgym.Response(terminated=True)


ENVS = {"arithmetic": lambda: lmgym.make("arithmetic"), "boxed": Boxed, "spoken": Spoken}
ASKED = {"arithmetic": "The answer is: ", "boxed": "\\boxed{}", "spoken": "Answer with one word."}


@pytest.mark.parametrize("kind", ["stepwise", "chat"])
@pytest.mark.parametrize("name", ENVS)
def test_the_prompt_is_that_of_the_command_line_and_says_how_to_answer(model_folder, name, kind):
    env = ENVS[name]()
    settings = PolicySettings(model=str(model_folder), policy=kind, dtype="float32")
    from_command_line = settings.make(env, few_shot_examples(env, settings.shots))
    from_python = policy_for(env, tiny_model(), policy=kind)
    state, _ = env.reset(options={"index": 5})
    assert from_python.prompt_ids(state) == from_command_line.prompt_ids(state)
    assert type(from_python) is type(from_command_line)
    for attribute in ("max_tokens", "distribution", "calculator", "examples"):
        assert getattr(from_python, attribute) == getattr(from_command_line, attribute)
    assert ASKED[name] in from_python.system_prompt


def test_a_prompt_and_examples_of_ones_own_are_taken():
    policy = policy_for(ENVS["boxed"](), tiny_model(), examples=PROBLEMS[:1], system_prompt="Be brief.")
    assert policy.system_prompt == "Be brief."
    assert policy.examples == (PROBLEMS[0],)


def test_an_engine_of_ones_own_is_asked():
    model = tiny_model()
    engine = PlainEngine(model)
    policy = policy_for(lmgym.make("arithmetic"), model, shots=0, max_tokens=2, engine=engine)
    assert policy.engine is engine
