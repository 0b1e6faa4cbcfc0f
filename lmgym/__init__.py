"""A gym for language models: environments that speak text, policies that are LLMs, algorithms short enough to read."""

from lmgym.envs import Env, MathEnv, Response, make, names, register, registrations
from lmgym.errors import UserError
from lmgym.models.allocator import allow_huge_pages
from lmgym.models.openmp import limit_spinning
from lmgym.types import Action, Episode, Finish, Message, Problem, State, Step

__version__ = "0.2.0"

__all__ = [
    "Action",
    "Env",
    "Episode",
    "Finish",
    "MathEnv",
    "Message",
    "Problem",
    "Response",
    "State",
    "Step",
    "UserError",
    "make",
    "names",
    "register",
    "registrations",
]

# Both must run before torch is imported; nothing above imports it.
limit_spinning()
allow_huge_pages()
