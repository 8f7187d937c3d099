"""Analyses of the experiments: claims with verdicts, figures and tables."""
