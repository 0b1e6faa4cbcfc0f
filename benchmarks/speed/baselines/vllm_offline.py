"""vLLM on the CPU, in process, with prefix caching and the log-probability of each sampled token."""

import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """vLLM starts processes that import this file again, so importing it must not start anything."""
    from protocol import serve, settings
    from vllm import LLM, SamplingParams

    asked = settings()
    engine = LLM(
        model=asked["model"],
        dtype=asked["dtype"],
        enforce_eager=not asked["compiled"],
        max_model_len=4096,
        enable_prefix_caching=True,
    )
    count = asked["new_tokens"]
    sampling = SamplingParams(temperature=1.0, min_tokens=count, max_tokens=count, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]

    def run() -> dict:
        engine.reset_prefix_cache()  # the weights change in every iteration, which invalidates it
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return {"tokens": sum(len(output.outputs[0].token_ids) for output in outputs)}

    serve(run)


if __name__ == "__main__":
    main()
