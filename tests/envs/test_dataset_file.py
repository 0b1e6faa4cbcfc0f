"""A user's own file: every form of row that is understood, and every fault that is named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym
from lmgym import UserError
from lmgym.envs import DatasetFile, load_dataset_file
from lmgym.rewards.final_answer import BoxedAnswer, NumberAnswer, TextAnswer

GSM8K_ROW = {"question": "What is 2 + 3?", "answer": "2+3 = <<2+3=5>>5\n#### 5"}
FORMS = [
    GSM8K_ROW,
    {"problem": "What is 2 + 3?", "solution": "2+3 = 5\n#### 5"},
    {"id": 17, "problem": "What is 2 + 3?", "solution": "2+3 = 5\nThe answer is: 5"},
    {"problem": "What is 2 + 3?", "solution": r"Not \boxed{4}, but $\boxed{5}$."},
    {"question": "What is 2 + 3?", "answer": 5},
    {"question": "What is 2 + 3?", "answer": "$5.00"},
    {"problem": "What is 2 + 3?", "solution": r"So \boxed{5}.", "answer": "5"},
]


def write(tmp_path, rows, name="mine.jsonl"):
    path = tmp_path / name
    text = json.dumps(rows) if name.endswith(".json") else "\n".join(json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.json"])
@pytest.mark.parametrize("row", FORMS)
def test_every_form_of_row_makes_a_problem_that_checks_itself(tmp_path, row, name):
    env = lmgym.make(str(write(tmp_path, [row, row], name)))
    state, _ = env.reset(options={"index": 1})
    assert state.messages[0]["content"] == "What is 2 + 3?"
    for line in state.problem.solution.split("\n"):
        _, reward, terminated, _, _ = env.step(line)
    assert (reward, terminated) == (1.0, True)
    if "id" in row:
        assert state.problem.id == "17"


def test_rows_of_gsm_hard_load_and_check_themselves(tmp_path):
    rows = [
        {"input": "How much?", "code": "def solution(): ...", "target": 2.0107e-06},
        {"question": "How much?", "answer": 1.2e20},
        {"question": "How much?", "answer": "Little.\n#### 2.0107e-06"},
    ]
    env = lmgym.make(str(write(tmp_path, rows)))
    for index, plain in enumerate(("0.0000020107", "120000000000000000000", "0.0000020107")):
        for answer in (env.problems[index].solution.split("\n")[-1], f"The answer is: {plain}"):
            env.reset(options={"index": index})
            _, reward, _, _, info = env.step(answer)
            assert (reward, info["lenient"]) == (1.0, True)


def test_the_answer_form_is_what_the_rows_hold(tmp_path):
    assert isinstance(load_dataset_file(write(tmp_path, FORMS[:3])).answer_form, NumberAnswer)
    assert isinstance(load_dataset_file(write(tmp_path, FORMS[3:4])).answer_form, BoxedAnswer)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("{", "not valid JSON"),
        ('{"question": "x", "answer": "#### 5"', "not valid JSON"),
        ("[1", "not valid JSON"),
        ("17", "a row is a JSON object"),
        ('{"answer": "#### 5"}', 'no "question" or "problem"'),
        ('{"question": "What?"}', 'no "solution" or "answer"'),
        ('{"question": "", "answer": "#### 5"}', '"question" is not a text'),
        ('{"question": 5, "answer": "#### 5"}', '"question" is not a text'),
        ('{"question": "What?", "answer": null}', '"answer" is neither a number nor a text'),
        ('{"question": "What?", "answer": "no idea"}', 'the answer "no idea" is not a number'),
        ('{"question": "What?", "answer": "First\\nthis, then that"}', "states no answer"),
        ('{"question": "What?", "solution": "no idea"}', "or pass a reward"),
        ('{"question": "What?", "answer": NaN}', '"answer" is neither a number nor a text'),
        ('{"question": "What?", "answer": "#### five"}', 'the answer "five" is not a number'),
        (r'{"problem": "What?", "solution": "\\boxed{5}"}', "another form"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_fault(tmp_path, bad, fault):
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{json.dumps(GSM8K_ROW)}\n\n{bad}\n{json.dumps(GSM8K_ROW)}\n")
    with pytest.raises(UserError) as caught:
        lmgym.make(str(path))
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert fault in str(caught.value)


def test_a_bad_row_of_a_json_list_is_named_by_its_number(tmp_path):
    with pytest.raises(UserError, match="row 2: "):
        lmgym.make(str(write(tmp_path, [GSM8K_ROW, {}], "mine.json")))


def test_files_that_are_not_datasets_are_one_sentence(tmp_path):
    empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("\n\n")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, fault in [(empty, "no problems"), (binary, "UTF-8"), (tmp_path, "cannot be read")]:
        with pytest.raises(UserError, match=fault):
            lmgym.make(str(path))
    with pytest.raises(UserError, match="No such file"):
        lmgym.make("missing.jsonl")
    with pytest.raises(UserError, match="no problems"):
        lmgym.make(str(write(tmp_path, [], "list.json")))


def test_an_option_of_no_use_is_named(tmp_path):
    with pytest.raises(UserError, match='did you mean "stepwise"'):
        lmgym.make(str(write(tmp_path, [GSM8K_ROW])), step_wise=False)


TEXT_ROWS = [
    {"question": "What is the capital of France?", "answer": "Paris"},
    {"question": "When did the war end?", "answer": "1945"},
    {"question": "Who wrote Emma?", "answer": "Jane Austen"},
]


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("The answer is: Paris", 1.0),
        ("France.\nthe answer is:  paris. ", 1.0),
        ("The answer is: Paris, I think", 0.0),
        ("It is Paris.", 0.0),
        ("The answer is: London", 0.0),
    ],
)
def test_short_texts_are_matched_exactly_but_for_case_spaces_and_a_full_stop(tmp_path, said, reward):
    env = lmgym.make(str(write(tmp_path, TEXT_ROWS)), stepwise=False)
    env.reset(options={"index": 0})
    assert env.step(said)[1] == reward
    assert isinstance(env, DatasetFile)
    assert "The answer is: " in env.instruction


def test_text_answers_check_themselves_and_numbers_among_them_are_numbers(tmp_path):
    worked = {"question": "Who?", "solution": "She wrote Emma.", "answer": "Jane Austen"}
    for rows in (TEXT_ROWS, [worked], [{"question": "Who?", "answer": "She did.\n#### Jane Austen"}]):
        env = lmgym.make(str(write(tmp_path, rows)))
        for index, problem in enumerate(env.problems):
            env.reset(options={"index": index})
            results = [env.step(line) for line in problem.solution.split("\n")]
            assert (results[-1][1], results[-1][2], results[-1][4]["lenient"]) == (1.0, True, True)
    assert TextAnswer().compare("1945", "1,945.0").is_right
    assert not TextAnswer().compare("", "").is_right


UNGRADED_ROWS = [
    {"question": "Write a poem.", "words": ["sun", "sea"]},
    {"question": "Sum it up.", "answer": "A long text.\nOf two lines."},
    {"question": "What is 2 + 3?", "answer": 5},
    {"question": "Which?", "answer": None},
    {"question": "Which?", "answer": ["a", "b"]},
]


def test_rows_without_an_answer_to_grade_by_need_a_reward(tmp_path):
    path = str(write(tmp_path, UNGRADED_ROWS))
    with pytest.raises(UserError, match='line 1: the row has no "solution" or "answer"'):
        lmgym.make(path)

    def rhymes(problem, text):
        return 0.25 * (problem.answer in text) + len(problem.info.get("words", problem.info.get("answer") or ()))

    env = lmgym.make(path, reward=rhymes, stepwise=False)
    assert isinstance(env, DatasetFile)
    assert env.instruction == ""
    assert [problem.answer for problem in env.problems] == ["", "A long text.\nOf two lines.", "5", "", ""]
    env.reset(options={"index": 0})
    assert env.step("Ode")[1:] == (2.25, True, False, {"final": True}), "there is no answer to be right about"
    env.reset(options={"index": 4})
    assert env.step("a")[1] == 2.25


def test_a_reward_of_ones_own_leaves_graded_rows_graded(tmp_path):
    env = lmgym.make(str(write(tmp_path, [GSM8K_ROW])), reward=lambda problem, text: 0.5)
    env.reset()
    _, reward, _, _, info = env.step("The answer is: 5")
    assert (reward, info["correct"]) == (0.5, True)


@settings(max_examples=150, deadline=None)
@given(rows=st.integers(1, 4), cut=st.integers(1, 200))
def test_a_file_cut_short_names_the_line_where_it_stops(tmp_path_factory, rows, cut):
    path = tmp_path_factory.mktemp("cut") / "mine.jsonl"
    text = "\n".join([json.dumps(GSM8K_ROW)] * rows)
    cut = min(cut, len(text) - 1)
    path.write_text(text[:-cut])
    lines = text[:-cut].split("\n")
    last_is_whole = lines[-1] in ("", json.dumps(GSM8K_ROW))
    if last_is_whole:
        assert len(load_dataset_file(path).problems) == len([line for line in lines if line])
    else:
        with pytest.raises(UserError, match=f"line {len(lines)}: "):
            load_dataset_file(path)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=60))
def test_no_file_gives_any_other_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "mine.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError):
        load_dataset_file(path)
