"""The model without a table to which the permissions for the dashboard belong."""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager):
    """Finds nothing, without asking the database: ``dumpdata`` reads unmanaged models too."""

    def get_queryset(self) -> Any:
        """Return no rows."""
        return super().get_queryset().none()


class Dashboard(models.Model):
    """The dashboard of jobs, for Django's permissions."""

    objects = NoRows()

    class Meta:
        """It has two permissions in place of a table's."""

        managed = False
        base_manager_name = "objects"
        verbose_name = verbose_name_plural = "dashboard"
        default_permissions = ()
        permissions = (
            ("view_dashboard", "Can view the dashboard of jobs"),
            ("operate_dashboard", "Can operate the dashboard of jobs"),
        )
