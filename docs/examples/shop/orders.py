"""An order is a workflow: reserve the book and charge the customer in parallel, write the invoice, mail it."""

from contextlib import closing

from shop import database
from shop.jobs import before_add
from shop.mail import MailJob
from shop.wholesaler import WHOLESALER, ask
from taskqueue import Scheduler, current_job, task, workflows


@task(queue="orders", **WHOLESALER)
def reserve(isbn: str) -> str:
    """Return the number of the reservation; the key makes a second attempt find the first one's."""
    return str(ask(f"/reservations/{isbn}", post_key=current_job().key)["reference"])


@task(queue="orders", **WHOLESALER)
def charge(order: int) -> str:
    """Return the number of the payment; nobody pays twice, because all attempts have the same key."""
    return str(ask(f"/payments/{order}", post_key=current_job().key)["reference"])


@task(queue="orders")
def write_invoice(order: int, references: list[str]) -> str:
    """Return the text of the invoice; ``references`` are the results of the two jobs before it."""
    title = database.order_title(order)
    return f"Thank you for ordering {title}.\nReservation {references[0]}, payment {references[1]}."


def place(isbn: str, email: str, day: str) -> tuple[int, workflows.Workflow]:
    """Keep an order and add its jobs in one transaction: whatever is killed, both exist afterwards, or neither."""
    with (
        closing(database.connect()) as shop,
        Scheduler(connection=shop, before_add=before_add) as scheduler,  # closed after the commit, it wakes the nodes
        shop,
    ):
        order = database.save_order(shop, isbn, email, day)
        return order, fulfil(scheduler, order, isbn, email)


def fulfil(scheduler: Scheduler, order: int, isbn: str, email: str) -> workflows.Workflow:
    """Add all jobs of an order; if one fails for good, those after it are canceled."""
    return workflows.chain(
        scheduler,
        [(reserve, {"isbn": isbn}), (charge, {"order": order})],
        (write_invoice, {"order": order, "references": workflows.RESULTS}),
        (MailJob, {"to": email, "subject": f"Your order {order}", "text": workflows.RESULT}),
    )
