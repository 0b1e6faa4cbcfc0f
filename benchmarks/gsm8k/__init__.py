"""Language models that learn GSM8K: the runs, their evaluation on the test problems, and the tables."""
