"""A module that is not called tasks; and whose body runs in a process of its own."""

from rota.integrations.django import app

from shop.models import Order  # isort: skip - only a project that is set up has models, which the line above sees to


@app.task(executor="process")
def count() -> int:
    return Order.objects.count()
