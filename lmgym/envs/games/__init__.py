"""Games in several turns, generated offline: the policy moves, the game answers."""
