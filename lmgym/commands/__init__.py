"""The commands of the `lmgym` program, one file each."""
