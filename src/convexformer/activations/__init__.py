"""Hidden states and attention maps out of a Hugging Face encoder or decoder, kept on disk.

:func:`extract` needs the extra ``bert`` (PyTorch and transformers); what it wrote is read back by
:class:`Activations` without them.
"""

from ._arrays import ArrayActivations
from ._extract import extract
from ._loading import minilm
from ._store import KINDS, Activations, TextActivations
from ._texts import Text, read_texts

__all__ = [
    "KINDS",
    "Activations",
    "ArrayActivations",
    "Text",
    "TextActivations",
    "extract",
    "minilm",
    "read_texts",
]
