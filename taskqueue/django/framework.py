"""Django's Tasks framework: ``django.tasks`` of Django 6, or ``django_tasks`` with the versions before."""

from __future__ import annotations

import django

if django.VERSION >= (6, 0):
    from django.tasks import base, exceptions, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.utils.json import normalize_json
else:
    from django_tasks import base, exceptions, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.utils import normalize_json

__all__ = ["BaseTaskBackend", "base", "exceptions", "normalize_json", "signals", "task_backends"]
