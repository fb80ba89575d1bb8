"""Settings of the example: one database, and the outbox among the apps."""

import os

SECRET_KEY = "only for the example"
INSTALLED_APPS = ["dovetail.outbox.django"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
    }
}
