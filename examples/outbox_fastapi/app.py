"""A shop with FastAPI and SQLAlchemy: an order and its event are saved together, or not at all.

pip install fastapi uvicorn                          # and the extra [outbox]; also [postgres]
dovetail up &                                        # a Kafka for every client
export DATABASE=sqlite:///shop.db                    # or postgresql://app:secret@localhost/shop
python -m examples.outbox_fastapi.app init
uvicorn examples.outbox_fastapi.app:app &            # the relay runs inside
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"total": 12.5}'
dovetail consume orders
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dovetail.outbox import Producer, create_tables, start_relay

DATABASE = os.environ.get("DATABASE", "sqlite:///shop.db")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")

engine = create_engine(DATABASE)
orders = Producer("orders", backend="db")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[float]


class NewOrder(BaseModel):
    total: float


def session() -> Iterator[Session]:
    with Session(engine) as opened, opened.begin():
        yield opened


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    relay = start_relay(threads=1, database=DATABASE, bootstrap=KAFKA)
    yield
    relay.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def create_order(new: NewOrder, session: Annotated[Session, Depends(session)]) -> dict[str, int]:
    order = Order(total=new.total)
    session.add(order)
    session.flush()
    orders.publish({"id": order.id, "total": order.total}, key=str(order.id), on=session)
    if new.total < 0:
        raise HTTPException(422, "the order is rolled back, and so is its event")
    return {"id": order.id}


if __name__ == "__main__" and sys.argv[1:] == ["init"]:
    Base.metadata.create_all(engine)
    create_tables(engine)
