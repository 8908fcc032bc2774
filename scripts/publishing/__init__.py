"""From finished variants to a version on the Hub: see ../release.py."""

from .card import render_card
from .checks import problems_of, variants_in
from .upload import Release, UploadError

__all__ = ["Release", "UploadError", "problems_of", "render_card", "variants_in"]
