"""An outbox in the database of a Django project: jobs in its transactions, relayed by a node that is set up."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler
from tests.django.projects import Project
from tests.nodes import eventually

JOBS = """
from django.db import connection

from shop.models import Order
from taskqueue import task
from taskqueue.outbox import Outbox

outbox = Outbox(lambda: connection, every=0.05)


@task
def invoice(order: int):
    return Order.objects.get(pk=order).number
"""

MIGRATION = """
from django.db import migrations, models

from shop.jobs import outbox


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel("Order", [
            ("id", models.BigAutoField(primary_key=True)),
            ("number", models.IntegerField()),
            ("invoiced", models.BooleanField(default=False)),
        ]),
        migrations.RunSQL(outbox.create_sql("sqlite")),
    ]
"""

ORDERS = """
from django.db import connection, transaction
from shop.jobs import invoice, outbox
from shop.models import Order
from taskqueue.errors import InvalidOption

for number in (1, 2, 3):
    with transaction.atomic():
        order = Order.objects.create(number=number)
        outbox.add_job(invoice, {"order": order.pk}, session=connection)
        transaction.set_rollback(number == 2)
"""

REFUSED = """
try:
    outbox.add_job(invoice, {"order": 1}, session=connection)
except InvalidOption as refused:
    print(refused)
with transaction.atomic():
    transaction.set_rollback(True)
    try:
        outbox.add_job(invoice, {"order": 1}, session=connection)
    except InvalidOption as refused:
        print(refused)
"""

IN_A_TEST = """
from taskqueue import Scheduler

with transaction.atomic(), Scheduler() as scheduler:  # as TestCase does it
    order = Order.objects.create(number=4)
    id = outbox.add_job(invoice, {"order": order.pk}, session=connection)
    print(outbox.relay(scheduler), scheduler.get_job(id).job)
    transaction.set_rollback(True)
"""


def test_jobs_of_committed_transactions_run_on_a_node_of_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("shop/jobs.py", JOBS)
    project.write("shop/migrations/__init__.py", "")
    project.write("shop/migrations/0001_initial.py", MIGRATION)
    project.set('TASKQUEUE["OUTBOX"] = "shop.jobs:outbox"')
    project.migrate()

    refused = project.python(ORDERS + REFUSED).splitlines()
    with project.running("node"), Scheduler(project.url) as scheduler:
        assert eventually(lambda: scheduler.count_jobs({}) == 2), project.output()
        assert project.results(2) == [1, 3]

    assert refused == [
        (
            "session: no transaction is open on it, and it commits each statement: "
            "call this inside django.db.transaction.atomic()"
        ),
        "session: its transaction has failed: roll it back, and repeat its work",
    ]


def test_a_test_relays_within_its_own_transaction(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("shop/jobs.py", JOBS)
    project.migrate()
    create = "from django.db import connection\nconnection.cursor().execute(outbox.create_sql('sqlite'))"

    printed = project.python(f"from shop.jobs import outbox\n{create}\n{ORDERS}\n{IN_A_TEST}")

    assert printed.split() == ["3", "shop.jobs:invoice"]
