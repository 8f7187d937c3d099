"""From rows to what solvers work on: labels and tasks, the hidden layer, and each task's statistics."""
