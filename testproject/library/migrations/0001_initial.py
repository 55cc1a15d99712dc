"""The table of documents."""

from django.db import migrations, models

import testproject.library.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Document",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", testproject.library.models.PathField(max_length=255, unique=True)),
                ("package", models.CharField(db_index=True, max_length=128)),
                ("lines", models.PositiveIntegerField()),
                ("functions", models.PositiveIntegerField()),
                ("classes", models.PositiveIntegerField()),
                (
                    "imports",
                    models.JSONField(
                        default=list, help_text="Modules named by import statements, sorted"
                    ),
                ),
                ("sha256", models.CharField(max_length=64)),
            ],
        ),
    ]
