"""Environments: tasks whose observations and actions are text."""

from lmgym.envs.aime import AIME
from lmgym.envs.arithmetic import ArithmeticEnv, ArithmeticProblems
from lmgym.envs.dataset_file import DatasetFile, load_dataset_file
from lmgym.envs.env import Env, Response, StateSpace, TextSpace
from lmgym.envs.games.countdown import Countdown
from lmgym.envs.games.game import Game, Turn
from lmgym.envs.games.guess_number import GuessNumber
from lmgym.envs.games.maze import Maze
from lmgym.envs.games.number_race import NumberRace
from lmgym.envs.games.twenty_questions import TwentyQuestions
from lmgym.envs.games.word_guess import WordGuess
from lmgym.envs.gsm8k import GSM8K
from lmgym.envs.gsm_hard import GSMHard
from lmgym.envs.math import MATH
from lmgym.envs.math_500 import MATH500
from lmgym.envs.math_env import MathEnv
from lmgym.envs.procedural import SPLITS
from lmgym.envs.registry import (
    Registration,
    find,
    make,
    names,
    register,
    register_family,
    registrations,
    takes_option,
)
from lmgym.envs.svamp import SVAMP
from lmgym.envs.word_problems.problems import WordProblems, WordProblemsEnv

register("aime", AIME, "lmgym/AIME-v0", splits=("test",))
register("arithmetic", ArithmeticEnv, "lmgym/Arithmetic-v0", splits=SPLITS)
register("countdown", Countdown, "lmgym/Countdown-v0", splits=SPLITS)
register("gsm-hard", GSMHard, "lmgym/GSMHard-v0", splits=("test",))
register("gsm8k", GSM8K, "lmgym/GSM8K-v0", splits=SPLITS)
register("guess-number", GuessNumber, "lmgym/GuessNumber-v0", splits=SPLITS)
register("math", MATH, "lmgym/MATH-v0", splits=SPLITS)
register("math-500", MATH500, "lmgym/MATH500-v0", splits=("test",))
register("maze", Maze, "lmgym/Maze-v0", splits=SPLITS)
register("number-race", NumberRace, "lmgym/NumberRace-v0", splits=SPLITS)
register("svamp", SVAMP, "lmgym/SVAMP-v0", splits=("test",))
register("twenty-questions", TwentyQuestions, "lmgym/TwentyQuestions-v0", splits=SPLITS)
register("word-guess", WordGuess, "lmgym/WordGuess-v0", splits=SPLITS)
register("word-problems", WordProblemsEnv, "lmgym/WordProblems-v0", splits=SPLITS)

register_family("gymnasium", "lmgym.envs.adapters.gymnasium_env:GymnasiumEnv", option="gym_id")
register_family("reasoning-gym", "lmgym.envs.adapters.reasoning_gym:ReasoningGym", option="task")
register_family("openenv", "lmgym.envs.adapters.openenv_env:OpenEnv", option="url")
register_family("textarena", "lmgym.envs.adapters.textarena_env:TextArenaEnv", option="game")
register_family("verifiers", "lmgym.envs.adapters.verifiers_env:VerifiersEnv", option="taskset")

__all__ = [
    "AIME",
    "GSM8K",
    "MATH",
    "MATH500",
    "SVAMP",
    "ArithmeticEnv",
    "ArithmeticProblems",
    "Countdown",
    "DatasetFile",
    "Env",
    "GSMHard",
    "Game",
    "GuessNumber",
    "MathEnv",
    "Maze",
    "NumberRace",
    "Registration",
    "Response",
    "StateSpace",
    "TextSpace",
    "Turn",
    "TwentyQuestions",
    "WordGuess",
    "WordProblems",
    "WordProblemsEnv",
    "find",
    "load_dataset_file",
    "make",
    "names",
    "register",
    "register_family",
    "registrations",
    "takes_option",
]
