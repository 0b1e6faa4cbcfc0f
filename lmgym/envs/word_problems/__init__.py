"""Procedural word problems from templates, with splits by story and numbers."""

from lmgym.envs.word_problems.problems import WordProblems, WordProblemsEnv

__all__ = ["WordProblems", "WordProblemsEnv"]
