"""The model as a learner: its weights, its log-probabilities and its optimiser step."""
