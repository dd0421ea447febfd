# SPDX-License-Identifier: Apache-2.0
"""Every link of a Markdown file leads somewhere, and docs/errors.md knows every error."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from stratagem import errors

_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_every_link_to_a_file_resolves(root: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    pages = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "README.md" in pages
    broken = [f"{page}: {link}" for page in pages for link in _broken_links(root / page)]
    assert not broken, "\n".join(broken)


def test_the_page_of_errors_has_a_section_for_each(root: Path) -> None:
    anchors = _anchors(root / "docs" / "errors.md")
    assert [name for name in errors.__all__ if name.lower() not in anchors] == []


def _broken_links(page: Path) -> list[str]:
    links = _LINK.findall(_FENCE.sub("", page.read_text()))
    return [
        link for link in links if not link.startswith(("http://", "https://", "mailto:")) and not _leads(page, link)
    ]


def _leads(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
