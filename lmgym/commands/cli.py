"""The `lmgym` program: finds the command, parses its flags, and prints a UserError as one sentence."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from lmgym.console import messages, results
from lmgym.errors import UserError
from lmgym.lookup import nearest

USAGE = """lmgym: a gym for language models

  lmgym train [ALGORITHM] [flags]   train a model; with no flags, the default recipe
  lmgym train --resume RUN [flags]  continue a run from its newest checkpoint
  lmgym eval [flags]                evaluate a model, alone or against another
  lmgym rollout [flags]             collect episodes and learn nothing
  lmgym rescore RUN --reward …      what another reward says of the episodes of a run
  lmgym play ENV [--model …]        solve a problem yourself, or watch a model
  lmgym audit ENV [flags]           check an environment's grader on its own answers
  lmgym serve MODEL [flags]         start an inference server for --engine vllm
  lmgym servers URL…                what servers are serving, and how fast
  lmgym export RUN                  write the model of a run as an ordinary Hugging Face folder
  lmgym selftest [flags]            check lmgym on this device
  lmgym envs                        list the environments
  lmgym algorithms                  list the algorithms
  lmgym models                      list the models

Each command has its own --help."""

INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit code when the reader of the output has closed it, as after `| head`."""


def main(arguments: list[str] | None = None) -> None:
    """The entry point: exit code 0, 2 for a UserError, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            _dispatch(arguments)
        finally:
            sys.stdout.flush()  # here, because an error at the exit of the interpreter could not be caught
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except UserError as error:
        messages.print(f"lmgym: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _dispatch(arguments: list[str]) -> None:
    command, flags = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        results.print(USAGE, markup=False)
        return
    if command == "--version":
        from lmgym import __version__

        results.print(__version__)
        return
    if command == "bench":
        raise UserError(
            "the benchmark is not part of the installed package: run `make bench` or `python -m benchmarks.speed` in a "
            "clone of the repository."
        )
    if command not in COMMANDS:
        meant = nearest(command, COMMANDS)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(f"there is no command {command!r}{guess}; there are {', '.join(COMMANDS)}. Try: lmgym --help")
    COMMANDS[command](flags)


def _train(arguments: list[str]) -> None:
    from lmgym.distributed.launch import joined_processes

    with joined_processes():
        _train_together(arguments)


def _train_together(arguments: list[str]) -> None:
    from lmgym.algorithms.registry import find_algorithm
    from lmgym.commands import train as command

    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    arguments = arguments[1:] if named else arguments
    resumed = _value_of("--resume", arguments) or _begun_before_restart(arguments)
    if resumed is not None:
        _resume(Path(resumed), named, arguments)
        return
    name = named or "reinforce-stable"
    algorithm = find_algorithm(name)
    settings = _parse_train(algorithm.Config, arguments, prog=f"lmgym train {name}")
    command.train(name, algorithm, settings)


def _begun_before_restart(arguments: list[str]) -> str | None:
    """The run to resume after torchrun has started the processes again; a run without a checkpoint starts anew."""
    from lmgym.distributed.launch import attempt, is_marked, may_restart
    from lmgym.distributed.processes import processes

    out = _value_of("--out", arguments)
    if may_restart() and out is None:
        raise UserError("torchrun --max-restarts needs --out, so that a restart finds the run.")

    def begun() -> str | None:
        if not attempt() or out is None or not is_marked(Path(out)):
            return None
        if any(Path(out).glob("checkpoints/[0-9]*/state.json")):
            return out
        shutil.rmtree(out, ignore_errors=True)
        return None

    return processes().decide(begun)


def _resume(folder: Path, named: str | None, arguments: list[str]) -> None:
    from lmgym.algorithms.registry import find_algorithm
    from lmgym.commands.resume import algorithm_of, require_names, resume
    from lmgym.commands.train import settings_from
    from lmgym.commands.trained_settings import saved_config
    from lmgym.runs.old_names import check_old_run, upgraded

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give --resume the folder of a run.")
    raw = saved_config(folder)
    saved, changes = upgraded(folder, raw)
    name = algorithm_of(folder, saved, named)
    config_class = find_algorithm(name).Config
    check_old_run(folder, raw, config_class().settings())
    if changes:
        messages.print(changes, markup=False, soft_wrap=True)
    require_names(folder, saved, ("env", "eval_env", "policy", "shots", "judge", "judge_model"), arguments)
    before = settings_from(config_class, saved)
    after = _parse_train(config_class, _without("--resume", arguments), "lmgym train --resume RUN", before)
    resume(folder, name, saved, before, after)


def _parse_train(config_class: Any, arguments: list[str], prog: str, default: Any = None) -> Any:
    """Parses flags into TrainSettings that include this algorithm's own fields."""
    from lmgym.commands.train import TrainSettings

    shape = make_dataclass(
        "TrainFlags", [("algorithm", config_class)], bases=(TrainSettings,), namespace={"__doc__": config_class.__doc__}
    )
    start = default or TrainSettings(config_class())
    flags = shape(start.algorithm, start.task, start.policy, start.judge, start.run)
    return _parse_task(shape, arguments, prog, flags)


def _eval(arguments: list[str]) -> None:
    from lmgym.commands.evaluate import EvalSettings, run_evaluation
    from lmgym.distributed.launch import joined_processes

    default = EvalSettings()
    trained = _trained(arguments)
    if trained is not None:  # by default a run is evaluated as it was trained: same task, same prompt
        default = EvalSettings(replace(default.measure, eval_env=trained.run.eval_env), trained.task, trained.policy)
    settings = _parse_task(EvalSettings, arguments, "lmgym eval", default)
    with joined_processes():
        run_evaluation(settings)


def _play(arguments: list[str]) -> None:
    from lmgym.commands.play import PlaySettings, play

    if arguments and not arguments[0].startswith("-"):
        arguments = ["--env", *arguments]
    play(_parse_task(PlaySettings, arguments, "lmgym play", _with_trained(PlaySettings(), arguments)))


def _serve(arguments: list[str]) -> None:
    from lmgym.commands.serve import ServeSettings, serve

    end = arguments.index("--") if "--" in arguments else len(arguments)
    settings = _parse(ServeSettings, arguments[:end], "lmgym serve", ServeSettings())
    serve(settings, vllm_flags=arguments[end + 1 :])


def _export(arguments: list[str]) -> None:
    from lmgym.commands.export import ExportSettings, export

    export(_parse(ExportSettings, arguments, "lmgym export", ExportSettings()))


def _selftest(arguments: list[str]) -> None:
    from lmgym.commands.selftest import SelftestSettings, selftest

    if not selftest(_parse(SelftestSettings, arguments, "lmgym selftest", SelftestSettings())):
        sys.exit(1)


def _rollout(arguments: list[str]) -> None:
    from lmgym.commands.rollout import RolloutSettings, rollout

    rollout(_parse_task(RolloutSettings, arguments, "lmgym rollout", _with_trained(RolloutSettings(), arguments)))


def _rescore(arguments: list[str]) -> None:
    from lmgym.commands.rescore import RescoreSettings, rescore

    rescore(_parse(RescoreSettings, arguments, "lmgym rescore", RescoreSettings()))


def _audit(arguments: list[str]) -> None:
    from lmgym.commands.audit import AuditSettings, run_audit

    run_audit(_parse(AuditSettings, arguments, "lmgym audit", AuditSettings()))


def _servers(arguments: list[str]) -> None:
    from lmgym.commands.serve import ServersSettings, show_servers

    show_servers(_parse(ServersSettings, arguments, "lmgym servers", ServersSettings()))


def _listing(function_name: str) -> Any:
    def run(arguments: list[str]) -> None:
        from lmgym.commands import listing

        if arguments and arguments[0] not in ("-h", "--help"):
            raise UserError(f"this command takes no flags, but was given {arguments[0]!r}.")
        getattr(listing, function_name)()

    return run


COMMANDS = {
    "train": _train,
    "eval": _eval,
    "play": _play,
    "serve": _serve,
    "servers": _servers,
    "export": _export,
    "selftest": _selftest,
    "audit": _audit,
    "rollout": _rollout,
    "rescore": _rescore,
    "envs": _listing("list_envs"),
    "algorithms": _listing("list_algorithms"),
    "models": _listing("list_models"),
}


def _parse(shape: Any, arguments: list[str], prog: str, default: Any) -> Any:
    """Parses flags with tyro: underscores as in the fields, hyphens are accepted too."""
    from lmgym.commands.flag_names import flag_names, refuse_unknown

    parsed, unknown = tyro.cli(
        shape,
        args=arguments,
        prog=prog,
        default=default,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        use_underscores=True,
        return_unknown_args=True,
    )
    refuse_unknown(unknown, flag_names(default), prog)
    return parsed


def _parse_task(shape: Any, arguments: list[str], prog: str, default: Any) -> Any:
    """Parses settings with a task, whose --env_options replace the default ones as a whole."""
    # From a dictionary that is not empty, tyro would make one flag per key and accept no others.
    blank = replace(default, task=replace(default.task, env_options={}))
    parsed = _parse(shape, arguments, prog, blank)
    parsed.task.env_options = parsed.task.env_options or default.task.env_options
    return parsed


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """The value of one flag, which is needed before the others can be parsed."""
    for index, argument in enumerate(arguments):
        if argument == flag:
            if index + 1 == len(arguments):
                raise UserError(f"{flag} needs a value.")
            return arguments[index + 1]
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None


def _without(flag: str, arguments: list[str]) -> list[str]:
    """The arguments without one flag and its value."""
    index = arguments.index(flag) if flag in arguments else len(arguments)
    others = arguments[:index] + arguments[index + 2 :]
    return [argument for argument in others if not argument.startswith(f"{flag}=")]


def _trained(arguments: list[str]) -> Any:
    """The settings that the run at --model was trained with, or None for another model."""
    from lmgym.commands.trained_settings import trained_settings

    return trained_settings(_value_of("--model", arguments), _value_of("--env", arguments), arguments)


def _with_trained(default: Any, arguments: list[str]) -> Any:
    """The default settings, with the task and the prompt of the run at --model, if it is one."""
    trained = _trained(arguments)
    return default if trained is None else replace(default, task=trained.task, policy=trained.policy)


if __name__ == "__main__":
    main()
