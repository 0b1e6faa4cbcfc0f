"""Rewards: functions of (problem, text), or of (state, text, next state) for single steps."""
