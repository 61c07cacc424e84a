"""Jobs of a Django project: add ``taskqueue.django`` to ``INSTALLED_APPS``, and call ``manage.py taskqueue``."""
