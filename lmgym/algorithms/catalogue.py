"""The algorithms that ship with lmgym: name, import path, summary and paper; nothing is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from lmgym.lookup import import_path


@dataclass(frozen=True)
class Entry:
    """Where an algorithm is defined, and what it is in one line."""

    import_path: str
    summary: str
    paper: str


ALGORITHMS = {
    "reinforce": Entry(
        "lmgym.algorithms.reinforce:Reinforce",
        "discounted per-step returns minus a baseline (group, batch, running, greedy, none)",
        "Williams, 1992",
    ),
    "reinforce-stable": Entry(
        "lmgym.algorithms.reinforce_stable:ReinforceStable",
        "REINFORCE with a reference model, a KL penalty and truncated importance sampling",
        "Williams, 1992; Ahmadian et al., 2024 (arXiv 2402.14740)",
    ),
    "reinforce-pp": Entry(
        "lmgym.algorithms.reinforce_pp:ReinforcePP",
        "KL in the reward, advantages normalised over the batch, PPO's clip",
        "Hu, 2025 (arXiv 2501.03262)",
    ),
    "remax": Entry(
        "lmgym.algorithms.remax:ReMax",
        "REINFORCE with the return of a greedy episode as the baseline",
        "Li et al., 2023 (arXiv 2310.10505)",
    ),
    "rloo": Entry(
        "lmgym.algorithms.rloo:RLOO",
        "REINFORCE with a leave-one-out baseline, unbiased",
        "Ahmadian et al., 2024 (arXiv 2402.14740)",
    ),
    "grpo": Entry(
        "lmgym.algorithms.grpo:GRPO",
        "returns standardised within their group, PPO's clip, no critic",
        "Shao et al., 2024 (arXiv 2402.03300)",
    ),
    "dr-grpo": Entry(
        "lmgym.algorithms.dr_grpo:DrGRPO",
        "GRPO without division by deviation and by length",
        "Liu et al., 2025 (arXiv 2503.20783)",
    ),
    "dapo": Entry(
        "lmgym.algorithms.dapo:DAPO",
        "GRPO with clip-higher, token-mean loss, dynamic sampling and overlong shaping",
        "Yu et al., 2025 (arXiv 2503.14476)",
    ),
    "gspo": Entry(
        "lmgym.algorithms.gspo:GSPO",
        "GRPO with sequence-level ratios and clip",
        "Zheng et al., 2025 (arXiv 2507.18071)",
    ),
    "cispo": Entry(
        "lmgym.algorithms.cispo:CISPO",
        "clips the importance weight and keeps every token's gradient",
        "MiniMax, 2025 (arXiv 2506.13585)",
    ),
    "sapo": Entry(
        "lmgym.algorithms.sapo:SAPO",
        "GRPO with a sigmoid gate in place of the clip",
        "Gao et al., 2025 (arXiv 2511.20347)",
    ),
    "maxrl": Entry(
        "lmgym.algorithms.maxrl:MaxRL",
        "advantages divided by the success rate: towards maximum likelihood",
        "Tajwar et al., 2026 (arXiv 2602.02710)",
    ),
    "ppo": Entry(
        "lmgym.algorithms.ppo:PPO",
        "a critic, GAE over tokens or steps, PPO's clip",
        "Schulman et al., 2017 (arXiv 1707.06347)",
    ),
    "expert-iteration": Entry(
        "lmgym.algorithms.expert_iteration:ExpertIteration",
        "supervised learning on its own successes (STaR, RAFT, best-of-n)",
        "Zelikman et al., 2022 (arXiv 2203.14465); Dong et al., 2023 (arXiv 2304.06767)",
    ),
    "sft": Entry(
        "lmgym.algorithms.sft:SFT",
        "supervised learning on worked solutions: a baseline, or a warm start",
        "Ouyang et al., 2022 (arXiv 2203.02155)",
    ),
    "dpo": Entry(
        "lmgym.algorithms.dpo:DPO",
        "preference of the best over the worst episode of each group sampled by the reference",
        "Rafailov et al., 2023 (arXiv 2305.18290)",
    ),
    "online-dpo": Entry(
        "lmgym.algorithms.online_dpo:OnlineDPO",
        "DPO on pairs sampled by the current policy",
        "Guo et al., 2024 (arXiv 2402.04792)",
    ),
    "distill": Entry(
        "lmgym.algorithms.distill:Distill",
        "distillation from a teacher, on the student's or the teacher's samples, with or without the reward",
        "Agarwal et al., 2024 (arXiv 2306.13649)",
    ),
}


def name_of(algorithm: type) -> str | None:
    """The name by which `lmgym train` finds an algorithm: registered, or module:Class; None if not importable."""
    return canonical_name(path) if (path := import_path(algorithm)) else None


def canonical_name(name: str) -> str:
    """The registered name of an algorithm that is given by name or as module:Class."""
    return next((known for known, entry in ALGORITHMS.items() if entry.import_path == name), name)
