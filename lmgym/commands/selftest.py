"""`lmgym selftest`: checks lmgym on the user's own device against plain Transformers, and prints a report."""

from __future__ import annotations

import copy
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

from lmgym import __version__
from lmgym.console import results
from lmgym.errors import UserError

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15}
"""Largest mean difference of log-probs, in nats."""
GRADIENT_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15}
"""Largest relative difference of the whole gradient."""
PROMPTS, SAMPLES, NEW_TOKENS = 4, 4, 32


@dataclass
class SelftestSettings:
    """The settings of `lmgym selftest`."""

    model: str = "smollm2-135m"
    """The model to check with."""
    device: str = "auto"
    """auto: CUDA, else MPS, else CPU; or a torch device such as cuda:0."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type."""


@dataclass(frozen=True)
class Outcome:
    """What a check measured, and whether that is good."""

    name: str
    measured: str
    passed: bool = True


def selftest(settings: SelftestSettings) -> bool:
    """Runs all checks, prints a table that can be pasted into an issue, and returns whether all passed."""
    started = time.perf_counter()
    table = Table("check", "measured", "", title=f"lmgym {__version__} selftest")
    passed = True
    for outcome in _outcomes(settings):
        passed = passed and outcome.passed
        table.add_row(outcome.name, outcome.measured, "ok" if outcome.passed else "FAILED")
    results.print(table)
    end = "everything passed" if passed else "something FAILED: please report it with this table"
    results.print(f"{end}; {time.perf_counter() - started:.0f} s", soft_wrap=True)
    return passed


def _outcomes(settings: SelftestSettings) -> Iterator[Outcome]:
    import torch
    import transformers

    from lmgym.models.loading import load_model

    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Outcome("versions", f"{system}, torch {torch.__version__}, transformers {transformers.__version__}")
    model = load_model(settings.model, device=settings.device, dtype=settings.dtype)
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else platform.processor() or "CPU"
    yield Outcome("device", f"{model.device} ({name}), computed in {model.dtype_name}")
    checks = _Checks(model)
    for check in (
        checks.sampling,
        checks.same_seed_same_tokens,
        checks.sampler_and_learner,
        checks.learner_and_transformers,
        checks.gradient,
        checks.learning,
        checks.adapter,
        checks.speed,
        checks.memory,
    ):
        yield _outcome(check)


def _outcome(check: Callable[[], Outcome]) -> Outcome:
    """A check that raises has failed, and the others go on."""
    try:
        return check()
    except UserError as error:
        return Outcome(check.__name__.replace("_", " "), str(error), False)
    except Exception as error:  # whatever a device or a driver raises belongs into the report
        return Outcome(check.__name__.replace("_", " "), f"{type(error).__name__}: {error}", False)


class _Checks:
    """The checks share a model, random prompts and their samples."""

    def __init__(self, model: Any) -> None:
        import torch

        from lmgym.engines.engine import Request
        from lmgym.policies.llm_policy import engine_for

        self.model = model
        self.engine = engine_for(model)
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(model.vocabulary_size, (PROMPTS, 24), generator=generator).tolist()
        self.requests = [
            Request(tuple(prompt), NEW_TOKENS, seed=10 * index + sample)
            for index, prompt in enumerate(prompts)
            for sample in range(SAMPLES)
        ]
        self.completions: list[Any] = []
        self.seconds_sampling = 0.0

    def sampling(self) -> Outcome:
        """The engine samples on this device."""
        started = time.perf_counter()
        self.completions = self.engine.generate(self.requests)
        self.seconds_sampling = time.perf_counter() - started
        self.engine.release_cache()
        tokens = sum(len(each.token_ids) for each in self.completions)
        return Outcome("sampling", f"{tokens} tokens in {self.seconds_sampling:.1f} s")

    def same_seed_same_tokens(self) -> Outcome:
        """Sampling again, in the opposite order, gives the same tokens."""
        again = self.engine.generate(self.requests[::-1])[::-1]
        self.engine.release_cache()
        same = sum(one.token_ids == two.token_ids for one, two in zip(self.completions, again, strict=True))
        # In bfloat16 products round differently in another batch, and an unlikely token may flip.
        least = len(again) if self.model.dtype_name == "float32" else len(again) // 2
        return Outcome("same seed, same tokens", f"{same} of {len(again)} samples", same >= least)

    def sampler_and_learner(self) -> Outcome:
        """The learner's log-probs of the sampled tokens are the sampler's."""
        batch = self._batch()
        difference = (self._learner().observe(batch).logprobs - batch.logprobs)[batch.mask].abs().mean().item()
        return self._difference("log-probs, sampler and learner", difference, TOLERANCES)

    def learner_and_transformers(self) -> Outcome:
        """They are also those of a plain forward pass."""
        batch = self._batch()
        logprobs = self._plain_logprobs(self._plain_network(), batch).detach().cpu()
        difference = (self._learner().observe(batch).logprobs - logprobs)[batch.mask].abs().mean().item()
        return self._difference("log-probs, learner and Transformers", difference, TOLERANCES)

    def gradient(self) -> Outcome:
        """The gradient of the learner is that of plain autograd."""
        import torch

        batch, learner, network = self._batch(), self._learner(), self._plain_network()
        weights = torch.linspace(-1, 1, batch.mask.shape[1]) * batch.mask
        (self._plain_logprobs(network, batch) * weights.to(self.model.device)).sum().backward()
        before = {name: weight.detach().clone() for name, weight in self.model.trainable().items()}
        learner.step(batch, lambda scores, part: (scores.logprobs * weights.to(part.mask.device)[part.row]).sum())
        expected = dict(network.named_parameters())
        square = error = 0.0
        for name, weight in learner.parameters().items():
            # The learner clips its gradient to norm 1: compare directions and not lengths.
            ours, theirs = weight.grad.cpu().double(), expected[name].grad.cpu().double()
            square, error = square + float((theirs**2).sum()), error + float((ours * theirs).sum())
            weight.data.copy_(before[name])
        norm = sum(float((weight.grad.cpu().double() ** 2).sum()) for weight in learner.parameters().values()) ** 0.5
        cosine = error / (norm * square**0.5)
        limits = GRADIENT_TOLERANCES
        return self._difference("gradient, angle to plain autograd", (2 * max(0.0, 1 - cosine)) ** 0.5, limits)

    def learning(self) -> Outcome:
        """A few optimiser steps make the sampled tokens more likely."""
        model = self.model.trainable_copy()
        batch, learner = self._batch(), self._learner(model)
        nll = [-learner.step(batch, _likelihood).logprobs[batch.mask].mean().item() for _ in range(4)]
        return Outcome("learning, loss of four steps", " → ".join(f"{each:.3f}" for each in nll), nll[-1] < nll[0])

    def adapter(self) -> Outcome:
        """LoRA: the adapter learns and the base stays."""
        from lmgym.models.loading import load_model
        from lmgym.models.lora import LoraSettings

        try:
            model = load_model(
                self.model.name, device=str(self.model.device), dtype=self.model.dtype_name, lora=LoraSettings(8, 16)
            )
        except UserError as error:
            return Outcome("LoRA", f"skipped: {error}")
        frozen = {name: copy.deepcopy(w) for name, w in model.network.named_parameters() if not w.requires_grad}
        learner, batch = self._learner(model), self._batch()
        nll = [-learner.step(batch, _likelihood).logprobs[batch.mask].mean().item() for _ in range(4)]
        moved = [name for name, weight in frozen.items() if not weight.equal(model.network.get_parameter(name))]
        text = " → ".join(f"{each:.3f}" for each in nll)
        return Outcome("LoRA, loss of four steps", text, nll[-1] < nll[0] and not moved)

    def speed(self) -> Outcome:
        """Tokens per second of sampling and of learning."""
        batch, learner = self._batch(), self._learner(self.model.trainable_copy())
        started = time.perf_counter()
        learner.step(batch, _likelihood)
        learnt = int(batch.lengths.sum()) / (time.perf_counter() - started)
        sampled = sum(len(each.token_ids) for each in self.completions) / self.seconds_sampling
        return Outcome("speed", f"{sampled:,.0f} sampled, {learnt:,.0f} learnt tokens/s")

    def memory(self) -> Outcome:
        """The peak of the device, or of the process."""
        import torch

        if self.model.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.model.device)
        elif sys.platform == "win32":
            return Outcome("peak memory", "not measured on Windows")
        else:
            import resource

            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return Outcome("peak memory", f"{peak / 1e9:.1f} GB")

    def _learner(self, model: Any = None) -> Any:
        from lmgym.learning.learner import Learner, LearnerSettings
        from lmgym.models.distribution import FULL_SOFTMAX

        settings = LearnerSettings(1e-4, "constant", 0, 100, 1.0, 1024, FULL_SOFTMAX)
        return Learner(model or self.model, settings)

    def _batch(self) -> Any:
        from lmgym.learning.batch import Batch
        from lmgym.types import Action, Episode, Problem, State, Step

        episodes = []
        for index, (request, completion) in enumerate(zip(self.requests, self.completions, strict=True)):
            tokens = tuple(completion.token_ids)
            action = Action("", request.prompt, tokens, tuple(completion.logprobs), (1,) * len(tokens))
            state = State(Problem(str(index), "", ""), (), episode=index, group=index // SAMPLES, seed=index)
            episodes.append(Episode((Step(state, action, 0.0, True, False, {}, state),), 0))
        return Batch.from_episodes(episodes)

    def _plain_network(self) -> Any:
        from lmgym.models.attention import PLAIN_IMPLEMENTATION

        network = copy.deepcopy(self.model.network)
        network.set_attn_implementation(PLAIN_IMPLEMENTATION)
        return network

    def _plain_logprobs(self, network: Any, batch: Any) -> Any:
        import torch

        tokens = batch.tokens.to(self.model.device)
        with self.model.autocast():
            logits = network(input_ids=tokens).logits[:, :-1].float()
        chosen = logits.log_softmax(dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
        return torch.nn.functional.pad(chosen, (1, 0))

    def _difference(self, name: str, difference: float, limits: dict[str, float]) -> Outcome:
        limit = limits[self.model.dtype_name]
        return Outcome(name, f"{difference:.1e} (at most {limit:g})", difference <= limit)


def _likelihood(scores: Any, part: Any) -> Any:
    """The mean negative log-likelihood."""
    return -scores.logprobs.sum() / part.total_tokens
