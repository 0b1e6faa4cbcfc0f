"""Algorithms by name; a user's own is named as `my_module:MyAlgorithm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmgym.errors import UserError
from lmgym.lookup import import_named, nearest

if TYPE_CHECKING:
    from lmgym.algorithms.rl_algorithm import RLAlgorithm


@dataclass(frozen=True)
class Entry:
    """Where an algorithm is, and what it is in one line."""

    place: str
    summary: str
    paper: str


ALGORITHMS = {
    "reinforce": Entry(
        "lmgym.algorithms.reinforce:Reinforce",
        "discounted per-step returns over a baseline (group, batch, running, greedy, none)",
        "Williams, 1992",
    ),
    "reinforce-stable": Entry(
        "lmgym.algorithms.reinforce_stable:ReinforceStable",
        "REINFORCE with a reference, a KL penalty and truncated importance ratios",
        "Williams, 1992; Ahmadian et al., 2024 (arXiv 2402.14740)",
    ),
    "reinforce-pp": Entry(
        "lmgym.algorithms.reinforce_pp:ReinforcePP",
        "KL in the reward, advantages normalised over the batch, PPO's clip",
        "Hu, 2025 (arXiv 2501.03262)",
    ),
    "remax": Entry(
        "lmgym.algorithms.remax:ReMax",
        "REINFORCE with the reward of a greedy episode as the baseline",
        "Li et al., 2023 (arXiv 2310.10505)",
    ),
    "rloo": Entry(
        "lmgym.algorithms.rloo:RLOO",
        "REINFORCE with a leave-one-out baseline, unbiased",
        "Ahmadian et al., 2024 (arXiv 2402.14740)",
    ),
    "grpo": Entry(
        "lmgym.algorithms.grpo:GRPO",
        "returns over their group's mean and deviation, PPO's clip, no critic",
        "Shao et al., 2024 (arXiv 2402.03300)",
    ),
    "dr-grpo": Entry(
        "lmgym.algorithms.dr_grpo:DrGRPO",
        "GRPO without its two biased divisions",
        "Liu et al., 2025 (arXiv 2503.20783)",
    ),
    "dapo": Entry(
        "lmgym.algorithms.dapo:DAPO",
        "GRPO with clip-higher, a token mean, dynamic sampling and a soft limit on length",
        "Yu et al., 2025 (arXiv 2503.14476)",
    ),
    "gspo": Entry(
        "lmgym.algorithms.gspo:GSPO",
        "GRPO with the ratio and the clip of whole episodes",
        "Zheng et al., 2025 (arXiv 2507.18071)",
    ),
    "cispo": Entry(
        "lmgym.algorithms.cispo:CISPO",
        "clips the importance weight and keeps every token's gradient",
        "MiniMax, 2025 (arXiv 2506.13585)",
    ),
    "sapo": Entry(
        "lmgym.algorithms.sapo:SAPO",
        "a smooth gate in place of the clip",
        "Gao et al., 2025 (arXiv 2511.20347)",
    ),
    "maxrl": Entry(
        "lmgym.algorithms.maxrl:MaxRL",
        "returns over and by the success rate: towards maximum likelihood",
        "Tajwar et al., 2026 (arXiv 2602.02710)",
    ),
    "ppo": Entry(
        "lmgym.algorithms.ppo:PPO",
        "a critic, GAE over tokens or steps, PPO's clip",
        "Schulman et al., 2017 (arXiv 1707.06347)",
    ),
    "expert-iteration": Entry(
        "lmgym.algorithms.expert_iteration:ExpertIteration",
        "imitates its own successes (STaR, RAFT, best-of-n)",
        "Zelikman et al., 2022 (arXiv 2203.14465); Dong et al., 2023 (arXiv 2304.06767)",
    ),
    "sft": Entry(
        "lmgym.algorithms.sft:SFT",
        "imitates worked solutions: a baseline, or a warm start",
        "Ouyang et al., 2022 (arXiv 2203.02155)",
    ),
    "dpo": Entry(
        "lmgym.algorithms.dpo:DPO",
        "prefers the best to the worst of each group that the reference sampled",
        "Rafailov et al., 2023 (arXiv 2305.18290)",
    ),
    "online-dpo": Entry(
        "lmgym.algorithms.online_dpo:OnlineDPO",
        "the same on the policy's own fresh groups",
        "Guo et al., 2024 (arXiv 2402.04792)",
    ),
    "distill": Entry(
        "lmgym.algorithms.distill:Distill",
        "from a teacher, on the student's samples or the teacher's, with or without the reward",
        "Agarwal et al., 2024 (arXiv 2306.13649)",
    ),
}


def find_algorithm(name: str) -> type[RLAlgorithm]:
    """The class of a known name, or of a `module:Class` that can be imported from here."""
    from lmgym.algorithms.rl_algorithm import RLAlgorithm

    if name not in ALGORITHMS and ":" not in name:
        meant = nearest(name, ALGORITHMS)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(
            f"there is no algorithm {name!r}{guess}; there are {', '.join(ALGORITHMS)}, and your own as "
            "my_module:MyClass."
        )
    found = import_named(ALGORITHMS[name].place if name in ALGORITHMS else name)
    if not (isinstance(found, type) and issubclass(found, RLAlgorithm)):
        raise UserError(f"{name} is not an algorithm: it must be a class that extends RLAlgorithm.")
    return found
