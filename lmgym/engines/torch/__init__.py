"""The in-process engine: continuous batching over a KV cache with shared prefixes."""
