"""Tasks check themselves: gold earns 1 and wrong earns 0, line by line and whole."""

import random

import pytest

import lmgym
from lmgym import Action, Problem, UserError
from lmgym.envs import MathEnv
from lmgym.rewards.final_answer import BoxedAnswer

PROBLEM = Problem("p", "What is 2 + 3?", "5", "2+3 = <<2+3=5>>5\nThe answer is: 5")


def play(env, index, *solution):
    """Plays texts and actions through `step` and gives the total reward and the last step."""
    env.reset(options={"index": index})
    total = 0.0
    lines = [line for part in solution for line in (part.split("\n") if isinstance(part, str) else [part])]
    for action in lines if env.stepwise else solution:
        state, reward, terminated, truncated, info = env.step(action)
        total += reward
        if terminated or truncated:
            break
    return total, state, terminated, info


def wrong_solution(env, problem):
    if isinstance(env.answer_form, BoxedAnswer):
        return f"First this.\n{env.answer_form.show(problem.answer + '7')}"
    wrong = str(int(problem.answer.replace(",", "")) + 1)
    return f"First this.\n{env.answer_form.show(wrong)}"


def check_itself(env, indices, wrong_every=1):
    for index in indices:
        problem = env.problems[index]
        reward, _, terminated, info = play(env, index, problem.solution)
        assert (reward, terminated, info["correct"], info["lenient"], info["parsed"]) == (1.0, True, True, True, True)
        if index % wrong_every == 0:
            reward, _, terminated, info = play(env, index, wrong_solution(env, problem))
            assert (reward, terminated, info["correct"], info["parsed"]) == (0.0, True, False, True), problem


@pytest.mark.network
@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize(("split", "size"), [("train", 7473), ("test", 1319)])
def test_gsm8k_checks_itself(split, size, stepwise):
    env = lmgym.make("gsm8k", split=split, stepwise=stepwise)
    assert len(env.problems) == size
    check_itself(env, range(size))


@pytest.mark.network
@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize(("split", "size"), [("train", 7500), ("test", 5000)])
def test_math_checks_itself(split, size, stepwise):
    env = lmgym.make("math", split=split, stepwise=stepwise)
    assert len(env.problems) == size
    check_itself(env, range(size), wrong_every=7)  # each of these may need computer algebra


@pytest.mark.network
@pytest.mark.parametrize("stepwise", [True, False])
def test_svamp_checks_itself(stepwise):
    env = lmgym.make("svamp", split="test", stepwise=stepwise)
    assert len(env.problems) == len({problem.id for problem in env.problems}) == 1000
    check_itself(env, range(1000))
    first = env.problems[0]
    assert first.answer == "145"
    assert first.prompt.endswith("organized into 93 groups. How big is each group of bananas?")
    assert max(int(problem.answer) for problem in env.problems) == 22_090_603  # no exponents
    with pytest.raises(UserError, match='svamp has no split "train"'):
        lmgym.make("svamp")


@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_word_problems_check_themselves(difficulty, stepwise):
    env = lmgym.make("word-problems", max_operations=8, difficulty=difficulty, stepwise=stepwise)
    check_itself(env, range(300))


@pytest.mark.parametrize("stepwise", [True, False])
def test_arithmetic_checks_itself(stepwise):
    check_itself(lmgym.make("arithmetic", operators="+-*/", digits=3, stepwise=stepwise), range(1000))


@pytest.mark.network
def test_gsm8k_shows_the_answer_in_the_asked_for_form():
    problem = lmgym.make("gsm8k").problems[0]
    assert problem.answer == "72"
    assert problem.solution.split("\n")[-2:] == [
        "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.",
        "The answer is: 72",
    ]


@pytest.mark.network
def test_the_training_and_test_problems_of_real_datasets_are_disjoint():
    train, test = (lmgym.make("gsm8k", split=split).problems for split in ("train", "test"))
    assert not {problem.prompt for problem in train} & {problem.prompt for problem in test}


@pytest.mark.network
def test_only_the_problems_to_train_on_are_limited_to_short_solutions():
    short = lmgym.make("gsm8k", max_calculations=2, hold_out_validation=True).problems
    everything = lmgym.make("gsm8k", hold_out_validation=True).problems
    assert list(short) == [problem for problem in everything if problem.solution.count("<<") <= 2]
    assert 2000 < len(short) < 3000
    assert len(lmgym.make("gsm8k:validation", max_calculations=2).problems) == 500
    assert len(lmgym.make("gsm8k:test", max_calculations=2).problems) == 1319


@pytest.mark.network
@pytest.mark.parametrize(("name", "size"), [("gsm8k", 7473), ("math", 7500)])
def test_validation_is_held_out_of_train_where_that_is_asked_for(name, size):
    validation = lmgym.make(f"{name}:validation").problems
    training = lmgym.make(name, hold_out_validation=True).problems
    everything = lmgym.make(name).problems
    assert (len(validation), len(training), len(everything)) == (500, size - 500, size)
    ids = [{problem.id for problem in problems} for problems in (validation, training, everything)]
    assert ids[0].isdisjoint(ids[1])
    assert ids[0] | ids[1] == ids[2]
    assert list(validation) == list(lmgym.make(name, split="validation", hold_out_validation=True).problems)
    assert len(lmgym.make(name, split="test", hold_out_validation=True).problems) == {"gsm8k": 1319, "math": 5000}[name]
    # A shuffle, not the end of the file: subjects and difficulty are ordered in some files.
    assert len({index * 10 // size for index, problem in enumerate(everything) if problem.id in ids[0]}) == 10


def test_a_file_too_small_for_a_validation_split_is_one_sentence(tmp_path):
    path = tmp_path / "small.jsonl"
    path.write_text('{"question": "What is 2 + 3?", "answer": "#### 5"}\n')
    with pytest.raises(UserError, match="500 training problems, but there are only 1"):
        lmgym.make("gsm8k:validation", path=path)


@pytest.mark.network
def test_math_is_filtered_by_subject_and_level():
    env = lmgym.make("math", subjects=["counting_and_probability", "Geometry"], levels=[1, 2])
    assert {problem.info["subject"] for problem in env.problems} == {"Counting & Probability", "Geometry"}
    assert {problem.info["level"] for problem in env.problems} == {1, 2}
    with pytest.raises(UserError, match="Prealgebra"):
        lmgym.make("math", subjects=["alchemy"])
    with pytest.raises(UserError, match="levels are the numbers 1 to 5"):
        lmgym.make("math", levels=[6])


@pytest.mark.parametrize("newline", ["", "\n"])
def test_lines_come_with_or_without_their_newline(newline):
    env = MathEnv([PROBLEM])
    env.reset()
    state, reward, terminated, truncated, info = env.step(PROBLEM.solution.split("\n")[0] + newline)
    assert (reward, terminated, truncated, info, state.reply, state.turn) == (0.0, False, False, {}, "", 1)
    state, reward, terminated, _, _ = env.step("The answer is: 5" + newline)
    assert (reward, terminated) == (1.0, True)
    assert state.messages[-1] == {"role": "assistant", "content": PROBLEM.solution}
    assert len(state.messages) == 2


@pytest.mark.parametrize("stepwise", [True, False])
def test_the_end_of_a_turn_ends_the_episode(stepwise):
    env = MathEnv([PROBLEM], stepwise=stepwise)
    env.reset()
    state, reward, terminated, truncated, info = env.step(Action("I give up, 5.\n", finish="eos"))
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info.pop("final") is True
    graded = {"correct": False, "lenient": True, "parsed": False, "answer": None, "lenient_answer": "5.", "stage": None}
    assert info == graded
    assert state.messages[-1]["content"] == "I give up, 5."


@pytest.mark.parametrize("marker", ["<|end|>", "<|im_end|>", "</s>", "<|stop|>"])
def test_a_marker_that_the_model_types_is_text_and_ends_nothing(marker):
    env = MathEnv([PROBLEM])
    env.reset()
    state, reward, terminated, truncated, _ = env.step(f"I give up, 5.{marker}\n")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert state.messages[-1]["content"] == f"I give up, 5.{marker}"


@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize(
    ("text", "reward", "terminated"),
    [("The answer is: 5", 1.0, True), ("The answer is: 6", 0.0, True), ("5", 0.0, False)],
)
def test_an_action_cut_off_by_its_budget_truncates_unless_the_answer_is_out(stepwise, text, reward, terminated):
    env = MathEnv([PROBLEM], stepwise=stepwise)
    env.reset()
    _, *outcome, info = env.step(Action(text, finish="length"))
    assert outcome == [reward, terminated, not terminated]
    assert info["parsed"] is terminated


def test_an_action_cut_off_by_its_budget_is_graded_as_it_stands():
    env = MathEnv([PROBLEM], reward=lambda problem, text: float(len(text)), stepwise=False)
    env.reset()
    assert env.step(Action("abc", finish="length"))[1:4] == (3.0, False, True)


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        (["Hm.", "Hm.", "Hm.", "Hm."], 3),
        (["1+1=2", "So 2.", "1+1=2", "So 2.", "1+1=2", "So 2.", "Hm."], 6),
        (["1+1=2", "So 2.", "1+1=2", "Hm.", "1+1=2", "So 2.", "1+1=2"], 7),
        (["Hm.", "", "Hm.", "", "", "Hm.", ""], 6),
        (["Hm.", "", "So", "", "Then", "", "Now", ""], 8),
        (["1+1=2", " 1+1=2", "2+1=3", "3+1=4", "4+1=5"], 5),
    ],
)
def test_a_solution_that_repeats_itself_three_times_is_cut_off_there(lines, steps):
    env = MathEnv([PROBLEM], max_steps=len(lines) + 1)
    env.reset()
    written = 0
    for line in lines:
        written += 1
        _, reward, terminated, truncated, _ = env.step(f"{line}\n")
        assert (reward, terminated) == (0.0, False)
        if truncated:
            break
    assert (written, truncated) == (steps, steps < len(lines))


def test_the_answer_counts_even_if_it_repeats_a_line():
    env = MathEnv([PROBLEM])
    env.reset()
    for _ in range(2):
        env.step("The answer is: unknown")
    assert env.step("The answer is: 5")[1:4] == (1.0, True, False)


def test_running_out_of_steps_truncates_with_nothing():
    env = MathEnv([PROBLEM], max_steps=3)
    env.reset()
    results = [env.step(f"Let me think {once}.") for once in ("once", "twice", "again")]
    assert [(reward, terminated, truncated) for _, reward, terminated, truncated, _ in results] == [
        (0.0, False, False),
        (0.0, False, False),
        (0.0, False, True),
    ]
    assert results[-1][4]["parsed"] is False


def test_an_answer_on_the_last_step_counts():
    env = MathEnv([PROBLEM], max_steps=1)
    env.reset()
    assert env.step("The answer is: 5")[1:4] == (1.0, True, False)


def test_both_ways_of_acting_agree_on_any_text():
    generator = random.Random(0)
    lines = ["The answer is: 5", "The answer is: 6", "Hm.", "", "5", r"\boxed{5", "}", r"\boxed{6} or \boxed{5}"]
    for form in (None, BoxedAnswer()):
        stepwise, whole = (MathEnv([PROBLEM], form, stepwise=way, max_steps=50) for way in (True, False))
        for _ in range(300):
            # Nothing three times in a row: that is where a solution that is written line by line is cut off.
            text = "\n".join(generator.sample(lines * 2, k=generator.randint(1, 8)))
            reward, state, _, _ = play(stepwise, 0, text, Action("", finish="eos"))
            # The first answer ends the episode line by line; a later box of a whole text would be the one that counts.
            said = state.messages[-1]["content"] if form else text
            assert reward == play(whole, 0, said)[0], text


def test_the_last_box_of_a_whole_solution_counts_and_the_first_line_with_a_box_ends_a_step_wise_one():
    text = "I guess \\boxed{4} or \\boxed{5}.\nNo: \\boxed{6}."
    stepwise, whole = (MathEnv([PROBLEM], BoxedAnswer(), stepwise=way) for way in (True, False))
    assert play(whole, 0, text)[3]["answer"] == "6"
    reward, state, _, info = play(stepwise, 0, text)
    assert (reward, info["answer"], state.turn) == (1.0, "5", 1)


def test_step_rewards_are_added_at_every_step():
    seen = []

    def one_tenth(state, text, next_state):
        seen.append((len(state.messages), text, next_state.messages[-1]["content"]))
        return 0.1

    env = MathEnv([PROBLEM], step_reward=one_tenth)
    reward, *_ = play(env, 0, PROBLEM.solution)
    assert reward == pytest.approx(1.2)
    first, last = PROBLEM.solution.split("\n")
    assert seen == [(1, first, first), (2, last, PROBLEM.solution)]


def test_another_reward_replaces_the_final_answer():
    env = MathEnv([PROBLEM], reward=lambda problem, text: float(len(text)), stepwise=False)
    assert play(env, 0, "abc")[0] == 3.0
