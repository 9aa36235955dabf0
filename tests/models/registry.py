"""All families, in the order of the page: a file of families adds its list here."""

from __future__ import annotations

from models.family import Family
from models.senses import sense_families
from models.text import text_families

FAMILIES: list[Family] = [*text_families(), *sense_families()]
BY_NAME = {family.name: family for family in FAMILIES}
