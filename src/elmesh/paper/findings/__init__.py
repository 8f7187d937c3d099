"""What the experiments showed: statements with verdicts, figures and tables, one file an experiment."""
