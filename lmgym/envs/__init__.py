"""Environments: tasks whose observations and actions are text."""

from lmgym.envs.arithmetic import ArithmeticEnv, ArithmeticProblems
from lmgym.envs.dataset_file import DatasetFile, load_dataset_file
from lmgym.envs.env import Env, Response, StateSpace, TextSpace
from lmgym.envs.gsm8k import GSM8K
from lmgym.envs.math import MATH
from lmgym.envs.math_env import MathEnv
from lmgym.envs.procedural import SPLITS
from lmgym.envs.registry import Registration, find, make, names, register, registrations, takes_option
from lmgym.envs.svamp import SVAMP
from lmgym.envs.word_problems.problems import WordProblems, WordProblemsEnv

register("arithmetic", ArithmeticEnv, "lmgym/Arithmetic-v0", splits=SPLITS)
register("gsm8k", GSM8K, "lmgym/GSM8K-v0", splits=SPLITS)
register("math", MATH, "lmgym/MATH-v0", splits=SPLITS)
register("svamp", SVAMP, "lmgym/SVAMP-v0", splits=("test",))
register("word-problems", WordProblemsEnv, "lmgym/WordProblems-v0", splits=SPLITS)

__all__ = [
    "GSM8K",
    "MATH",
    "SVAMP",
    "ArithmeticEnv",
    "ArithmeticProblems",
    "DatasetFile",
    "Env",
    "MathEnv",
    "Registration",
    "Response",
    "StateSpace",
    "TextSpace",
    "WordProblems",
    "WordProblemsEnv",
    "find",
    "load_dataset_file",
    "make",
    "names",
    "register",
    "registrations",
    "takes_option",
]
