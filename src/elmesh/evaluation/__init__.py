"""A model on rows that it has not seen, and a comparison with other methods.

:mod:`~elmesh.evaluation.scores` has the scores of a saved model. :mod:`~elmesh.evaluation.compare` fits elmesh and its
rivals (:mod:`~elmesh.evaluation.rivals`) in nested cross-validation, and :mod:`~elmesh.evaluation.comparison` draws the
conclusion.
"""
