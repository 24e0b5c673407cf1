"""Defects in what lies in object storage; see `tests.mutants`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DOCUMENTS = "tests/unit/engine/remote/test_remote_documents.py"
PIECE = "tests/unit/engine/remote/test_remote_piece.py"

MUTANTS = (
    Mutant(
        "take a document of another form, so that one document has several tags",
        "engine/remote/documents.py::unpack_document",
        "whole = isinstance(document, dict) and _canonical(document) == content",
        "whole = isinstance(document, dict)",
        DOCUMENTS,
    ),
    Mutant(
        "let a head be written that forgets a piece",
        "engine/remote/head.py::_says_all",
        "and set(both.pieces) <= set(new.pieces)",
        "",
        DOCUMENTS,
    ),
    Mutant(
        "let a head be written whose tail goes back",
        "engine/remote/head.py::_goes_on",
        "return after.first > before.committed",
        "return True",
        DOCUMENTS,
    ),
    Mutant(
        "keep the rows of a topic that is gone",
        "engine/remote/catalog.py::joined",
        "{key: end for key, end in tail.items() if key.topic not in gone}",
        "tail",
        DOCUMENTS,
    ),
    Mutant(
        "take a piece for the one that was asked for",
        "engine/remote/piece.py::read_table",
        "if str(found) != name or line.hex() != lineage:",
        "if False:",
        PIECE,
    ),
    Mutant(
        "believe the size of a key in a piece",
        "engine/remote/piece.py::read_changes",
        "if not fits or at > end:",
        "if at > end:",
        PIECE,
    ),
)
