"""The backend of django.tasks (Django 6.0 or newer): a Task is a kind, its results are jobs.

Imported through `gnl_django.tasks`, and by nothing else of the queue. Read `task.py`, `kind.py`,
`results.py`, `backend.py`, `discovery.py` (queue.md 4.9).
"""
