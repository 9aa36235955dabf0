"""Programs that tests start are no modules to look for doctests in."""

collect_ignore_glob = ["two_tasks_*.py"]
