"""Models without a table: the dashboard, to which the permissions belong, and jobs, for their pages in the admin."""

from __future__ import annotations

from typing import Any

from django.db import models

VIEW = "taskqueue.view_dashboard"
OPERATE = "taskqueue.operate_dashboard"


class NoRows(models.Manager):
    """Finds nothing, without asking the database: ``dumpdata`` reads unmanaged models too."""

    def get_queryset(self) -> Any:
        """Return no rows."""
        return super().get_queryset().none()


class Dashboard(models.Model):
    """The dashboard of jobs, for Django's permissions."""

    objects = NoRows()

    class Meta:
        """It has two permissions instead of the usual ones of a table."""

        managed = False
        base_manager_name = "objects"
        verbose_name = verbose_name_plural = "dashboard"
        default_permissions = ()
        permissions = (
            ("view_dashboard", "Can view the dashboard of jobs"),
            ("operate_dashboard", "Can operate the dashboard of jobs"),
        )


class Job(models.Model):
    """A job of the store, for its entry in the admin."""

    objects = NoRows()

    class Meta:
        """It has no permissions of its own: the permissions of the dashboard apply."""

        managed = False
        base_manager_name = "objects"
        verbose_name = "job"
        default_permissions = ()
