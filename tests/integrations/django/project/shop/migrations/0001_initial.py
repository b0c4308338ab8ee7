from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("name", models.CharField(max_length=100)),
                ("shipped", models.BooleanField(default=False)),
                ("polled_at", models.DateTimeField(null=True)),
            ],
        ),
    )
