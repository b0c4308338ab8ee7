"""Tasks on the project's own app, found because this module is called tasks."""

from rota.integrations.django import app
from shop.models import Order


@app.task
def ship(id: int) -> str:
    order = Order.objects.get(id=id)
    order.shipped = True
    order.save()
    return order.name


@app.task
async def ship_async(id: int) -> str:
    order = await Order.objects.aget(id=id)
    order.shipped = True
    await order.asave()
    return order.name


@app.poller(table="shop_order", last="polled_at", interval="1h", where="name = 'polled'")
def ship_polled(row) -> None:
    ship(row["id"])
