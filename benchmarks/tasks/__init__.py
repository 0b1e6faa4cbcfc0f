"""Learning shown in five kinds of tasks: with a judge, a tool, a task of reasoning-gym, a game and a mixture."""
